/* In front of the driver's NVML where a card's compute mode may not be changed (tests/gpu/run,
 * MG_GPU_LEAVE_MODE=1): a mode that is set goes into the file MODE beside this library, and is what
 * the card is said to have from then on. All other functions are the driver's own: dlsym finds them
 * in the library that this one needs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* What the file is called, or, where new, what it is written as before it is. */
static char *name_of(char path[4096], int new)
{
	Dl_info own;
	char *name;

	if (!dladdr((void *)name_of, &own) || strlen(own.dli_fname) > 4096 - sizeof("MODE.new"))
		return NULL;
	name = strrchr(strcpy(path, own.dli_fname), '/');
	strcpy(name ? name + 1 : path, new ? "MODE.new" : "MODE");
	return path;
}

int nvmlDeviceSetComputeMode(void *device, unsigned mode)
{
	char new[4096], path[4096];
	FILE *file = name_of(new, 1) && name_of(path, 0) ? fopen(new, "we") : NULL;

	(void)device;
	if (!file)
		return 999; /* NVML_ERROR_UNKNOWN */
	fprintf(file, "%u\n", mode);
	return fclose(file) || rename(new, path) ? 999 : 0; /* who reads finds the one or the other */
}

int nvmlDeviceGetComputeMode(void *device, unsigned *mode)
{
	int (*real)(void *, unsigned *) = dlsym(RTLD_NEXT, "nvmlDeviceGetComputeMode");
	char path[4096];
	FILE *file = name_of(path, 0) ? fopen(path, "re") : NULL;
	int result = real ? real(device, mode) : 999;

	if (!file)
		return result;
	if (result == 0 && fscanf(file, "%u", mode) != 1)
		result = 999;
	fclose(file);
	return result;
}
