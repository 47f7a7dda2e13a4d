//! What is counted and timed as it happens.

use std::time::Duration;

use mpsgate_api::Done;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

type Label = (&'static str, &'static str);
/// Counted by one label.
type Counts = Family<[Label; 1], Counter>;
/// Timed by one label.
type Times = Family<[Label; 1], Histogram, fn() -> Histogram>;

/// Seconds. A reservation takes a millisecond; one that waits for an MPS server, some seconds, and
/// at most `mps.start_timeout_s`.
const BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0];

/// How a call ended.
const GRANTED: Label = ("outcome", "granted");
const REFUSED: Label = ("outcome", "refused");

/// Counted since the start. Clones share what they count.
#[derive(Debug, Clone)]
pub(crate) struct Events {
    pub(crate) actions: Counts,
    pub(crate) reserve: Times,
    pub(crate) activate: Times,
}

impl Events {
    /// All at zero, and there: of a series that begins with 1, Prometheus does not see the first
    /// event.
    pub(crate) fn new() -> Self {
        let times: fn() -> Histogram = || Histogram::new(BUCKETS);
        let new = Self {
            actions: Counts::default(),
            reserve: Times::new_with_constructor(times),
            activate: Times::new_with_constructor(times),
        };
        for what in [Done::Killed, Done::Reported, Done::Failed] {
            let _ = new.actions.get_or_create(&[("what", what.as_str())]);
        }
        for outcome in [GRANTED, REFUSED] {
            let _ = new.reserve.get_or_create(&[outcome]);
            let _ = new.activate.get_or_create(&[outcome]);
        }
        new
    }

    /// Something was done to a container or process, or was to be.
    pub(crate) fn acted(&self, what: Done) {
        self.actions.get_or_create(&[("what", what.as_str())]).inc();
    }

    /// `reserve` was answered.
    pub(crate) fn reserved(&self, after: Duration, granted: bool) {
        time(&self.reserve, after, granted);
    }

    /// `activate` was answered.
    pub(crate) fn activated(&self, after: Duration, granted: bool) {
        time(&self.activate, after, granted);
    }
}

fn time(times: &Times, after: Duration, granted: bool) {
    let outcome = if granted { GRANTED } else { REFUSED };
    times.get_or_create(&[outcome]).observe(after.as_secs_f64());
}
