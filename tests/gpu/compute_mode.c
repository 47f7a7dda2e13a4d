/* In front of the driver's NVML where a card's compute mode may not be changed (tests/gpu/run,
 * MG_GPU_LEAVE_MODE=1): a mode that is set goes into the file MODE beside this library, and is what
 * the card is said to have from then on. All other functions are the driver's own: dlsym finds them
 * in the library that this one needs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static FILE *mode_file(const char *how)
{
	char path[4096];
	Dl_info own;
	char *name;

	if (!dladdr((void *)mode_file, &own) || strlen(own.dli_fname) > sizeof(path) - sizeof("MODE"))
		return NULL;
	name = strrchr(strcpy(path, own.dli_fname), '/');
	strcpy(name ? name + 1 : path, "MODE");
	return fopen(path, how);
}

int nvmlDeviceSetComputeMode(void *device, unsigned mode)
{
	FILE *file = mode_file("we");

	(void)device;
	if (!file)
		return 999; /* NVML_ERROR_UNKNOWN */
	fprintf(file, "%u\n", mode);
	return fclose(file) ? 999 : 0;
}

int nvmlDeviceGetComputeMode(void *device, unsigned *mode)
{
	int (*real)(void *, unsigned *) = dlsym(RTLD_NEXT, "nvmlDeviceGetComputeMode");
	FILE *file = mode_file("re");
	int result = real ? real(device, mode) : 999;

	if (!file)
		return result;
	if (result == 0 && fscanf(file, "%u", mode) != 1)
		result = 999;
	fclose(file);
	return result;
}
