//! A daemon for the driver's tests.

#![allow(unreachable_pub, clippy::unwrap_used, reason = "a part of a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use mpsgate_dra::{Event, Host, Pending, PreparedDevice};
use mpsgate_model::ClaimName;

/// A daemon that prepares claims and records events. The beginning of a claim's name decides its
/// outcome: `refused`, `hangs`.
#[derive(Default)]
pub struct Daemon {
    pub events: Mutex<Vec<String>>,
    /// Each call at its beginning, with the claim's uid.
    pub calls: Mutex<Vec<String>>,
    /// How many claims were given up half-way.
    pub given_up: Mutex<usize>,
    /// By uid.
    prepared: Mutex<BTreeMap<String, Vec<PreparedDevice>>>,
    busy: Mutex<BTreeSet<String>>,
}

/// One call. There must be no other for the same uid.
struct Call<'a> {
    daemon: &'a Daemon,
    uid: String,
    ended: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.daemon.busy.lock().unwrap().remove(&self.uid);
        if !self.ended {
            *self.daemon.given_up.lock().unwrap() += 1;
        }
    }
}

impl Daemon {
    pub fn count(&self, sentence: &str) -> usize {
        self.events.lock().unwrap().iter().filter(|event| event.contains(sentence)).count()
    }

    pub fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    pub fn prepared(&self) -> Vec<String> {
        self.prepared.lock().unwrap().keys().cloned().collect()
    }

    async fn begin(&self, verb: &str, claim: &ClaimName) -> Result<Call<'_>, String> {
        self.calls.lock().unwrap().push(format!("{verb} {}", claim.uid));
        assert!(self.busy.lock().unwrap().insert(claim.uid.clone()), "two at once: {claim:?}");
        let mut call = Call { daemon: self, uid: claim.uid.clone(), ended: false };
        if claim.name.starts_with("hangs") {
            std::future::pending::<()>().await;
        }
        // Long enough for another call to come between.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        call.ended = true;
        if claim.name.starts_with("refused") {
            return Err(format!("{claim}: no card has 7 GiB left\nrun mpsgate status"));
        }
        Ok(call)
    }
}

impl Host for Daemon {
    fn prepare(&self, claim: ClaimName) -> Pending<'_, Result<Vec<PreparedDevice>, String>> {
        Box::pin(async move {
            let _call = self.begin("prepare", &claim).await?;
            let mut prepared = self.prepared.lock().unwrap();
            let devices = prepared.entry(claim.uid.clone()).or_insert_with(|| {
                vec![PreparedDevice {
                    request: "gpu/large".to_owned(),
                    pool: "node-1".to_owned(),
                    device: "gpu-0".to_owned(),
                    share_id: Some("b6c1f3f2-share".to_owned()),
                    cdi_ids: vec![format!("mpsgate.io/claim={}", claim.uid)],
                }]
            });
            Ok(devices.clone())
        })
    }

    fn unprepare(&self, claim: ClaimName) -> Pending<'_, Result<(), String>> {
        Box::pin(async move {
            let _call = self.begin("unprepare", &claim).await?;
            self.prepared.lock().unwrap().remove(&claim.uid);
            Ok(())
        })
    }

    fn tell(&self, event: Event) {
        self.events.lock().unwrap().push(format!("{:?}: {event}", event.level()));
    }
}
