//! A grant as edits of the spec, and as env for `exec`.

use std::collections::HashSet;

use mpsgate_config::InjectMode;
use mpsgate_model::{
    Cdi, CdiEdits, Code, ComputeShare, DeviceNode, GRANTED_CARDS, GRANTED_MEMORY, Grant, Mib,
    Priority, Refusal,
};
use mpsgate_oci::spec::{Edit, HookStage, View};

use crate::decision::Wanted;
use crate::node_facts::{CTL_MINOR, NVIDIA_MAJOR};
use crate::path::inside;
use crate::reach::{is_card, nodes_away};

/// Where a granted container finds its door.
pub const CLIENT_DIRECTORY: &str = "/run/mpsgate/mps";
/// Seconds for the hook: its own checks and mpsgated's answer take milliseconds, but an MPS server
/// that has to be started once more takes seconds. Below kubelet's limit for a request to the
/// engine, 2 minutes.
pub(crate) const HOOK_TIMEOUT_S: u32 = 40;
/// The hook's whole environment. Explicit, because a hook without one inherits the runtime's.
pub(crate) const HOOK_ENV: &str = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
/// What gives a node its CDI specification.
const GENERATE: &str =
    "nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml";
/// Linux' major of display nodes (`/dev/dri`), NVIDIA's among them.
const DRM_MAJOR: u32 = 226;

/// The edits of a grant that are known before mpsgated chooses its card: those of the request, and
/// of the devices NVIDIA's control device, which comes with every card. It brings a rule, and a
/// list with a rule is another one to crun than none ([`crate::Unruled::OpenWithoutRules`]).
#[must_use]
pub fn edits_of_any_grant(
    view: View<'_>,
    wanted: &Wanted,
    mode: InjectMode,
    runtime_is_nvidia: bool,
) -> Vec<Edit> {
    let mut edits = wanted.edits.clone();
    let cdi = Cdi::Edits(CdiEdits::default());
    let injector = Injector::choose(mode, runtime_is_nvidia, view, cdi);
    if injector.is_ok_and(|injector| injector.adds_nodes()) {
        let (path, major, minor) = ("/dev/nvidiactl".to_owned(), NVIDIA_MAJOR, CTL_MINOR);
        edits.push(Edit::AddDevice { path, major, minor, uid: 0 });
    }
    edits
}

/// What brings the card and the driver's files into the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Injector {
    /// nvidia-container-runtime below us, or its hook in the spec: it acts on the env.
    NvidiaRuntime,
    /// The driver's files are in the spec already, by who was asked before us: our own device
    /// nodes.
    Present,
    /// The node's CDI specifications, and of our own device nodes what they lack.
    Cdi(CdiEdits),
    /// Our own device nodes; the image has the driver's files.
    Devices,
}

impl Injector {
    /// Chooses by the setting and by what there is. A container never gets bare nodes, with which
    /// no CUDA program can start, unless the setting says so.
    ///
    /// # Errors
    /// Where nothing would bring a driver library into the container.
    pub fn choose(
        mode: InjectMode,
        runtime_is_nvidia: bool,
        view: View<'_>,
        cdi: Cdi,
    ) -> Result<Self, Refusal> {
        match mode {
            InjectMode::Devices => return Ok(Self::Devices),
            InjectMode::Cdi => {}
            // NVIDIA's runtime takes its hook out where it injects by itself: who has it wants it
            // run.
            _ if crate::has_nvidia_hook(view) => return Ok(Self::NvidiaRuntime),
            _ if crate::has_driver(view) => return Ok(Self::Present),
            InjectMode::NvidiaRuntime => return Ok(Self::NvidiaRuntime),
            InjectMode::Auto if runtime_is_nvidia => return Ok(Self::NvidiaRuntime),
            InjectMode::Auto => {}
        }
        match cdi {
            Cdi::Edits(edits) => Ok(Self::Cdi(edits)),
            Cdi::Problem(problem) => Err(no_driver(format!(
                "the driver's files cannot be brought into it: {problem}"
            ))),
            Cdi::Absent if mode == InjectMode::Cdi => Err(no_driver(
                "the driver's files cannot be brought into it: no CDI specification in /etc/cdi or \
                 /var/run/cdi names the card by its UUID or index"
                    .to_owned(),
            )),
            Cdi::Absent => Err(no_driver(
                "it would get its card without a driver library: this node has neither \
                 nvidia-container-runtime in runtime.path nor a CDI specification of the card"
                    .to_owned(),
            )),
        }
    }

    /// Whether the device nodes are ours to add.
    fn adds_nodes(&self) -> bool {
        matches!(self, Self::Present | Self::Devices | Self::Cdi(_))
    }
}

fn no_driver(sentence: String) -> Refusal {
    Refusal::new(
        Code::NoDriverLibs,
        sentence,
        format!(
            "{GENERATE}; or install the NVIDIA container toolkit and set runtime.path = \
             \"nvidia-container-runtime\" in /etc/mpsgate/config.toml; or, for images that bring the \
             driver's libraries, set inject.mode = \"devices\" there"
        ),
    )
}

/// The variables that a granted process must have, and those that it must not: for `config.json`
/// and for every `exec`.
#[must_use]
pub fn grant_env(
    wanted: &Wanted,
    grant: &Grant,
    injector: &Injector,
) -> (Vec<String>, Vec<(String, String)>) {
    let (mut drop, set) = env_within(grant, wanted.own_limit, wanted.own_share, injector);
    drop.extend(wanted.claim_variables.iter().cloned());
    (drop, set)
}

/// The same, but for variables of the request's own; memory and compute at most these.
pub(crate) fn env_within(
    grant: &Grant,
    own_limit: Option<Mib>,
    own_share: Option<ComputeShare>,
    injector: &Injector,
) -> (Vec<String>, Vec<(String, String)>) {
    let mut set = Vec::new();
    if grant.uses_mps() {
        set = mps_env(grant, own_limit, own_share);
    }
    // What CDI brings or brought in, NVIDIA's runtime below must not bring in again.
    let visible = match injector {
        Injector::Cdi(_) | Injector::Present => Vec::new(),
        _ => grant.cards.iter().map(|card| card.uuid.as_str()).collect(),
    };
    let visible = if visible.is_empty() { "void".to_owned() } else { visible.join(",") };
    set.push(("NVIDIA_VISIBLE_DEVICES".to_owned(), visible));
    set.extend(told(grant));
    let drop = [
        "CUDA_VISIBLE_DEVICES",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_CLIENT_PRIORITY",
        "CUDA_MPS_LOG_DIRECTORY",
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
        "CUDA_MPS_SM_PARTITION",
        "CUDA_MPS_PROTOCOL_VERSION",
    ];
    // Under MPS these are set, which drops what was there.
    let without_mps = ["CUDA_MPS_PIPE_DIRECTORY", MPS_LIMIT];
    let also = without_mps.iter().filter(|_| !grant.uses_mps());
    (drop.iter().chain(also).map(|name| (*name).to_owned()).collect(), set)
}

/// What tells a program how much it has, and where: CUDA shows it the whole card as its total.
#[must_use]
pub fn told(grant: &Grant) -> [(String, String); 2] {
    let cards: Vec<&str> = grant.cards.iter().map(|card| card.uuid.as_str()).collect();
    [
        (GRANTED_MEMORY.to_owned(), grant.memory.0.to_string()),
        (GRANTED_CARDS.to_owned(), cards.join(",")),
    ]
}

/// The variable by which a CUDA process is held to its memory (NVIDIA MPS documentation).
pub const MPS_LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

/// What a granted process has in it.
#[must_use]
pub fn mps_limit(memory: Mib) -> String {
    format!("0={}M", memory.0)
}

/// What [`mps_limit`] wrote.
#[must_use]
pub fn mps_limit_of(value: &str) -> Option<Mib> {
    value.strip_prefix("0=")?.strip_suffix('M')?.parse().ok().map(Mib)
}

/// What makes a process a client of the card's MPS, within the grant.
fn mps_env(
    grant: &Grant,
    own_limit: Option<Mib>,
    own_share: Option<ComputeShare>,
) -> Vec<(String, String)> {
    let memory = own_limit.map_or(grant.memory, |own| own.min(grant.memory));
    let mut set = vec![
        ("CUDA_MPS_PIPE_DIRECTORY".to_owned(), CLIENT_DIRECTORY.to_owned()),
        // The card is device 0 of its MPS server, and the only one that the container sees.
        (MPS_LIMIT.to_owned(), mps_limit(memory)),
    ];
    let share = match (grant.compute, own_share) {
        (Some(granted), Some(own)) => Some(granted.0.min(own.0)),
        (granted, own) => granted.or(own).map(|share| share.0),
    };
    if let Some(share) = share {
        set.push(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(), share.to_string()));
    }
    if grant.priority == Priority::Low {
        set.push(("CUDA_MPS_CLIENT_PRIORITY".to_owned(), "1".to_owned()));
    }
    set
}

/// The edits that put a grant into the container's spec.
///
/// # Errors
/// Where the spec mounts something over the place of the MPS directory.
pub fn grant_edits(
    view: View<'_>,
    wanted: &Wanted,
    grant: &Grant,
    injector: &Injector,
    hook: &str,
) -> Result<Vec<Edit>, Refusal> {
    let mut edits = wanted.edits.clone();
    let (drop, set) = grant_env(wanted, grant, injector);
    if let Injector::Cdi(cdi) = injector {
        edits.extend(cdi_edits(grant, cdi)?);
    }
    edits.push(Edit::Env { drop, set });
    if grant.uses_mps() {
        edits.push(client_mount(view, grant, &edits)?);
    }
    if *injector == Injector::Present && names_other_card(view, grant) {
        edits.extend(without_displays(view));
    }
    // What a CDI specification lacks, because it was made before the driver's modules were all
    // there, is granted all the same.
    let brought = match injector {
        Injector::Cdi(cdi) => cdi.devices.as_slice(),
        _ => &[],
    };
    let numbers = |device: &DeviceNode| (device.major, device.minor);
    let lacking = |device: &&DeviceNode| brought.iter().all(|b| numbers(b) != numbers(device));
    if injector.adds_nodes() {
        edits.extend(grant.devices.iter().filter(lacking).map(added));
    }
    let key = &grant.key;
    // A bundle that is created again still holds the hooks of its last grant.
    edits.push(Edit::RemoveHooks { path: hook.to_owned() });
    for (stage, word) in
        [(HookStage::CreateRuntime, "createRuntime"), (HookStage::Poststop, "poststop")]
    {
        edits.push(Edit::AddHook {
            stage,
            path: hook.to_owned(),
            args: vec![
                "mpsgate-hook".to_owned(),
                word.to_owned(),
                format!("--root={}", key.runtime_root),
                format!("--instance={}", key.instance.as_str()),
            ],
            env: vec![HOOK_ENV.to_owned()],
            timeout_s: Some(HOOK_TIMEOUT_S),
        });
    }
    Ok(edits)
}

/// The mount of its door.
fn client_mount(view: View<'_>, grant: &Grant, edits: &[Edit]) -> Result<Edit, Refusal> {
    let removed: HashSet<&str> = edits
        .iter()
        .filter_map(|edit| match edit {
            Edit::RemoveMount { destination } => Some(destination.as_str()),
            _ => None,
        })
        .collect();
    let taken = view.mounts().find(|mount| {
        let place = inside(mount.destination);
        match place.strip_prefix(CLIENT_DIRECTORY) {
            Some("") => !removed.contains(mount.destination),
            below => below.is_some_and(|rest| rest.starts_with('/')),
        }
    });
    if let Some(mount) = taken {
        return Err(Refusal::new(
            Code::Spec,
            format!("it mounts {:?} where its MPS directory belongs", mount.destination),
            format!("mount it elsewhere than below {CLIENT_DIRECTORY}"),
        ));
    }
    Ok(Edit::Bind {
        source: grant.client_dir.clone(),
        destination: CLIENT_DIRECTORY.to_owned(),
        options: ["bind", "ro", "nosuid", "nodev", "noexec", "rprivate"]
            .map(str::to_owned)
            .to_vec(),
    })
}

/// Whether whoever injected the driver brought in another card than the granted one.
fn names_other_card(view: View<'_>, grant: &Grant) -> bool {
    view.devices().any(|d| d.is_character() && is_other_card(grant, d.major, d.minor))
}

fn is_other_card(grant: &Grant, major: u32, minor: u32) -> bool {
    is_card(major, minor) && grant.cards.iter().all(|card| card.minor != minor)
}

/// Takes the display nodes away: through them memory of a card can be had, and a spec does not say
/// whose card each is. CUDA needs none.
fn without_displays(view: View<'_>) -> Vec<Edit> {
    let displays = view.devices().filter(|d| d.is_character() && d.major == DRM_MAJOR);
    let mut edits = nodes_away(displays);
    edits.push(Edit::RemoveRules { major: DRM_MAJOR, minor: None });
    edits
}

fn added(device: &DeviceNode) -> Edit {
    let DeviceNode { path, major, minor } = device.clone();
    Edit::AddDevice { path, major, minor, uid: 0 }
}

/// What CDI asks for. A specification that would bring in another card than the granted one is
/// wrong.
fn cdi_edits(grant: &Grant, cdi: &CdiEdits) -> Result<Vec<Edit>, Refusal> {
    let spec_error = |why: String| {
        Refusal::new(
            Code::NoDriverLibs,
            format!("the CDI specification of its card cannot be applied: {why}"),
            GENERATE,
        )
    };
    let mut edits = vec![Edit::Env { drop: Vec::new(), set: cdi.env.clone() }];
    for device in &cdi.devices {
        if is_other_card(grant, device.major, device.minor) {
            return Err(spec_error(format!("it names {} too", device.path)));
        }
        edits.push(added(device));
    }
    for mount in &cdi.mounts {
        // As in the reference implementation, a mount of the container's own at this place gives
        // way.
        edits.push(Edit::Bind {
            source: mount.source.clone(),
            destination: mount.destination.clone(),
            options: mount.options.clone(),
        });
    }
    for hook in &cdi.hooks {
        let stage = HookStage::parse(&hook.stage)
            .ok_or_else(|| spec_error(format!("it has a hook at {:?}", hook.stage)))?;
        // Never without an environment: runc before 1.3 ran createContainer hooks in the image's
        // own (CVE-2025-23266).
        let env = if hook.env.is_empty() { vec![HOOK_ENV.to_owned()] } else { hook.env.clone() };
        edits.push(Edit::AddHook {
            stage,
            path: hook.path.clone(),
            args: hook.args.clone(),
            env,
            timeout_s: hook.timeout_s,
        });
    }
    if !cdi.gids.is_empty() {
        edits.push(Edit::AddGids(cdi.gids.clone()));
    }
    Ok(edits)
}
