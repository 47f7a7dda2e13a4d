/* libcuda.so.1 for a dry run of tests/gpu/run: a client of the fake nvidia-cuda-mps-control.
 *
 * Where the pipe directory has a `control` it attaches there with the real library's words (wire.rs beside the
 * fake), waits while another uid is served, gets the lower of the server's limit and its own, and hears of its end; elsewhere it is a process with the whole
 * card. It computes nothing. What a real libcuda does is what tests/gpu/run asks.
 *
 * A word in /usr/bin/fake-libcuda.word makes it one that mpsgate qualify has to find out:
 *   deaf        no client attaches             obedient    keeps to its own variable alone
 *   boundless   nobody is stopped              shm         wants the marker in /dev/shm
 *   crash       ends in the middle             hang        never answers
 *   chatty      prints what nobody asked       past        attaches without MPS
 *   exclusive   finds the card busy without MPS
 *   strange     fails without MPS, and not for a busy card
 *   stingy      stops where no limit is
 *   unreadable  drops every limit where its own variable names another GPU or cannot be read, as
 *               580.159.04 does (measured, on an H200)
 *   alone       attaches as root alone       immortal    goes on when it was terminated
 *   summed      all of a container are held to its grant in sum, as by the driver's limit of a cgroup
 *   slicing     launches while nobody else does
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define OUT_OF_MEMORY 2
#define MPS_ENABLED 133
#define DEVICE_UNAVAILABLE 46
#define UNKNOWN 999
#define MAP_FAILED 205
#define MPS_RPC_FAILURE 806
#define MPS_SERVER_NOT_READY 807
#define MPS_CLIENT_TERMINATED 810
#define MIB ((size_t)1 << 20)
#define CARD (16384 * MIB)

static int server = -1, lost, attached;
static size_t left = CARD, limit = CARD;

/* One message; its descriptor, if it has one, in *got. */
static ssize_t hear(int fd, void *bytes, size_t size, int *got)
{
	union { struct cmsghdr head; char space[256]; } control;
	struct iovec to = { bytes, size };
	struct msghdr message = { .msg_iov = &to, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	ssize_t count = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);

	for (struct cmsghdr *one = CMSG_FIRSTHDR(&message); count > 0 && one; one = CMSG_NXTHDR(&message, one))
		if (got && one->cmsg_level == SOL_SOCKET && one->cmsg_type == SCM_RIGHTS)
			memcpy(got, CMSG_DATA(one), sizeof *got);
	return count;
}

static int say(int fd, int word)
{
	return send(fd, &word, sizeof word, MSG_NOSIGNAL) == sizeof word;
}

/* Our credentials, which the kernel vouches for. */
static int say_who(int fd)
{
	union { struct cmsghdr head; char space[CMSG_SPACE(sizeof(struct ucred))]; } control = {
		.head = { .cmsg_len = CMSG_LEN(sizeof(struct ucred)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_CREDENTIALS },
	};
	struct ucred who = { getpid(), geteuid(), getegid() };
	struct iovec from = { "OUTBCRED", 9 };
	struct msghdr message = { .msg_iov = &from, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };

	memcpy(CMSG_DATA(&control.head), &who, sizeof who);
	return sendmsg(fd, &message, MSG_NOSIGNAL) == 9;
}

/* The server's descriptors, our words, its status: 0, with what the first descriptor holds, or an error. */
static int meet_server(unsigned long long told[4])
{
	int first = -1, other, status;
	char bytes[64];

	for (int i = 0; i < 4; i++) {
		other = -1;
		if (hear(server, bytes, sizeof bytes, i ? &other : &first) <= 0)
			return MPS_RPC_FAILURE;
		if (other >= 0)
			close(other);
	}
	if (hear(server, bytes, sizeof bytes, NULL) <= 0 || !say(server, getpid()) || !say(server, 0) || !say(server, 255))
		return MPS_RPC_FAILURE;
	if (hear(server, &status, sizeof status, NULL) != sizeof status)
		return MPS_RPC_FAILURE;
	if (read(first, told, 4 * sizeof *told) != 4 * sizeof *told)
		return MPS_RPC_FAILURE;
	close(first);
	return status;
}

static int is(const char *word)
{
	char found[16] = "";
	FILE *file = fopen("/usr/bin/fake-libcuda.word", "r");

	if (!file)
		return 0;
	if (fscanf(file, "%15s", found) != 1)
		found[0] = 0;
	fclose(file);
	return !strcmp(found, word);
}

static int attach(void)
{
	const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY"), *own = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	unsigned long long told[4] = { 0 }, mib = 0;
	int control, on = 1, status;
	char hello[16];

	if (attached++)
		return 0;
	if (is("crash"))
		abort();
	while (is("hang"))
		sleep(1);
	if (is("chatty"))
		printf("{\"step\": 1}\n\x1b[31mCUDA\n"), fflush(stdout);
	if (is("deaf"))
		return MPS_RPC_FAILURE;
	if (is("past"))
		return 0;
	if (is("alone") && geteuid())
		return UNKNOWN;
	if (is("shm") && access("/dev/shm/mpsgate-fake-server", F_OK))
		return MAP_FAILED;
	snprintf(address.sun_path, sizeof address.sun_path, "%s/control", pipe ? pipe : "/tmp/nvidia-mps");
	control = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (control < 0 || setsockopt(control, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) ||
	    connect(control, (struct sockaddr *)&address, sizeof address)) {
		close(control);
		return is("exclusive") ? DEVICE_UNAVAILABLE : is("strange") ? UNKNOWN : 0;
	}
	if (hear(control, hello, sizeof hello, NULL) != 9 || !say_who(control) || !say(control, 2) ||
	    hear(control, hello, sizeof hello, &server) <= 0 || server < 0)
		return MPS_RPC_FAILURE;
	status = meet_server(told);
	if (!say(control, status))
		return MPS_RPC_FAILURE;
	close(control);
	if (status)
		return status;
	if (is("boundless"))
		return 0;
	if (told[3] && told[3] < limit && !is("obedient"))
		limit = told[3];
	if (own && sscanf(own, "0=%lluM", &mib) == 1 && mib && mib * MIB < limit)
		limit = mib * MIB;
	if (own && is("unreadable") && (strchr(own, ',') || !strchr(own, '=')))
		limit = CARD;
	left = is("stingy") ? MIB : limit;
	return 0;
}

/* Whether the server still serves: it says nothing until there is an end. */
static int alive(void)
{
	struct pollfd fd = { .fd = server, .events = POLLIN };
	int word;

	if (server >= 0 && !lost && poll(&fd, 1, 0) > 0) {
		int told = hear(server, &word, sizeof word, NULL) == sizeof word && word == MPS_CLIENT_TERMINATED;
		if (told && is("immortal"))
			return 0;
		lost = told ? MPS_CLIENT_TERMINATED : MPS_RPC_FAILURE;
	}
	return lost;
}

/* A file that all of a container have in common, as it is found: who opens it has it alone. */
static int common(const char *what)
{
	char path[64] = "/proc/1/stat", began[512] = "";
	int fd;

	/* The first process's start, in ticks: no other container has begun in the same. */
	if (!*what) {
		FILE *first = fopen(path, "r");
		if (!first || fscanf(first, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %500s", began) != 1)
			abort();
		fclose(first);
	}
	snprintf(path, sizeof path, "/dev/shm/mpsgate-fake-%.20s%.20s", *what ? what : "sum.", began);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd >= 0)
		flock(fd, LOCK_EX);
	return fd;
}

/* Whether so much is left of what the container has in sum. */
static int in_sum(size_t bytes)
{
	size_t sum = 0;
	int fd = common(""), is;

	is = fd >= 0 && pread(fd, &sum, sizeof sum, 0) >= 0 && sum + bytes <= limit;
	sum += bytes;
	is = is && pwrite(fd, &sum, sizeof sum, 0) == sizeof sum;
	close(fd);
	return is;
}

int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *device, int n) { *device = n; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	*value = attribute == MPS_ENABLED && server >= 0;
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
	if (bytes > left || (is("summed") && !in_sum(bytes)))
		return OUT_OF_MEMORY;
	left -= bytes;
	*pointer = 1;
	return alive();
}
int cuMemCreate(unsigned long long *handle, size_t bytes, const void *properties, unsigned long long flags)
{
	(void)properties;
	(void)flags;
	return cuMemAlloc_v2(handle, bytes);
}
int cuMemAllocAsync(unsigned long long *pointer, size_t bytes, void *stream)
{
	(void)stream;
	return cuMemAlloc_v2(pointer, bytes);
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
	int turn = is("slicing") ? common("turn") : -1;

	nanosleep(&while_it_runs, NULL);
	if (turn >= 0)
		close(turn);
	return function ? alive() : 400;
}
int cuGetErrorName(int code, const char **name)
{
	*name = code == MPS_SERVER_NOT_READY ? "CUDA_ERROR_MPS_SERVER_NOT_READY" : "CUDA_ERROR_FAKE";
	return 0;
}
