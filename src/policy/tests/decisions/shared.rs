//! The IPC namespace and `/dev/shm` of a container with a request, as a table: what the settings
//! say, what the node's MPS servers were seen to do, which namespace it has and what it has at
//! `/dev/shm`.

use std::fmt::Write;

use mpsgate_config::Ipc as IpcPolicy;
use mpsgate_policy::{Ipc, SharedMemory, Shm, Verdict};
use mpsgate_testing::golden;
use serde_json::json;

use crate::cases::{Case, HOST_IPC, asking, case};
fn outcome(case: &Case) -> String {
    let decision = case.decide();
    let notes: Vec<String> = decision.notes.iter().map(|note| note.code.to_string()).collect();
    let word = match decision.verdict {
        Verdict::Reserve(_) => "granted".to_owned(),
        Verdict::Refuse(refusal) => format!("refused {}", refusal.code),
        other => panic!("{other:?}"),
    };
    [vec![word], notes].concat().join(" ")
}

#[test]
fn the_namespace_and_dev_shm_count_as_recorded() {
    let policies = [
        ("require-host", IpcPolicy::RequireHost),
        ("auto", IpcPolicy::Auto),
        ("any", IpcPolicy::Any),
    ];
    let namespaces = [("host's", Ipc::Inode(HOST_IPC)), ("own", Ipc::New)];
    let shms = [
        ("server's", Shm::Servers),
        ("another", Shm::Other("a tmpfs of its own".to_owned())),
        ("unknown", Shm::Unknown),
    ];
    let mut text =
        format!("{:13} {:10} {:10} {:9} outcome\n", "policy.ipc", "seen", "namespace", "/dev/shm");
    for (policy_word, policy) in policies {
        for seen in SharedMemory::ALL {
            for (namespace, ipc) in &namespaces {
                for (what, shm) in &shms {
                    let row = case("", asking(json!({})))
                        .policy(|settings| settings.ipc = policy)
                        .ipc(ipc.clone())
                        .shm(shm.clone(), seen);
                    let (seen, outcome) = (seen.as_str(), outcome(&row));
                    writeln!(text, "{policy_word:13} {seen:10} {namespace:10} {what:9} {outcome}")
                        .unwrap();
                }
            }
        }
    }
    golden!("shared_memory.txt", &text);
}

/// What a container in a namespace of its own is told, by what its node has shown.
#[test]
fn a_refusal_says_what_the_node_has_shown_and_what_helps() {
    let shms =
        [("server's", Shm::Servers), ("another", Shm::Other("a tmpfs of its own".to_owned()))];
    let mut text = String::new();
    for policy in [IpcPolicy::RequireHost, IpcPolicy::Auto] {
        for seen in SharedMemory::ALL {
            for (what, shm) in &shms {
                let row = case("", asking(json!({})))
                    .policy(|settings| settings.ipc = policy)
                    .ipc(Ipc::New)
                    .shm(shm.clone(), seen);
                let Verdict::Refuse(refusal) = row.decide().verdict else { continue };
                writeln!(text, "# policy.ipc {policy}, seen {}, /dev/shm {what}", seen.as_str())
                    .unwrap();
                writeln!(text, "{refusal}\n  hint: {}\n", refusal.hint).unwrap();
            }
        }
    }
    golden!("host_ipc.txt", &text);
}

#[test]
fn nobody_is_asked_without_mps_or_a_request() {
    let other = || Shm::Other("a tmpfs of its own".to_owned());
    let case = case("", asking(json!({}))).ipc(Ipc::New).shm(other(), SharedMemory::Required);
    assert_eq!(outcome(&crate::sharing(case)), "granted");
    let plain = crate::case("", json!({})).ipc(Ipc::New).shm(other(), SharedMemory::Required);
    assert_eq!(plain.decide().verdict, Verdict::Pass);
    assert!(plain.decide().notes.is_empty());
}
