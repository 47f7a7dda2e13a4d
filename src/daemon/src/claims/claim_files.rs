//! The CDI specification of each prepared claim: by it the engine puts the claim's tokens into the
//! variables of its pod's containers. The shim takes them out again.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use mpsgate_host::file::{self, Durability, New};
use mpsgate_model::{ClaimShare, Code, PreparedClaim, Refusal};
use mpsgate_token::Share;

use crate::daemon::Daemon;
use crate::error::chain;
use crate::files::FileKind;
use crate::token_store::Tokens;

/// Root's alone: who has the text has the memory, if he can start a container of that pod.
const MODE: u32 = 0o600;
/// Of the directory, which the engine reads.
const DIRECTORY_MODE: u32 = 0o755;

fn refusal(why: &str, path: &Path) -> Refusal {
    Refusal::new(
        Code::Claim,
        format!("its token cannot be handed to the container engine: {why}"),
        format!("look at the directory on the node: ls -ld {0}; df -h {0}", path.display()),
    )
}

/// Writes the file of one claim, with new tokens.
pub(super) async fn write(daemon: &Arc<Daemon>, claim: PreparedClaim) -> Result<(), Refusal> {
    let (tokens, directory) = (Arc::clone(&daemon.tokens), daemon.paths.cdi.clone());
    let sign = move || sign(&tokens, &claim).map(|signed| (claim, signed));
    let (claim, signed) = daemon.files.run(FileKind::Tokens, sign).await?;
    let uid = claim.claim.uid.clone();
    let done =
        daemon.files.run(FileKind::Claims, move || write_one(&directory, &claim, &signed)).await;
    // Unprepared meanwhile, it would be left behind.
    if !daemon.node().ledger().claims().iter().any(|claim| claim.claim.uid == uid) {
        remove(daemon, uid).await?;
    }
    done
}

/// A token for each share.
fn sign(tokens: &Tokens, claim: &PreparedClaim) -> Result<Vec<(String, String)>, Refusal> {
    let sign = |share: &ClaimShare| {
        let of = Share {
            claim: claim.claim.uid.clone(),
            request: share.request.clone(),
            pod: claim.pod_uid.clone(),
        };
        let token = tokens.sign_share(share, of).map_err(|error| {
            let sentence = format!("no token can be made for it: {}", chain(&error));
            Refusal::new(Code::Claim, sentence, error.hint())
        })?;
        Ok((share.request.clone(), token))
    };
    claim.shares.iter().map(sign).collect()
}

fn write_one(
    directory: &Path,
    claim: &PreparedClaim,
    signed: &[(String, String)],
) -> Result<(), Refusal> {
    let failed = |error: io::Error| refusal(&error.to_string(), directory);
    let Some(name) = mpsgate_dra::file_name(&claim.claim.uid) else {
        return Err(refusal("the claim's uid is no name of a file", directory));
    };
    file::make_directory(directory, DIRECTORY_MODE).map_err(failed)?;
    let text = mpsgate_dra::file(claim, signed);
    // A reboot takes it away with the directory, and kubelet prepares again.
    let new = New::of(MODE, Durability::Atomic);
    file::replace(&directory.join(name), text.as_bytes(), &new).map_err(failed)
}

/// Removes the file of one claim; one that is not there is none.
pub(super) async fn remove(daemon: &Arc<Daemon>, claim_uid: String) -> Result<(), Refusal> {
    let directory = daemon.paths.cdi.clone();
    let work = move || {
        let Some(name) = mpsgate_dra::file_name(&claim_uid) else { return Ok(()) };
        match std::fs::remove_file(directory.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(refusal(&error.to_string(), &directory))
            }
            _ => Ok(()),
        }
    };
    daemon.files.run(FileKind::Claims, work).await
}

/// The files' names of what is prepared.
fn names_of(daemon: &Daemon) -> BTreeSet<String> {
    let node = daemon.node();
    let claims = node.ledger().claims().iter();
    claims.filter_map(|claim| mpsgate_dra::file_name(&claim.claim.uid)).collect()
}

/// Writes the files of all claims that are prepared, and removes those of others: a token outlives
/// its key by some days only, and mpsgated may have been away.
pub(super) async fn write_all(daemon: &Arc<Daemon>) -> Result<(), Refusal> {
    let claims = daemon.node().ledger().claims().to_vec();
    let names = names_of(daemon);
    let mut all = Ok(());
    for claim in claims {
        all = all.and(write(daemon, claim).await);
    }
    let directory = daemon.paths.cdi.clone();
    let node = Arc::clone(daemon);
    let work = move || {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // One that was prepared since the list was made has its file.
            let is_ours = mpsgate_dra::is_file_name(&name);
            if is_ours && !names.contains(&name) && !names_of(&node).contains(&name) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    };
    daemon.files.run(FileKind::Claims, work).await;
    all
}
