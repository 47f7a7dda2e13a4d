/* spank_facts.c: a SPANK plugin that writes down when Slurm calls which hook, as whom and in which
 * cgroup, for slurm_facts.bats. Its one argument is a folder:
 *   spank          a line for each call: hook, context, uid, pid, ppid, step, task, devices cgroup
 *   refuse-HOOK    where it exists, that hook says its sentence and returns -1
 * Each hook that can, sets MG_SPANK_HOOK in the task's environment.
 *
 * gcc -shared -fPIC -o spank_facts.so spank_facts.c (libslurm-dev has the header) */
#include <slurm/spank.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SPANK_PLUGIN(mg_facts, 1)

static const char *context(void)
{
	switch (spank_context()) {
	case S_CTX_LOCAL: return "local";
	case S_CTX_REMOTE: return "remote";
	case S_CTX_ALLOCATOR: return "allocator";
	case S_CTX_SLURMD: return "slurmd";
	case S_CTX_JOB_SCRIPT: return "job_script";
	default: return "error";
	}
}

static void cgroup(const char *hierarchy, char *path, size_t size)
{
	char line[512];
	FILE *f = fopen("/proc/self/cgroup", "r");

	snprintf(path, size, "-");
	while (f && fgets(line, sizeof(line), f)) {
		char *name = strchr(line, ':'), *value = name ? strchr(name + 1, ':') : NULL;

		if (!value)
			continue;
		*value = 0;
		if (strcmp(name + 1, hierarchy) == 0) {
			snprintf(path, size, "%s", value + 1);
			path[strcspn(path, "\n")] = 0;
		}
	}
	if (f)
		fclose(f);
}

static int note(spank_t sp, const char *hook, int ac, char **av)
{
	char file[512], name[64], devices[512], freezer[512];
	struct stat st;
	uint32_t job = 0, step = 0;
	uid_t owner = -1;
	int task = -1, set;
	pid_t task_pid = 0;
	const char *job_env = getenv("SLURM_JOB_ID");
	FILE *f;

	if (ac < 1)
		return 0;
	spank_get_item(sp, S_JOB_ID, &job);
	spank_get_item(sp, S_JOB_STEPID, &step);
	spank_get_item(sp, S_JOB_UID, &owner);
	spank_get_item(sp, S_TASK_ID, &task);
	spank_get_item(sp, S_TASK_PID, &task_pid);
	snprintf(name, sizeof(name), "MG_SPANK_%s", hook);
	set = spank_setenv(sp, name, "1", 1);
	cgroup("devices", devices, sizeof(devices));
	cgroup("freezer", freezer, sizeof(freezer));
	snprintf(file, sizeof(file), "%s/spank", av[0]);
	f = fopen(file, "a");
	if (f) {
		char shards[64] = "-";
		spank_getenv(sp, "SLURM_SHARDS_ON_NODE", shards, sizeof(shards));
		fprintf(f, "hook=%s context=%s uid=%d euid=%d pid=%d ppid=%d job=%u step=%x owner=%d task=%d task_pid=%d setenv=%d getenv_shards=%s own_env_job=%s devices=%s freezer=%s\n",
			hook, context(), getuid(), geteuid(), getpid(), getppid(), job, step, owner, task, task_pid, set, shards,
			job_env ? job_env : "-", devices, freezer);
		fclose(f);
	}
	snprintf(file, sizeof(file), "%s/refuse-%s", av[0], hook);
	if (stat(file, &st) == 0) {
		slurm_error("mg: %s refuses: the card has 2 GiB free, the job asks for 7", hook);
		return -1;
	}
	return 0;
}

#define HOOK(name) int slurm_spank_##name(spank_t sp, int ac, char **av) { return note(sp, #name, ac, av); }
HOOK(init)
HOOK(job_prolog)
HOOK(init_post_opt)
HOOK(local_user_init)
HOOK(user_init)
HOOK(task_init_privileged)
HOOK(task_init)
HOOK(task_post_fork)
HOOK(task_exit)
HOOK(job_epilog)
HOOK(slurmd_exit)
HOOK(exit)
