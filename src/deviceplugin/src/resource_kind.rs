//! The properties of a resource that kubelet is served, by its kind.

use mpsgate_model::Resource;

/// The most devices of it that one container may have.
pub(crate) fn most(resource: Resource) -> Option<usize> {
    matches!(resource, Resource::Slice(_)).then_some(1)
}

/// Whether its containers get the environment by which applications of gpushare size themselves.
pub(crate) fn has_seeds_env(resource: Resource) -> bool {
    matches!(resource, Resource::Memory | Resource::Unit(_))
}

/// The file name of its socket. It has to be unique: all plugins share kubelet's directory.
pub(crate) fn socket_name(resource: Resource) -> String {
    format!("mpsgate-{}.sock", resource.to_string().replace('/', "_"))
}
