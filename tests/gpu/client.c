/* A CUDA client for tests/gpu/run: needs libcuda at run time only, no toolkit.
 *
 *   client hold                  attaches, then makes four CUDA calls a second and prints what comes of it
 *   client fill [HOW]            takes memory until it is refused, then as hold; HOW is create
 *                                (cuMemCreate) or async (cuMemAllocAsync), and then 16 GiB at most
 *   client take MIB              takes that much, then as hold
 *   client fault                 writes to address 0 from a kernel, then as hold: a fatal memory fault
 *   client work SECONDS GO BLOCKS
 *                                waits for the file GO, then launches a kernel of so many blocks over and
 *                                over for so long, and prints how often it ran
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OUT_OF_MEMORY 2
#define MIB ((size_t)1 << 20)
#define THREADS 256
#define ROUNDS 20000 /* of four cycles: some 50 us */
#define BATCH 16     /* launches between two looks at the clock */

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

/* PTX that each driver since 384 makes code of for its card: Volta and newer. */
static const char kernels[] =
	".version 6.0\n.target sm_70\n.address_size 64\n"
	".visible .entry bad()\n{\n.reg .u64 %a;\nmov.u64 %a, 0;\nst.global.u32 [%a], 1;\nret;\n}\n"
	".visible .entry work(.param .u64 out, .param .u32 rounds)\n{\n"
	".reg .pred %p;\n.reg .u32 %r<3>;\n.reg .f32 %f;\n.reg .u64 %a<2>;\n"
	"ld.param.u64 %a0, [out];\ncvta.to.global.u64 %a1, %a0;\nld.param.u32 %r0, [rounds];\n"
	"mov.u32 %r1, %tid.x;\ncvt.rn.f32.u32 %f, %r1;\n"
	"again:\nfma.rn.f32 %f, %f, 0f3F800001, 0f3F800000;\n"
	"sub.u32 %r0, %r0, 1;\nsetp.ne.u32 %p, %r0, 0;\n@%p bra again;\n"
	"st.global.f32 [%a1], %f;\nret;\n}\n"; /* without the store there would be nothing to compute */

static void *kernel(const char *name)
{
	void *module = NULL, *function = NULL;

	check("cuModuleLoadData", find("cuModuleLoadData")(&module, kernels));
	check("cuModuleGetFunction", find("cuModuleGetFunction")(&function, module, name));
	return function;
}

static int launch(void *function, unsigned blocks, void **arguments)
{
	return find("cuLaunchKernel")(function, blocks, 1, 1, THREADS, 1, 1, 0, NULL, arguments, NULL);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void work(double seconds, const char *go, unsigned blocks)
{
	unsigned long long out = 0;
	unsigned rounds = ROUNDS;
	void *arguments[] = { &out, &rounds }, *function = kernel("work");
	call synchronize = find("cuCtxSynchronize");
	unsigned long count = 0;
	double begin, end;
	int i;

	check("cuMemAlloc", find("cuMemAlloc_v2")(&out, (size_t)4));
	check("cuLaunchKernel", launch(function, blocks, arguments)); /* the first one is slow */
	check("cuCtxSynchronize", synchronize());
	printf("ready\n");
	fflush(stdout);
	while (access(go, F_OK))
		usleep(1000);
	begin = now();
	do {
		for (i = 0; i < BATCH; i++) {
			int result = launch(function, blocks, arguments);
			if (result)
				check("cuLaunchKernel", result);
		}
		i = synchronize();
		if (i)
			check("cuCtxSynchronize", i);
		count += BATCH;
		end = now();
	} while (end - begin < seconds);
	printf("ops %.1f\n", (double)count / (end - begin));
	fflush(stdout);
}

/* CUmemAllocationProp, as cuda.h has it since 10.2. */
struct properties {
	int type, handle_types, location_type, location;
	void *metadata;
	unsigned char flags[8];
};

static int allocate(const char *how, size_t size)
{
	struct properties pinned = { 1, 0, 1, 0, NULL, { 0 } };
	unsigned long long pointer;

	if (!strcmp(how, "create"))
		return find("cuMemCreate")(&pointer, size, &pinned, 0ULL);
	if (!strcmp(how, "async"))
		return find("cuMemAllocAsync")(&pointer, size, NULL);
	return find("cuMemAlloc_v2")(&pointer, size);
}

/* take MIB, or with 0 all that there is, in steps that become smaller. */
static void take(const char *how, size_t wanted)
{
	size_t taken = 0, step = wanted ? wanted : 64, most = *how ? 16384 : (size_t)-1;
	size_t least = strcmp(how, "create") ? 1 : 2; /* its granularity is 2 MiB */

	while (step >= least && taken < (wanted ? wanted : most)) {
		int result = allocate(how, step * MIB);
		if (result == OUT_OF_MEMORY && !wanted)
			step /= 2;
		else if (result)
			check("cuMemAlloc", result);
		else
			taken += step;
	}
	printf("filled %zu\n", taken);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "hold";
	void *context = NULL;
	int device = 0;

	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!cuda) {
		printf("%s\n", dlerror());
		return 1;
	}
	check("cuInit", find("cuInit")(0));
	check("cuDeviceGet", find("cuDeviceGet")(&device, 0));
	check("cuCtxCreate", find("cuCtxCreate_v2")(&context, 0, device));
	printf("attached %d\n", (int)getpid());
	fflush(stdout);
	if (!strcmp(mode, "work") && argc == 5) {
		work(atof(argv[2]), argv[3], (unsigned)atoi(argv[4]));
		return 0;
	}
	if (!strcmp(mode, "fault"))
		check("cuLaunchKernel", launch(kernel("bad"), 1, NULL));
	else if (!strcmp(mode, "fill"))
		take(argc > 2 ? argv[2] : "", 0);
	else if (!strcmp(mode, "take") && argc == 3)
		take("", (size_t)atol(argv[2]));
	for (;;) {
		printf("cuCtxSynchronize %d\n", find("cuCtxSynchronize")());
		fflush(stdout);
		usleep(250000);
	}
}
