//! Where a resource stands with kubelet, for status, doctor and metrics.

use mpsgate_api::ResourceStatus;
use mpsgate_deviceplugin::{Event, SocketEvent};
use mpsgate_node::card::Trouble;

/// One resource that is served.
#[derive(Debug, Clone, Default)]
pub(crate) struct Served {
    /// Since when kubelet reads the list; `None` while it does not.
    since_ms: Option<u64>,
    healthy: usize,
    devices: usize,
    allocations: u64,
    /// Why kubelet does not read the list.
    unread: Option<Trouble>,
    /// Why the list is empty.
    unlistable: Option<Trouble>,
    /// Kubelet's requests are no HTTP/2: it is too old.
    malformed: bool,
}

impl Served {
    /// Whether no container can have a token here, whatever is tried.
    pub(crate) fn cannot_work(&self) -> bool {
        self.malformed
    }

    /// Takes note of what happened. Whether [`Self::cannot_work`] has changed, or whether kubelet
    /// reads the list.
    pub(crate) fn take(&mut self, event: &Event, now_ms: u64) -> bool {
        let before = (self.malformed, self.since_ms.is_some());
        match event {
            Event::Watched { healthy, all } => {
                self.since_ms.get_or_insert(now_ms);
                (self.healthy, self.devices) = (*healthy, *all);
                (self.unread, self.malformed) = (None, false);
                if *all > 0 {
                    self.unlistable = None;
                }
            }
            Event::Unlistable(_) => self.unlistable = Some(trouble(event)),
            Event::Malformed => {
                self.malformed = true;
                self.ends(event);
            }
            // Kubelet goes on to ask in vain; why was told once.
            Event::NotWatched { .. } if self.malformed => self.since_ms = None,
            Event::NotWatched { .. }
            | Event::NoKubelet(_)
            | Event::Failed(_)
            | Event::Socket(SocketEvent::Gone(_))
            | Event::Lost => self.ends(event),
            Event::Allocated(_) => self.allocations += 1,
            // Neither changes whether kubelet reads the list.
            _ => {}
        }
        before != (self.malformed, self.since_ms.is_some())
    }

    fn ends(&mut self, event: &Event) {
        self.since_ms = None;
        self.unread = Some(trouble(event));
    }

    /// For `status`, under the resource's name.
    pub(crate) fn status(&self, resource: &str) -> ResourceStatus {
        let not_yet = || Trouble::new("kubelet has not asked for its list yet", NOT_YET_HINT);
        let unread = match self.since_ms {
            Some(_) => None,
            None => Some(self.unread.clone().unwrap_or_else(not_yet)),
        };
        let trouble = unread.or_else(|| self.unlistable.clone());
        let count = |devices| u64::try_from(devices).unwrap_or(u64::MAX);
        ResourceStatus {
            resource: resource.to_owned(),
            registered_ms: self.since_ms,
            devices: count(self.devices),
            healthy: count(self.healthy),
            allocations: self.allocations,
            hint: trouble.as_ref().map(|trouble| trouble.hint.clone()),
            problem: trouble.map(|trouble| trouble.why),
        }
    }
}

const NOT_YET_HINT: &str = "journalctl -u mpsgated -u kubelet -n 50";

fn trouble(event: &Event) -> Trouble {
    Trouble::new(event.to_string(), event.hint().unwrap_or_else(|| NOT_YET_HINT.to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_deviceplugin::DevicesError;

    use super::*;

    const READ: Event = Event::Watched { healthy: 7, all: 15 };

    fn after(events: &[Event]) -> ResourceStatus {
        let mut served = Served::default();
        for (at, event) in (1..).zip(events) {
            served.take(event, at);
        }
        served.status("r")
    }

    #[test]
    fn a_resource_is_registered_from_the_first_list_that_kubelet_read_until_it_reads_no_more() {
        let fresh = after(&[]);
        assert_eq!((fresh.registered_ms, fresh.devices), (None, 0));
        assert!(fresh.problem.unwrap().contains("not asked") && fresh.hint.is_some());
        assert_eq!(after(&[Event::Registered]).registered_ms, None, "kubelet may never ask");
        let read = after(&[Event::Registered, READ, Event::Watched { healthy: 9, all: 15 }]);
        assert_eq!((read.registered_ms, read.healthy, read.devices), (Some(2), 9, 15));
        assert_eq!((read.problem, read.hint), (None, None));
        let lost = after(&[READ, Event::Lost]);
        assert_eq!(lost.registered_ms, None);
        assert_eq!(lost.problem.unwrap(), "kubelet reads the list no longer");
        assert_eq!(after(&[READ, Event::Lost, Event::Registered, READ]).registered_ms, Some(4));
    }

    #[test]
    fn a_kubelet_that_is_too_old_stays_named_until_one_reads() {
        let seconds = 15;
        let old = [Event::Registered, Event::Malformed, Event::NotWatched { seconds }];
        let mut served = Served::default();
        let changed: Vec<bool> = old.iter().map(|event| served.take(event, 1)).collect();
        assert_eq!((changed, served.cannot_work()), (vec![false, true, false], true));
        let status = served.status("r");
        assert!(status.problem.unwrap().contains("malformed HTTP/2"));
        assert!(status.hint.unwrap().contains("upgrade kubelet to 1.27"));
        assert!(served.take(&READ, 9));
        assert!(!served.cannot_work() && served.status("r").problem.is_none());
    }

    #[test]
    fn a_list_that_is_too_long_is_a_problem_although_kubelet_reads_the_empty_one() {
        let too_many = || {
            let resource = "r".to_owned();
            Event::Unlistable(DevicesError::TooMany { resource, devices: 9, fits_mib: 64 })
        };
        let status = after(&[too_many(), Event::Watched { healthy: 0, all: 0 }]);
        assert_eq!(status.registered_ms, Some(2));
        assert!(status.problem.unwrap().contains("nothing is advertised"));
        assert!(status.hint.unwrap().contains("64 MiB"));
        assert_eq!(after(&[too_many(), READ]).problem, None);
    }
}
