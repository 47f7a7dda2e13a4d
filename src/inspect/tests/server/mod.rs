//! An API server with the nodes and pods of a document, and the command under test.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_types,
    dead_code,
    reason = "test code fails by panicking, starts a program, and no test uses all of it"
)]

use std::path::Path;
use std::process::{Command, Output};

use fake_api_server::{Cluster, World};

pub(crate) struct Server(Cluster);

impl Server {
    pub(crate) fn start(world: World) -> Self {
        Self(Cluster::start(world))
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        self.0.server.kubeconfig.path()
    }

    /// The request lines so far.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.0.server.asked().into_iter().map(|request| request.line).collect()
    }

    /// The command, with this server's kubeconfig.
    pub(crate) fn inspect(&self, args: &[&str]) -> Output {
        inspect(self.kubeconfig(), args)
    }
}

/// The command, with nothing of this machine but the kubeconfig.
pub(crate) fn inspect(kubeconfig: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-inspect-cgpu"))
        .args(args)
        .env_clear()
        .env("KUBECONFIG", kubeconfig)
        .env("HOME", "/nowhere")
        .env("TERM", "xterm")
        .output()
        .unwrap()
}
