//! The templates from which k3s and RKE2 make containerd's settings. They are Go templates, not
//! TOML, so our handler is appended as text below the distribution's own template, as its
//! documentation says (docs.k3s.io, Advanced Options, "Configuring containerd":
//! `{{ template "base" . }}`).
//!
//! TOML forbids to define a table twice, so the distribution's own handlers and its default cannot
//! be changed here: `default-runtime` of its config.yaml names the default.

use std::path::Path;

use super::RUNC_TYPE;
use super::view::plugin;
use crate::line_ends::{Frame, read};
use crate::{ANNOTATIONS, Change, ConfigureError, Options, Plan, Source};

const BASE: &str = "{{ template \"base\" . }}";
const BEGIN: &str = "# mpsgate: begin (mpsgate configure containerd --undo takes it away)";
const END: &str = "# mpsgate: end";

pub(super) fn plan(
    source: &dyn Source,
    path: &Path,
    options: &Options,
) -> Result<Plan, ConfigureError> {
    let owner = if path.to_string_lossy().contains("rke2") { "rke2" } else { "k3s" };
    let version =
        if path.file_name().is_some_and(|name| name == "config-v3.toml.tmpl") { 3 } else { 2 };
    let block = block(version, options);
    let before = read(source, path)?;
    let (frame, body) = match &before {
        Some(text) => Frame::take_off(path, text)?,
        None => (Frame::default(), format!("{BASE}\n")),
    };
    let body = if body.trim().is_empty() { format!("{BASE}\n") } else { body };
    if !is_on_base(&body) {
        return Err(ConfigureError::Template { path: path.to_owned(), owner, paste: block });
    }
    let after = match (body.find(BEGIN), body.find(END)) {
        (Some(begin), Some(end)) if begin < end => {
            let rest = body.get(end + END.len()..).unwrap_or("").strip_prefix('\n').unwrap_or("");
            format!("{}{block}{rest}", body.get(..begin).unwrap_or(""))
        }
        _ if names(&body, plugin(version), &options.name) => {
            return Err(ConfigureError::NameTaken {
                path: path.to_owned(),
                name: options.name.clone(),
                program: "something of its own".to_owned(),
            });
        }
        _ => format!("{body}\n{block}"),
    };
    let after = frame.put_on(&after);
    let changes = if before.as_deref() == Some(after.as_str()) {
        Vec::new()
    } else {
        vec![Change { path: path.to_owned(), before, after }]
    };
    let mut notes = Vec::new();
    if !options.keep_default {
        notes.push(format!(
            "a template cannot name the default: echo 'default-runtime: {}' >>/etc/rancher/{owner}/config.yaml", options.name));
    }
    notes.push(format!(
        "handlers that {owner} defines by itself (runc, nvidia where it finds the toolkit, crun) bypass mpsgate for pods that name their runtime \
         class. After the restart: mpsgate configure containerd --check --config {}", path.with_file_name("config.toml").display()));
    Ok(Plan {
        changes,
        notes,
        restart: format!(
            "systemctl restart {} (on a node without a server: {owner}-agent)",
            if owner == "k3s" { "k3s" } else { "rke2-server" }
        ),
    })
}

/// With the spaces that Go allows.
fn is_on_base(body: &str) -> bool {
    let squeezed: String = body.chars().filter(|c| !c.is_whitespace() && *c != '-').collect();
    squeezed.contains("{{template\"base\".}}")
}

fn names(body: &str, plugin: &str, name: &str) -> bool {
    body.lines().map(str::trim).any(|line| {
        line.starts_with('[')
            && line.contains(plugin)
            && line.replace(['"', '\''], "").ends_with(&format!(".runtimes.{name}]"))
    })
}

/// `SystemdCgroup` is what the distribution gives its own handlers.
fn block(version: u8, options: &Options) -> String {
    let table = format!("plugins.\"{}\".containerd.runtimes.{}", plugin(version), options.name);
    let annotations = ANNOTATIONS.map(|text| format!("\"{text}\"")).join(", ");
    format!(
        "{BEGIN}\n[{table}]\n  runtime_type = \"{RUNC_TYPE}\"\n  pod_annotations = [{annotations}]\n  container_annotations = [{annotations}]\n\
         [{table}.options]\n  BinaryName = \"{}\"\n  SystemdCgroup = {{{{ .SystemdCgroup }}}}\n{END}\n",
        options.shim
    )
}
