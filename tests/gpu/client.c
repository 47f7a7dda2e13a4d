/* A CUDA client for tests/gpu/run: needs libcuda at run time only, no toolkit.
 *
 *   client hold    attaches, then makes a CUDA call each second and prints what comes of it
 *   client fault   attaches, writes to address 0 from a kernel, and stays: a fatal memory fault
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void *cuda;

/* Every function that is called here returns a CUresult, which is an int. */
typedef int (*call)();

static call find(const char *name)
{
	union { void *object; call function; } symbol = { dlsym(cuda, name) };
	if (!symbol.object) {
		printf("no %s\n", name);
		fflush(stdout);
		_exit(1);
	}
	return symbol.function;
}

static void check(const char *what, int result)
{
	printf("%s %d\n", what, result);
	fflush(stdout);
	if (result)
		_exit(1);
}

static const char kernel[] =
	".version 6.0\n.target sm_70\n.address_size 64\n"
	".visible .entry bad()\n{\n.reg .u64 %a;\nmov.u64 %a, 0;\nst.global.u32 [%a], 1;\nret;\n}\n";

int main(int argc, char **argv)
{
	int device = 0;
	void *context = NULL, *module = NULL, *function = NULL;

	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!cuda) {
		printf("%s\n", dlerror());
		return 1;
	}
	check("cuInit", find("cuInit")(0));
	check("cuDeviceGet", find("cuDeviceGet")(&device, 0));
	check("cuCtxCreate", find("cuCtxCreate_v2")(&context, 0, device));
	printf("attached %d\n", (int)getpid());
	if (argc > 1 && !strcmp(argv[1], "fault")) {
		check("cuModuleLoadData", find("cuModuleLoadData")(&module, kernel));
		check("cuModuleGetFunction", find("cuModuleGetFunction")(&function, module, "bad"));
		check("cuLaunchKernel", find("cuLaunchKernel")(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	}
	for (;;) {
		printf("cuCtxSynchronize %d\n", find("cuCtxSynchronize")());
		fflush(stdout);
		sleep(1);
	}
}
