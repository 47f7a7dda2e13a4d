//! The bundle that is measured: a `config.json` of the size and shape that dockerd and containerd
//! write for a service with many settings: Docker's seccomp profile, 200 variables, 20 mounts.

use serde_json::{Value, json};

/// Variables of the container.
const ENV: usize = 200;
/// Mounts of the container, the engine's own included.
pub(crate) const MOUNTS: usize = 20;

/// System calls of Docker's default profile, as far as its first rule allows them without
/// condition.
const SYSCALLS: &str = "accept accept4 access adjtimex alarm bind brk capget capset chdir chmod \
    chown chown32 clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime \
    clock_gettime64 clock_nanosleep clock_nanosleep_time64 close close_range connect copy_file_range \
    creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 \
    epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 \
    fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod fchmodat fchown fchown32 fchownat \
    fcntl fcntl64 fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstat64 \
    fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futex futex_time64 futex_waitv futimesat \
    getcpu getcwd getdents getdents64 getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups \
    getgroups32 getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom \
    getresgid getresgid32 getresuid getresuid32 getrlimit get_robust_list getrusage getsid \
    getsockname getsockopt get_thread_area gettid gettimeofday getuid getuid32 getxattr \
    inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel ioctl io_destroy \
    io_getevents io_pgetevents io_pgetevents_time64 ioprio_get ioprio_set io_setup io_submit ipc kill \
    landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lchown32 lgetxattr link \
    linkat listen listxattr llistxattr _llseek lremovexattr lseek lsetxattr lstat lstat64 madvise \
    membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall \
    mmap mmap2 mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 \
    mq_timedsend mq_timedsend_time64 mq_unlink mremap msgctl msgget msgrcv msgsnd msync munlock \
    munlockall munmap nanosleep newfstatat _newselect open openat openat2 pause pidfd_open \
    pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl \
    pread64 preadv preadv2 prlimit64 process_mrelease pselect6 pselect6_time64 pwrite64 pwritev \
    pwritev2 read readahead readlink readlinkat readv recv recvfrom recvmmsg recvmmsg_time64 recvmsg \
    remap_file_pages removexattr rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction \
    rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait \
    rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_getaffinity sched_getattr sched_getparam \
    sched_get_priority_max sched_get_priority_min sched_getscheduler sched_rr_get_interval \
    sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler \
    sched_yield seccomp select semctl semget semop semtimedop semtimedop_time64 send sendfile \
    sendfile64 sendmmsg sendmsg sendto setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 \
    setgroups setgroups32 setitimer setpgid setpriority setregid setregid32 setresgid setresgid32 \
    setresuid setresuid32 setreuid setreuid32 setrlimit set_robust_list setsid setsockopt \
    set_thread_area set_tid_address setuid setuid32 setxattr shmat shmctl shmdt shmget shutdown \
    sigaltstack signalfd signalfd4 sigprocmask sigreturn socketcall socketpair splice stat stat64 \
    statfs statfs64 statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time \
    timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime \
    timer_settime64 timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime \
    timerfd_settime64 times tkill truncate truncate64 ugetrlimit umask uname unlink unlinkat utime \
    utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid waitpid write writev";

const CAPABILITIES: [&str; 14] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

/// An ordinary container, which asks for nothing of ours.
pub(crate) fn ordinary() -> Value {
    json!({
        "ociVersion": "1.0.2-dev",
        "process": {
            "user": {"uid": 0, "gid": 0, "additionalGids": [0, 10]},
            "args": ["/usr/local/bin/server", "--listen=0.0.0.0:8080", "--workers=16"],
            "env": env(),
            "cwd": "/",
            "capabilities": {"bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES},
            "apparmorProfile": "docker-default",
            "oomScoreAdj": 0
        },
        "root": {"path": "/var/lib/docker/overlay2/6f0e8d7c5b4a39281706f5e4d3c2b1a0/merged"},
        "hostname": "4c01db0b339c",
        "mounts": mounts(),
        "hooks": {"prestart": [{
            "path": "/proc/821/exe",
            "args": ["libnetwork-setkey", "-exec-root=/var/run/docker", "4c01db0b339c", "5d02ec1c440d"]
        }]},
        "linux": {
            "sysctl": {"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0 2147483647"},
            "resources": {
                "devices": device_rules(),
                "memory": {"limit": 4_294_967_296_i64, "swap": 8_589_934_592_i64, "disableOOMKiller": false},
                "cpu": {"shares": 1024, "period": 100_000, "quota": 400_000},
                "pids": {"limit": 4096},
                "blockIO": {"weight": 0}
            },
            "cgroupsPath": "/docker/4c01db0b339c",
            "namespaces": [
                {"type": "mount"}, {"type": "network"}, {"type": "uts"}, {"type": "pid"}
            ],
            "seccomp": {
                "defaultAction": "SCMP_ACT_ERRNO",
                "defaultErrnoRet": 1,
                "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
                "syscalls": seccomp_rules()
            },
            "maskedPaths": [
                "/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
                "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"
            ],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
        }
    })
}

/// The same container with a request.
pub(crate) fn with_request() -> Value {
    let mut spec = ordinary();
    spec["annotations"] = json!({"mpsgate.io/gpu-mem": "256Mi"});
    spec
}

fn env() -> Vec<String> {
    let mut env = vec![
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        "HOSTNAME=4c01db0b339c".to_owned(),
    ];
    // What a kubelet adds for each service of a namespace.
    env.extend((0..ENV - env.len()).map(|i| {
        let (service, address) = (i / 4, format!("10.96.{}.17", i / 4));
        let (kind, value) = match i % 4 {
            0 => ("SERVICE_HOST", address),
            1 => ("SERVICE_PORT_HTTP", "8080".to_owned()),
            2 => ("PORT_8080_TCP", format!("tcp://{address}:8080")),
            _ => ("PORT_8080_TCP_ADDR", address),
        };
        format!("STOREFRONT_CHECKOUT_BACKEND_BLUE_{service:03}_{kind}={value}")
    }));
    env
}

fn mounts() -> Vec<Value> {
    let own = [
        ("/proc", "proc", "proc", vec!["nosuid", "noexec", "nodev"]),
        ("/dev", "tmpfs", "tmpfs", vec!["nosuid", "strictatime", "mode=755", "size=65536k"]),
        (
            "/dev/pts",
            "devpts",
            "devpts",
            vec!["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        ("/sys", "sysfs", "sysfs", vec!["nosuid", "noexec", "nodev", "ro"]),
        ("/sys/fs/cgroup", "cgroup", "cgroup", vec!["ro", "nosuid", "noexec", "nodev"]),
        ("/dev/mqueue", "mqueue", "mqueue", vec!["nosuid", "noexec", "nodev"]),
    ];
    let mut mounts: Vec<Value> = own
        .into_iter()
        .map(|(destination, kind, source, options)| {
            json!({"destination": destination, "type": kind, "source": source, "options": options})
        })
        .collect();
    mounts.extend((mounts.len()..MOUNTS).map(|i| {
        json!({
            "destination": format!("/srv/volume-{i:02}"),
            "type": "bind",
            "source": format!("/var/lib/docker/volumes/data-{i:02}/_data"),
            "options": ["rbind", "rprivate", "rw"]
        })
    }));
    mounts
}

fn device_rules() -> Vec<Value> {
    let mut rules = vec![json!({"allow": false, "access": "rwm"})];
    for (major, minor) in [(1, 5), (1, 3), (1, 9), (1, 8), (5, 0), (5, 1)] {
        rules.push(
            json!({"allow": true, "type": "c", "major": major, "minor": minor, "access": "rwm"}),
        );
    }
    rules
}

fn seccomp_rules() -> Vec<Value> {
    let names: Vec<&str> = SYSCALLS.split_whitespace().collect();
    let mut rules = vec![json!({"names": names, "action": "SCMP_ACT_ALLOW"})];
    for value in [0, 8, 131_072, 131_080, 4_294_967_295_u64] {
        rules.push(json!({
            "names": ["personality"], "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": value, "op": "SCMP_CMP_EQ"}]
        }));
    }
    rules.push(json!({
        "names": ["clone"], "action": "SCMP_ACT_ALLOW",
        "args": [{"index": 0, "value": 2_114_060_288, "op": "SCMP_CMP_MASKED_EQ"}]
    }));
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_the_size_that_budgets_are_stated_for() {
        let size = ordinary().to_string().len();
        assert!((22 * 1024 + 512..23 * 1024 + 512).contains(&size), "{size} bytes");
    }
}
