/*
 * Preloaded into Slurm's daemons by slurm.bash where MG_UNIFIED=1 hides cgroup v1 of a hybrid
 * machine: /proc/PID/cgroup goes on naming v1's hierarchies, at which Slurm's plugin for v2 ends.
 * Whoever opens such a file reads v2's line alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int is_membership(const char *path)
{
	size_t length = strlen(path);

	return !strncmp(path, "/proc/", 6) && length > 7 && !strcmp(path + length - 7, "/cgroup");
}

static int unified(int from)
{
	char line[8192];
	FILE *file = fdopen(from, "r");
	int to = memfd_create("cgroup", MFD_CLOEXEC);

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, "0::", 3) && write(to, line, strlen(line)) < 0)
			break;
	if (file)
		fclose(file);
	lseek(to, 0, SEEK_SET);
	return to;
}

#define OPEN(name)                                                            \
	int name(const char *path, int flags, ...)                            \
	{                                                                     \
		int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, #name); \
		mode_t mode = 0;                                              \
		va_list rest;                                                 \
		int fd;                                                       \
                                                                              \
		va_start(rest, flags);                                        \
		if (flags & (O_CREAT | O_TMPFILE))                            \
			mode = va_arg(rest, mode_t);                          \
		va_end(rest);                                                 \
		fd = real(path, flags, mode);                                 \
		return fd >= 0 && is_membership(path) ? unified(fd) : fd;     \
	}

OPEN(open)
OPEN(open64)
