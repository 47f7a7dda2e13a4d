//! Pods are kept from a node whose handler bypasses mpsgate, by what the API server says of nodes
//! and RuntimeClasses now; with no webhook.

use std::time::Duration;

use serde_json::json;

use super::{PATIENCE, Scheduler, world};

#[tokio::test]
async fn a_pod_is_neither_sent_nor_bound_to_a_node_whose_handler_bypasses_and_is_once_it_leads() {
    let mut world = world(&["a", "plain"]);
    world.add_class("nvidia");
    world.set_round("n1", &["nvidia"]);
    world.set_class("a", "nvidia");
    let scheduler = Scheduler::active(world).await;
    let args = |name: &str| {
        let pod = scheduler.world(|world| world.get(&format!("pods/{name}")));
        json!({"Pod": pod, "NodeNames": ["n1"]})
    };
    // Until its class has been heard of.
    let filtered = tokio::time::timeout(PATIENCE, async {
        loop {
            let filtered = scheduler.post("filter", &args("a")).await;
            if filtered["Error"] == "" {
                return filtered;
            }
            let said = filtered["Error"].as_str().unwrap();
            assert!(said.contains("not known yet; try again"), "{filtered}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let filtered = filtered.await.expect("in time");
    assert_eq!(filtered["NodeNames"], json!([]));
    let why = "its handler nvidia bypasses mpsgate, and the pod's RuntimeClass names it";
    assert_eq!(filtered["FailedAndUnresolvableNodes"]["n1"], why);
    assert!(scheduler.bind("a", "n1").await.ends_with(why));
    assert_eq!(scheduler.used().await, 0);
    assert_eq!(scheduler.asked("POST /api/v1/namespaces/default/pods/a/binding"), 0);
    // Pods of another handler meet nothing of it.
    assert_eq!(scheduler.post("filter", &args("plain")).await["NodeNames"], json!(["n1"]));
    assert_eq!(scheduler.bind("plain", "n1").await, "");

    scheduler.world(|world| world.set_round("n1", &[]));
    let open = tokio::time::timeout(PATIENCE, async {
        while scheduler.post("filter", &args("a")).await["NodeNames"] != json!(["n1"]) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    open.await.expect("the node's new word is heard");
    assert_eq!(scheduler.bind("a", "n1").await, "");
}
