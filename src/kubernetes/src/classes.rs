//! The cluster's RuntimeClasses (`node.k8s.io/v1`, from Kubernetes 1.20 on), told one by one.

use std::convert::Infallible;

use mpsgate_model::RuntimeClass;

use crate::cluster_watch::{named, relay};
use crate::follow::follow;
use crate::listen::Lists;
use crate::objects::Objects;
use crate::read::Found;
use crate::wire::WireRuntimeClass;
use crate::{Change, Settings};

fn reduce(class: WireRuntimeClass) -> RuntimeClass {
    RuntimeClass {
        name: class.metadata.name.unwrap_or_default(),
        handler: class.handler,
        selector: class.scheduling.node_selector,
    }
}

/// Follows every RuntimeClass of the cluster, for ever. [`Change::Gone`] has its name.
pub async fn runtime_classes(
    settings: &Settings,
    tell: impl FnMut(Change<RuntimeClass>),
) -> Infallible {
    let of = |class: Found<WireRuntimeClass>| class.ok().map(reduce);
    let told = relay(of, named, tell);
    let all = Objects::<WireRuntimeClass>::all;
    follow(settings, Lists::Cached, "all RuntimeClasses", "", all, told).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_what_matters_of_a_class_and_takes_one_without_a_handler() {
        let read = |json| reduce(serde_json::from_value(json).expect("a class"));
        let class = read(json!({
            "metadata": {"name": "nvidia"}, "handler": "nv", "overhead": {"podFixed": {"cpu": "1"}},
            "scheduling": {"nodeSelector": {"gpu": "yes"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
        }));
        assert_eq!((class.name.as_str(), class.handler.as_str()), ("nvidia", "nv"));
        assert_eq!(class.selector.get("gpu").map(String::as_str), Some("yes"));
        for scheduling in
            [json!(null), json!({}), json!({"nodeSelector": null, "tolerations": null})]
        {
            let class = read(json!({"metadata": {"name": "x"}, "scheduling": scheduling}));
            assert_eq!(class, RuntimeClass { name: "x".to_owned(), ..RuntimeClass::default() });
        }
    }
}
