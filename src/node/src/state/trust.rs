//! Which requests are trusted: that of a user who is root anyway, and that of the device plugin.

use std::num::NonZeroU32;

use mpsgate_api::{Engine, Reserve};
use mpsgate_config::Switch;
use mpsgate_model::{Code, ComputeShare, GpuUuid, GrantKey, Handed, Mib, Refusal};
use mpsgate_policy::schedule;

use super::Node;

/// What kubelet or the API server has confirmed of a container's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmed {
    /// GPU memory.
    pub memory: Mib,
    /// Cards over which it is spread, in equal parts: the pod's label, where the API server has
    /// told it.
    pub cards: NonZeroU32,
    /// Its share of each card's compute, where its limits name one.
    pub compute: Option<ComputeShare>,
    /// The cards that were chosen for it: taken where they serve.
    pub hints: Vec<GpuUuid>,
    /// It was a scheduler that chose them, and not kubelet's ids.
    pub placed: bool,
    /// To whom, and as which resource.
    pub handed: Handed,
}

impl Confirmed {
    /// What one of its resource is worth, of which each card has a whole number. GiB where the name
    /// does not say it.
    pub fn unit(&self) -> Mib {
        schedule::unit_of(&self.handed.resource)
    }
}

impl Node {
    /// How much memory a request is trusted to be for; `confirmed` is what its token says.
    pub(super) fn believe(
        &self,
        call: &Reserve,
        confirmed: Option<&Confirmed>,
    ) -> Result<Mib, Refusal> {
        let local = self.trust_local.is_on(!self.kubelet);
        let unconfirmed =
            |sentence: &str, hint: &str| Err(Refusal::new(Code::Unconfirmed, sentence, hint));
        match (call.engine, confirmed, call.request.memory) {
            (Engine::Kubernetes, Some(confirmed), _) => Ok(confirmed.memory),
            (Engine::Local, _, Some(memory)) if local || self.asks(call) => Ok(memory),
            (Engine::User, _, Some(memory)) if local => self.within_quota(&call.key, memory),
            // Its controller has said so to mpsgated.
            (Engine::Slurm, _, Some(memory)) => Ok(memory),
            // Without a kubelet nobody but root speaks CRI; that there will be none, root has to
            // say.
            (Engine::Kubernetes, None, Some(memory))
                if self.trust_local == Switch::On && !self.kubelet =>
            {
                Ok(memory)
            }
            (Engine::Local | Engine::User, ..) if self.trust_local == Switch::Off => unconfirmed(
                "requests of local engines are not trusted here (trust.local = \"off\")",
                "set trust.local = \"on\" in /etc/mpsgate/config.toml and run: mpsgate reload, if everybody \
                 who can start containers on this node may have GPU memory",
            ),
            (Engine::Local | Engine::User, ..) => unconfirmed(
                "a kubelet runs on this node, so requests of local engines are not trusted",
                "start it as a pod, or set trust.local = \"on\" in /etc/mpsgate/config.toml and run: \
                 mpsgate reload",
            ),
            (Engine::Slurm, ..) => unconfirmed(
                "Slurm has given the job no GPU memory",
                "ask for shards: sbatch --gres=shard:7",
            ),
            (Engine::Kubernetes, ..) => unconfirmed(
                "it was started by a kubelet, and a pod's annotations count only with a token of this node's \
                 device plugin (mpsgate.io/grant), which it does not have",
                "ask for it in the container's resources.limits (aliyun.com/gpu-mem: 7, in GiB) where the node \
                 offers that, which mpsgate doctor shows on it, or remove the GPU memory annotation; where no \
                 kubelet runs and CRI is used by root, set trust.local = \"on\" in /etc/mpsgate/config.toml and \
                 run: mpsgate reload",
            ),
        }
    }

    /// The memory, where the user may have that beside the other processes'.
    fn within_quota(&self, key: &GrantKey, memory: Mib) -> Result<Mib, Refusal> {
        let own = self.ledger.entries().iter().filter(|entry| {
            entry.grant.key.runtime_root == key.runtime_root && !entry.grant.key.same_container(key)
        });
        let (mut grants, mut has) = (0_u32, Mib(0));
        for entry in own {
            grants += 1;
            has = Mib(has.0.saturating_add(entry.grant.memory.0));
        }
        self.quota.check(grants, has, memory).map(|()| memory)
    }
}
