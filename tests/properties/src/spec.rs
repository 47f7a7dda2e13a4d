//! Documents that an engine writes: `config.json`, the process of `exec`, and the state that a
//! runtime writes to a hook.

use mpsgate_config::{Policy, Privileged, Unallocated, VisibleDevices};
use mpsgate_model::{
    CdiEdits, CdiHook, CdiMount, ContainerId, DeviceNode, GpuUuid, Grant, GrantKey, GrantedCard,
    Guarantee, Instance, NodeCard,
};
use mpsgate_oci::hook_state::{HookState, MAX_BYTES};
use mpsgate_oci::process_edit::rewrite_env;
use mpsgate_oci::spec::{Document, Edit, Layers, Mount, Seen, View, glance, parse};
use mpsgate_policy::{
    Action, Bytes, CLIENT_DIRECTORY, Cards, Decision, Held, Injector, Input, Ipc, Node,
    SharedMemory, Shm, Unruled, Verdict, Wanted, decide, grant_edits, grant_env, may_matter,
    settle,
};
use serde_json::{Map, Value};

const HOOK: &str = "/usr/bin/mpsgate-hook";
const ROOT_OWNED: [&str; 5] = ["process", "mounts", "linux", "hooks", "annotations"];

/// What is parsed is written the same; the glance shows what the document shows; a document in
/// which nothing may matter passes untouched under every policy; and edits, of a refusal's cure or
/// of a grant, keep what they do not know and are the same twice.
pub(crate) fn config_json(data: &[u8]) {
    let mut shown = Vec::new();
    let mut matters = false;
    let glanced = glance(&mut &*data, &mut |seen| {
        matters |= may_matter(&seen);
        // The one that is about several parts.
        if seen != Seen::OpenProcSys {
            shown.push(format!("{seen:?}"));
        }
    });
    let document = match parse(data) {
        Ok(document) => document,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert!(glanced.is_ok(), "the glance refuses a document that can be parsed");
    round_trip(data, &document);
    shown.sort();
    assert_eq!(shown, viewed(document.view()), "the glance shows something else");
    for policy in policies() {
        for node in [Node::unknown(), node()] {
            let decision = decided(document.view(), &node, &policy, Action::Create);
            if !matters {
                assert_eq!(decision.verdict, Verdict::Pass, "what cannot matter was not passed");
            }
            match decision.verdict {
                Verdict::Edit(edits) => {
                    drop(edited(data, &edits));
                    settled(data, &edits, decision.held, &node);
                }
                Verdict::Reserve(wanted) => granted(data, &document, &wanted, &node),
                Verdict::Refuse(refusal) => {
                    assert!(!refusal.sentence.is_empty() && !refusal.hint.is_empty());
                }
                Verdict::Pass => {}
            }
        }
    }
}

fn round_trip(data: &[u8], document: &Document) {
    let text = document.to_vec().unwrap();
    let again = parse(&text).unwrap().to_vec().unwrap();
    let tree = |text: &[u8]| serde_json::from_slice::<Value>(text).ok();
    if again != text {
        // An integer beyond 64 bits becomes a fraction too.
        let (Some(once), Some(twice)) = (tree(&text), tree(&again)) else {
            panic!("written twice it differs")
        };
        assert!(same(&once, &twice), "{once}, written again, is {twice}");
    }
    // An independent parser sees the same tree. It takes the last of two keys where ours, inside
    // seccomp, keeps both.
    let (Some(before), Some(after)) = (tree(data), tree(&text)) else { return };
    assert!(same(&before, &after), "{before} was written as {after}");
}

/// Equality but for the last bits of fractions, which OCI does not have.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            (a - b).abs() <= a.abs() * 1e-15
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && same(a.1, b.1))
        }
        _ => a == b,
    }
}

fn viewed(view: View<'_>) -> Vec<String> {
    let layers: Vec<_> = view
        .mount_entries()
        .flat_map(|entry| entry.layers().into_iter().map(move |path| (path, entry.destination)))
        .collect();
    let layers = layers.iter().map(|(path, destination)| Seen::Layer { path, destination });
    let mut viewed: Vec<String> = view
        .annotations()
        .map(|(name, _)| Seen::Annotation(name))
        .chain(view.env().map(|(name, _)| Seen::Variable(name)))
        .chain(view.devices().map(Seen::Device))
        .chain(view.device_rules().map(Seen::Rule))
        .chain(view.mounts().map(Seen::Mount))
        .chain(layers)
        .chain(view.root().map(|root| Seen::Root(root.source)))
        .map(|seen| format!("{seen:?}"))
        .collect();
    viewed.sort();
    viewed
}

fn policies() -> Vec<Policy> {
    let strip = Policy {
        unallocated: Unallocated::Strip,
        visible_devices: VisibleDevices::Strip,
        privileged: Privileged::Close,
        ..Policy::default()
    };
    vec![Policy::default(), strip]
}

fn node() -> Node {
    let card = |index: u32, managed| NodeCard {
        uuid: GpuUuid::parse(&format!("GPU-{index:08x}-0000-4000-8000-000000000000")).unwrap(),
        index,
        minor: index,
        managed,
    };
    let mut node = Node {
        cards: Cards::Known(vec![card(0, true), card(1, false), card(2, true)]),
        ipc_inode: Some(1),
        shm: Some((1, 2)),
        shared_memory: SharedMemory::Unknown,
        swarm_resources: vec!["DOCKER_RESOURCE_GPU".to_owned()],
        ..Node::unknown()
    };
    for (name, major) in [("nvidia-caps", 236), ("nvidia-uvm", 510)] {
        node.majors.insert(name, major);
    }
    node
}

fn decided(view: View<'_>, node: &Node, policy: &Policy, action: Action) -> Decision {
    decide(&Input {
        view,
        node,
        policy,
        requests_from_env: true,
        mounts: &[],
        ipc: Ipc::Inode(1),
        shm: Shm::Servers,
        users: mpsgate_policy::Users::OfSpec,
        pids: mpsgate_policy::Pids::Own,
        unruled: Unruled::Closed,
        caller: mpsgate_policy::Caller::Unknown,
        action,
        runtime_is_nvidia: false,
    })
}

/// The document after edits, which change it once and no more, and nothing but what they are about.
fn edited(data: &[u8], edits: &[Edit]) -> Option<Document> {
    let mut document = parse(data).unwrap();
    let before = object(&document);
    // A part of another type than the edit needs: the shim refuses the container.
    document.apply(edits).ok()?;
    let once = document.to_vec().unwrap();
    let after = object(&document);
    for (key, value) in &before {
        let now = after.get(key);
        assert!(now.is_some(), "{key} is gone");
        if !ROOT_OWNED.contains(&key.as_str()) {
            assert_eq!(now, Some(value), "{key} changed");
        }
    }
    let kept: Vec<&String> = after.keys().filter(|key| before.contains_key(*key)).collect();
    assert!(kept.into_iter().eq(before.keys()), "the order changed");
    document.apply(edits).unwrap();
    assert_eq!(document.to_vec().unwrap(), once, "the same edits twice change more");
    Some(document)
}

/// What is not refused after its edits has no managed card within reach, where that was promised.
fn settled(data: &[u8], edits: &[Edit], held: Held, node: &Node) {
    let mut document = parse(data).unwrap();
    if settle(&mut document, edits, held, node, Unruled::Closed).is_err() || held == Held::Nothing {
        return;
    }
    let view = document.view();
    let of_card = |major, minor| major == 195 && node.manages_minor(minor);
    for minor in [0, 2] {
        assert!(!view.rules_open(195, Some(minor)), "a rule opens 195:{minor}");
    }
    assert!(!view.rules_open(236, Some(1)) || node.majors.caps.is_none(), "MIG is open");
    let left = view.devices().find(|d| d.is_character() && of_card(d.major, d.minor));
    assert_eq!(left, None, "a node is left");
}

fn object(document: &Document) -> Map<String, Value> {
    serde_json::from_slice(&document.to_vec().unwrap()).unwrap()
}

/// A container that is given what it asks for has the grant's env once, one client directory, its
/// own card, and no other managed card.
fn granted(data: &[u8], document: &Document, wanted: &Wanted, node: &Node) {
    let grant = grant();
    for injector in [Injector::Devices, Injector::NvidiaRuntime, Injector::Cdi(cdi())] {
        let Ok(edits) = grant_edits(document.view(), wanted, &grant, &injector, HOOK) else {
            continue;
        };
        let Some(after) = edited(data, &edits) else { continue };
        let view = after.view();
        let (_, set) = grant_env(wanted, &grant, &injector);
        for (name, value) in &set {
            let found: Vec<&str> =
                view.env().filter(|(n, _)| n == name).map(|(_, value)| value).collect();
            assert_eq!(found.last(), Some(&value.as_str()), "{name} is not the grant's");
        }
        let clients: Vec<Mount<'_>> =
            view.mounts().filter(|mount| mount.destination == CLIENT_DIRECTORY).collect();
        assert!(
            matches!(clients[..], [mount] if mount.source == grant.client_dir && mount.is_bind())
        );
        assert_eq!(view.hooks().filter(|hook| hook.path == HOOK).count(), 2);
        let others = view.devices().filter(|device| {
            device.is_character() && device.major == 195 && device.minor < 254 && device.minor != 0
        });
        assert_eq!(others.count(), 0, "another card is left");
        if injector == Injector::Devices {
            assert!(
                view.rules_open(195, Some(0)) && view.devices().any(|d| d.path == "/dev/nvidia0")
            );
        }
        // What the edits leave is again a request that may be served: a bundle is created twice.
        let again = decided(view, node, &Policy::default(), Action::Create);
        assert!(
            !matches!(again.verdict, Verdict::Pass | Verdict::Edit(_)),
            "a granted bundle is no request any more: {again:?}"
        );
    }
}

fn grant() -> Grant {
    let device = |path: &str, major, minor| DeviceNode { path: path.to_owned(), major, minor };
    Grant {
        key: GrantKey {
            runtime_root: "/run/runc".to_owned(),
            container_id: ContainerId::parse("c").unwrap(),
            instance: Instance::from_bytes([7; 16]),
        },
        cards: vec![GrantedCard {
            uuid: GpuUuid::parse("GPU-00000000-0000-4000-8000-000000000000").unwrap(),
            index: 0,
            minor: 0,
        }],
        memory: mpsgate_model::Mib(7168),
        uid: 0,
        compute: None,
        priority: mpsgate_model::Priority::Normal,
        client_dir: "/run/mpsgate/mps/0/client".to_owned(),
        devices: vec![device("/dev/nvidia0", 195, 0), device("/dev/nvidiactl", 195, 255)],
        guarantee: Guarantee::Mps,
        user: None,
    }
}

fn cdi() -> CdiEdits {
    let text = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    CdiEdits {
        env: vec![("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned())],
        devices: vec![DeviceNode { path: "/dev/nvidia0".to_owned(), major: 195, minor: 0 }],
        mounts: vec![CdiMount {
            source: "/usr/lib/libcuda.so.1".to_owned(),
            destination: "/usr/lib/libcuda.so.1".to_owned(),
            options: text(&["ro", "rbind"]),
        }],
        hooks: vec![CdiHook {
            stage: "createContainer".to_owned(),
            path: "/usr/bin/nvidia-cdi-hook".to_owned(),
            args: text(&["nvidia-cdi-hook", "update-ldcache"]),
            env: Vec::new(),
            timeout_s: None,
        }],
        gids: vec![44],
    }
}

/// Our variables come last and once, other entries and fields stay in their order, twice is once,
/// and a document of another shape is left as it was.
pub(crate) fn process_document(data: &[u8]) {
    let Ok(mut document) = parse(data) else { return };
    let drop = ["CUDA_VISIBLE_DEVICES", "CUDA_MPS_LOG_DIRECTORY"];
    let set: Vec<(String, String)> = [("CUDA_MPS_PIPE_DIRECTORY", "/run/mpsgate/mps"), ("A", "=")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
    let before = document.value_mut().clone();
    let changed = match rewrite_env(document.value_mut(), &drop, &set) {
        Ok(changed) => changed,
        Err(error) => {
            assert!(error.to_string().contains("env"), "{error}");
            assert_eq!(*document.value_mut(), before);
            return;
        }
    };
    let after = document.value_mut().clone();
    assert_eq!(changed, after != before);
    let list = |value: &Value| value["env"].as_array().cloned().unwrap_or_default();
    let name = |entry: &Value| {
        entry.as_str().and_then(|text| text.split_once('=')).map(|(name, _)| name.to_owned())
    };
    let is_ours = |entry: &Value| {
        name(entry).is_some_and(|n| drop.contains(&&*n) || set.iter().any(|(ours, _)| *ours == n))
    };
    let mut expected: Vec<Value> = list(&before).into_iter().filter(|e| !is_ours(e)).collect();
    expected.extend(set.iter().map(|(name, value)| Value::from(format!("{name}={value}"))));
    assert_eq!(list(&after), expected);
    let others = |value: &Value| -> Vec<(String, Value)> {
        let fields = value.as_object().unwrap().clone();
        fields.into_iter().filter(|(key, _)| key != "env").collect()
    };
    assert_eq!(others(&after), others(&before));
    assert!(!rewrite_env(document.value_mut(), &drop, &set).unwrap(), "twice is not once");
}

/// The lines as paths, escaped as the kernel wants it, are each a layer of `lowerdir`, in whatever
/// options; and the text as it stands is read without a panic.
pub(crate) fn overlay_options(data: &[u8]) {
    let Some(text) = crate::text(data) else { return };
    let found = Layers::of(text);
    assert!(found.paths.iter().all(|path| !path.is_empty()));
    assert!(found.paths.len() <= 2 * text.len(), "more layers than letters");
    let paths: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let escaped = |path: &&str| -> String {
        let letter = |c| if matches!(c, '\\' | ',' | ':') { vec!['\\', c] } else { vec![c] };
        path.chars().flat_map(letter).collect()
    };
    let written: Vec<String> = paths.iter().map(escaped).collect();
    for colons in [":", "::"] {
        let option = format!("metacopy=on,lowerdir={},index=off", written.join(colons));
        let found = Layers::of(&option);
        assert!(!found.is_open);
        let missing = paths.iter().find(|path| !found.paths.iter().any(|one| one == *path));
        assert_eq!(missing, None, "of {option}");
    }
}

/// A state has an id and a pid that a process can have, or its error says what is missing.
pub(crate) fn hook_state(data: &[u8]) {
    match (HookState::parse(data), HookState::read(data)) {
        (Ok(state), Ok(read)) => {
            assert_eq!(state, read);
            assert!(!state.id.is_empty() && state.pid.is_none_or(|pid| pid > 0));
            assert!(data.len() <= MAX_BYTES);
        }
        (Err(error), Err(read)) => {
            assert_eq!(error.to_string(), read.to_string());
            assert!(error.to_string().contains("standard input") && !error.hint().is_empty());
        }
        (parsed, read) => panic!("{parsed:?} is not {read:?}"),
    }
}

/// Hands out so many bytes at once.
struct Pieces<'a>(&'a [u8], usize);

impl std::io::Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let (n, rest) = (self.1.min(self.0.len()).min(into.len()), self.0);
        into[..n].copy_from_slice(&rest[..n]);
        self.0 = &rest[n..];
        Ok(n)
    }
}

/// What not every runtime reads alike shows the same however it is cut into pieces, shows what a
/// reader sees that takes the last of two keys, and gets the same answer from the runtime and from
/// `explain`.
pub(crate) fn unparsable(data: &[u8]) {
    let shown = |size: usize| {
        let mut shown = Vec::new();
        let glanced = glance(&mut Pieces(data, size), &mut |seen| shown.push(format!("{seen:?}")));
        glanced.is_ok().then_some(shown)
    };
    let expected = shown(1 << 16);
    let size = 1 + usize::from(data.first().copied().unwrap_or_default());
    for size in [1, size] {
        assert_eq!(shown(size), expected, "in pieces of {size}");
    }
    if let Ok(tree) = serde_json::from_slice::<Value>(data)
        && tree.is_object()
        && !data.windows(5).any(|part| part == b"u0000")
    {
        let expected = expected.expect("an object that serde takes is a document");
        for part in viewed(View::new(&tree)) {
            // A mount of a second list may be a bind by what Go takes from the first. What an entry
            // is in another spelling is said to be unclear, and what a rule denies opens nothing.
            let bound = ["Layers", "Nothing", "Unknown"]
                .map(|shows| part.replace(&format!("shows: {shows}"), "shows: Source"));
            let found = expected.contains(&part)
                || expected.iter().any(|shown| shown == "Unclear")
                || part.contains("allow: false")
                || bound.iter().any(|part| expected.contains(part));
            assert!(found, "{part} was not shown: {expected:#?}");
        }
    }
    explained_as_decided(data);
}

/// The runtime and `explain` decide alike, as far as they can know the same: mounts are told by
/// path here and by inode there, and a namespace that is joined is looked at.
pub(crate) fn explained_as_decided(data: &[u8]) {
    let holds = |word: &[u8]| data.windows(word.len()).any(|part| part == word);
    if holds(b"mpsgate/") || holds(b"mpsgate\"") || holds(b"namespaces") {
        return;
    }
    // Under "own" a document without namespaces would be granted, and explain alone has a grant's
    // edits to look at.
    let mut config = mpsgate_config::Config::default();
    config.policy.host_pid = mpsgate_config::HostPid::Refuse;
    let runtime = mpsgate_shim::fuzz::decided(Bytes::Whole(data), Node::unknown(), config.clone());
    let explain = mpsgate_cli::fuzz::explained(Bytes::Whole(data), &config);
    assert_eq!(runtime, explain, "of a whole document");
    let runtime = mpsgate_shim::fuzz::decided(
        Bytes::Pieces(&mut Pieces(data, 7)),
        Node::unknown(),
        config.clone(),
    );
    let explain = mpsgate_cli::fuzz::explained(Bytes::Pieces(&mut Pieces(data, 64)), &config);
    assert_eq!(runtime, explain, "of one that is read in pieces");
    assert!(
        runtime.is_none_or(|found| matches!(found.verdict, Verdict::Pass | Verdict::Refuse(_))),
        "what is read in pieces cannot be changed"
    );
}
