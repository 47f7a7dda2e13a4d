/* libcuda.so.1 for a dry run of tests/gpu/run: a client of the double of nvidia-cuda-mps-control.
 *
 * Where the pipe directory has a `control` it attaches there, waits while another uid is served, gets the
 * lower of the server's limit and its own, and hears of its end; elsewhere it is a process with the whole
 * card. It computes nothing. What a real libcuda does is what tests/gpu/run asks.
 */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define OUT_OF_MEMORY 2
#define MPS_ENABLED 133
#define MPS_RPC_FAILURE 806
#define MPS_SERVER_NOT_READY 807
#define MPS_CLIENT_TERMINATED 810
#define MIB ((size_t)1 << 20)
#define CARD (16384 * MIB)

static int control = -1, lost, attached;
static size_t left = CARD, limit = CARD;

/* The answer of the control daemon, without the byte that marks a packet; NULL at its end. */
static const char *told(void)
{
	static char text[256];
	ssize_t count = recv(control, text, sizeof text - 1, 0);

	if (count <= 0)
		return NULL;
	text[count] = 0;
	return text + 1;
}

static int attach(void)
{
	const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY"), *own = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), *answer;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	unsigned long long bytes = 0, mib = 0;

	if (attached++)
		return 0;
	snprintf(address.sun_path, sizeof address.sun_path, "%s/control", pipe ? pipe : "/tmp/nvidia-mps");
	control = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (control < 0 || connect(control, (struct sockaddr *)&address, sizeof address)) {
		control = -1;
		return 0;
	}
	if (send(control, "+CLIENT", 7, MSG_NOSIGNAL) != 7)
		return MPS_RPC_FAILURE;
	do
		answer = told();
	while (answer && !strcmp(answer, "PENDING"));
	if (!answer || sscanf(answer, "SERVER %*s %llu", &bytes) != 1)
		return MPS_SERVER_NOT_READY;
	if (bytes && bytes < limit)
		limit = bytes;
	if (own && sscanf(own, "0=%lluM", &mib) == 1 && mib && mib * MIB < limit)
		limit = mib * MIB;
	left = limit;
	return 0;
}

/* Whether the server still serves: it says nothing until there is an end. */
static int alive(void)
{
	struct pollfd fd = { .fd = control, .events = POLLIN };

	if (control >= 0 && !lost && poll(&fd, 1, 0) > 0) {
		const char *answer = told();
		lost = answer && !strcmp(answer, "TERMINATE") ? MPS_CLIENT_TERMINATED : MPS_RPC_FAILURE;
	}
	return lost;
}

int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *device, int n) { *device = n; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	*value = attribute == MPS_ENABLED && control >= 0;
	return device;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &left; return device + attach(); }
int cuDevicePrimaryCtxRelease_v2(int device) { return device; }
int cuCtxSetCurrent(void *context) { return context == &left ? 0 : 201; }
int cuCtxCreate_v2(void **context, unsigned flags, int device) { *context = &left; return (int)flags + device + attach(); }
int cuCtxSynchronize(void) { return alive(); }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = left; *total = CARD; return alive(); }
int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes)
{
	if (bytes > left)
		return OUT_OF_MEMORY;
	left -= bytes;
	*pointer = 1;
	return alive();
}
int cuMemFree_v2(unsigned long long pointer) { return pointer == 1 ? 0 : 1; }
int cuModuleLoadData(void **module, const void *image) { *module = (void *)image; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name)
{
	*function = module;
	return strstr(module, name) ? 0 : 500;
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
		   void *stream, void **arguments, void **extra)
{
	struct timespec while_it_runs = { .tv_nsec = 200000 };

	(void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)arguments, (void)extra;
	nanosleep(&while_it_runs, NULL);
	return function ? alive() : 400;
}
int cuGetErrorName(int code, const char **name)
{
	*name = code == MPS_SERVER_NOT_READY ? "CUDA_ERROR_MPS_SERVER_NOT_READY" : "CUDA_ERROR_FAKE";
	return 0;
}
