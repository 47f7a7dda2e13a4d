//! The jobs of Slurm's: whose a process is, by its cgroup, and what they are called among grants.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use mpsgate_host::cgroup::{self, CgroupId};
use mpsgate_model::GrantKey;
use mpsgate_policy::slurm_request::{Named, Sluid};

use crate::process_end::{self, ProcessId};

/// How the names of all of them begin.
const NAME: &str = "job-";

/// A job's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) named: Named,
    pub(crate) cgroup: CgroupId,
}

/// The job that a process is of, by the cgroup that Slurm has put it into.
pub(crate) fn of(cgroups: &Path, pid: u32) -> Option<Job> {
    let text = cgroup::text_of(pid)?;
    let path = cgroup::of_devices(&text, cgroup::is_unified())?;
    let is_roots =
        |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == 0);
    let (named, directory) = at(&cgroup::below(cgroups, &path), is_roots)?;
    Some(Job { named, cgroup: CgroupId::of(&directory)? })
}

/// The directory of a job above one of its tasks': `slurm/uid_U/job_J/step_S/task_T` (v1),
/// `slurmstepd.scope/job_J/step_S/user/task_T` (v2; from 26.05 on with the job's SLUID for `job_J`,
/// unless `CgroupJobIdPaths` is yes). A task's directory is the user's, who makes others below it;
/// up to the job's all are root's.
fn at(path: &Path, is_roots: impl Fn(&Path) -> bool) -> Option<(Named, PathBuf)> {
    let mut above = PathBuf::new();
    let (mut is_slurms, mut is_below_scope) = (false, false);
    for part in path.iter() {
        above.push(part);
        if !is_roots(&above) {
            return None;
        }
        let name = OsStr::to_str(part)?;
        if let Some(id) = name.strip_prefix("job_").filter(|_| is_slurms) {
            return Some((Named::Id(id.parse().ok()?), above));
        }
        if let Some(sluid) = Sluid::parse(name).filter(|_| is_below_scope) {
            return Some((Named::Sluid(sluid), above));
        }
        is_below_scope = name.ends_with("slurmstepd.scope");
        is_slurms |= name.starts_with("slurm") || is_below_scope;
    }
    None
}

/// A job's name among grants, which are named by its number.
pub(crate) fn name(job: &Named) -> String {
    format!("{NAME}{job}")
}

/// Which job a grant is of.
pub(crate) fn id(key: &GrantKey) -> Option<u32> {
    let id = key.container_id.as_str().strip_prefix(NAME).filter(|_| key.is_job());
    id?.parse().ok()
}

/// The process of a job that lives longest: the one that is there longest, which with
/// `PrologFlags=Contain` is Slurm's own.
pub(crate) fn oldest(cgroup: &CgroupId) -> Option<ProcessId> {
    let pids = crate::container_cgroup::processes(cgroup).unwrap_or_default();
    pids.into_iter().filter_map(process_end::identify).min_by_key(|process| process.start_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_told_by_directories_of_roots_alone() {
        let roots = |_: &Path| true;
        let found = |path: &str, is_roots: &dyn Fn(&Path) -> bool| {
            at(Path::new(path), is_roots).map(|(id, path)| format!("{id} {}", path.display()))
        };
        let v1 = "/sys/fs/cgroup/devices/slurm/uid_1000/job_7";
        let v2 = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7";
        for (path, below) in [(v1, "/step_batch/task_0/mine"), (v2, "/step_0/user/task_0")] {
            assert_eq!(found(&format!("{path}{below}"), &roots), Some(format!("7 {path}")));
            assert_eq!(found(path, &roots), Some(format!("7 {path}")));
            // Below a user's directory, or one itself.
            assert_eq!(found(path, &|at| !at.ends_with("job_7")), None);
        }
        let forged = "/sys/fs/cgroup/devices/slurm/uid_1000/job_7/step_0/task_0/slurm/job_9";
        assert_eq!(found(forged, &roots), Some(format!("7 {v1}")));
        // Slurm 26.05: the SLUID, right below the scope that holds the steps.
        let scope = "/sys/fs/cgroup/system.slice/node1_slurmstepd.scope";
        let job = format!("{scope}/s5K1KKYAYG5D00");
        let task = format!("{job}/step_0/user/task_0");
        let sluid = Some(format!("s5K1KKYAYG5D00 {job}"));
        assert_eq!(found(&task, &roots), sluid);
        assert_eq!(found(&format!("{task}/slurmstepd.scope/s5K1KKYAYG5D01"), &roots), sluid);
        assert_eq!(found(&task, &|at| !at.ends_with("s5K1KKYAYG5D00")), None);
        assert_eq!(found(&format!("{scope}/system"), &roots), None);
        for none in [
            "/sys/fs/cgroup/system.slice/slurmstepd.scope/s5k1kkyayg5d00/step_0",
            "/sys/fs/cgroup/system.slice/slurmstepd.scope/s5K1KKYAYG5D0/step_0",
            "/sys/fs/cgroup/system.slice/slurmstepd.scope/s5K1KKYAYG5D001/step_0",
            "/sys/fs/cgroup/system.slice/slurmstepd.scope/mine/s5K1KKYAYG5D00/step_0",
            "/sys/fs/cgroup/user.slice/s5K1KKYAYG5D00/step_0",
            "/sys/fs/cgroup/devices/slurm/s5K1KKYAYG5D00/step_0",
            "/sys/fs/cgroup/devices/user.slice",
            "/sys/fs/cgroup/devices/job_7",
            "/sys/fs/cgroup/devices/slurm/uid_1000",
            "/sys/fs/cgroup/devices/slurm/uid_1000/job_x",
        ] {
            assert_eq!(found(none, &roots), None, "{none}");
        }
    }
}
