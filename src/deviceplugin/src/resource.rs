//! How kubelet is served a resource: what is the same for every resource of a kind.

use mpsgate_model::Resource;

/// How many of it one container may have.
pub(crate) fn most(resource: Resource) -> Option<usize> {
    matches!(resource, Resource::Slice(_)).then_some(1)
}

/// Whether its containers get the environment by which applications of gpushare size themselves.
pub(crate) fn has_seeds_env(resource: Resource) -> bool {
    matches!(resource, Resource::Memory | Resource::Unit(_))
}

/// The file name of its socket, which is ours alone: kubelet's directory is shared by all plugins.
pub(crate) fn socket_name(resource: Resource) -> String {
    format!("mpsgate-{}.sock", resource.to_string().replace('/', "_"))
}
