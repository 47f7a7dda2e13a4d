//! What somebody wrote into the API server's objects.

use std::collections::BTreeMap;

use mpsgate_kubernetes::{Container, Kind, Life, Limits, Pod};

/// Annotations of a scheduler, which whoever makes a pod can write: the first line is V1's index, the rest V2's JSON.
/// Cards come from what is written, and from nowhere else.
pub(crate) fn chosen_cards(data: &[u8]) {
    let Some(text) = crate::text(data) else { return };
    let (index, allocation) = text.split_once('\n').unwrap_or((text, ""));
    let container = |name: &str| Container {
        name: name.to_owned(),
        kind: Kind::Main,
        limits: Ok(Limits::default()),
        life: Life::Waiting,
    };
    let annotations = [
        ("ALIYUN_COM_GPU_MEM_IDX", index),
        ("scheduler.framework.gpushare.allocation", allocation),
    ];
    let pod = Pod {
        uid: "u".to_owned(),
        namespace: "n".to_owned(),
        name: "p".to_owned(),
        static_hash: None,
        finished: false,
        deleting: false,
        gpu_count: None,
        annotations: BTreeMap::from(
            annotations.map(|(key, value)| (key.to_owned(), value.to_owned())),
        ),
        containers: vec![container("a"), container("b")],
    };
    for name in ["a", "b", "absent"] {
        for card in pod.chosen_cards(name) {
            assert!(text.contains(&card.to_string()), "{card} is in no annotation");
        }
    }
}
