//! What is known of the node's runtime handlers: which of them lead through mpsgate. Shown on the
//! node's object and in the metrics; decides nothing about containers.

use std::collections::{BTreeMap, BTreeSet};

use mpsgate_configure::{Finding, Way};
use mpsgate_kubernetes::ConditionReport;
use mpsgate_model::printable;
use mpsgate_model::{By, HandlerReport};

use crate::engine_settings::Reading;

/// Of a condition's message: a node's object is no log.
const LONGEST: usize = 1024;

/// What is known of the node's handlers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Handlers {
    /// As the node's annotation has it.
    pub(crate) report: HandlerReport,
    /// Those of `report.round` that no setting leads through mpsgate.
    beyond: BTreeSet<String>,
    /// What is said of those that bypass mpsgate, a sentence each.
    round: Vec<String>,
    /// Why something is not known.
    unknown: Vec<String>,
}

impl Handlers {
    /// Why nothing is known.
    pub(crate) fn unknown(why: String) -> Self {
        Self { unknown: vec![why], ..Self::default() }
    }

    /// Of all engines that run: a kubelet uses one of them, and which is not known here.
    pub(crate) fn of(readings: &[Reading]) -> Self {
        if readings.is_empty() {
            return Self::unknown(
                "neither containerd nor CRI-O was found running on this node".to_owned(),
            );
        }
        let mut all = Self::default();
        let names: Vec<&str> = readings.iter().map(|reading| reading.engine).collect();
        all.report.engine = names.join(",");
        all.report.by = By::Engine;
        let mut ways: BTreeMap<&str, Way> = BTreeMap::new();
        for reading in readings {
            if !reading.own {
                all.report.by = all.report.by.min(By::Files);
            }
            let found = match &reading.said {
                Ok(report) => report.findings.as_slice(),
                Err(why) => {
                    all.report.by = By::Nobody;
                    all.unknown.push(why.clone());
                    continue;
                }
            };
            if reading.stale {
                let engine = reading.engine;
                all.unknown.push(format!(
                    "{engine} was started before its settings were last changed, so nobody knows which of them it has: \
                     systemctl restart {engine}"
                ));
            }
            if let ([first, ..], [_]) = (found, readings) {
                all.report.default = Some(first.handler.clone());
            }
            for Finding { handler, way, sentence } in found {
                if reading.stale {
                    all.report.unknown.insert(handler.clone());
                    continue;
                }
                let worst = ways.entry(handler.as_str()).or_insert(*way);
                if *worst == Way::Through {
                    *worst = *way;
                }
                if *way == Way::Bypass {
                    all.round.push(sentence.clone());
                }
            }
        }
        for (handler, way) in ways {
            let handler = handler.to_owned();
            match way {
                Way::Through => all.report.led.insert(handler),
                Way::Bypass => all.report.round.insert(handler),
                Way::Beyond => {
                    all.beyond.insert(handler.clone());
                    all.report.round.insert(handler)
                }
            };
        }
        all
    }

    /// The condition `GPUMemorySharingBypass`.
    pub(crate) fn condition(&self) -> ConditionReport {
        let (holds, reason, message) = if !self.round.is_empty() {
            let message = format!(
                "containers of these handlers bypass mpsgate and may have any card: {}",
                self.round.join("; ")
            );
            (Some(true), "HandlersBypass", message)
        } else if self.unknown.is_empty() {
            let beyond: Vec<&str> = self.beyond.iter().map(String::as_str).collect();
            let message = if beyond.is_empty() {
                "every handler leads through mpsgate".to_owned()
            } else {
                format!(
                    "every handler leads through mpsgate that runs an OCI runtime; {} cannot be led",
                    beyond.join(", ")
                )
            };
            (Some(false), "HandlersLed", message)
        } else {
            (None, "HandlersUnknown", self.unknown.join("; "))
        };
        let message: String = printable::plain(&message).chars().take(LONGEST).collect();
        ConditionReport { holds, reason: reason.to_owned(), message }
    }

    /// Whether each handler leads through mpsgate, but for those of which nobody knows and those
    /// that cannot.
    pub(crate) fn known(&self) -> impl Iterator<Item = (&str, bool)> {
        let led = self.report.led.iter().map(|name| (name.as_str(), true));
        let round = self.report.round.iter().filter(|name| !self.beyond.contains(*name));
        led.chain(round.map(|name| (name.as_str(), false)))
    }
}

#[cfg(test)]
mod tests {
    use mpsgate_configure::Report;

    use super::*;

    fn reading(engine: &'static str, found: &[(&str, Way)]) -> Reading {
        let findings = found.iter().map(|(handler, way)| Finding {
            handler: (*handler).to_owned(),
            way: *way,
            sentence: format!("handler {handler}: {way:?}"),
        });
        let said = Ok(Report { findings: findings.collect(), files: Vec::new() });
        Reading { engine, own: true, said, stale: false }
    }

    fn names(names: &BTreeSet<String>) -> Vec<&str> {
        names.iter().map(String::as_str).collect()
    }

    #[test]
    fn what_bypasses_is_a_condition_that_names_it_and_what_nobody_can_lead_is_none() {
        let found = [("mpsgate", Way::Through), ("nvidia", Way::Bypass), ("kata", Way::Beyond)];
        let handlers = Handlers::of(&[reading("containerd", &found)]);
        assert_eq!(names(&handlers.report.led), ["mpsgate"]);
        assert_eq!(names(&handlers.report.round), ["kata", "nvidia"]);
        assert_eq!(handlers.report.default.as_deref(), Some("mpsgate"));
        assert_eq!(
            (handlers.report.by, handlers.report.engine.as_str()),
            (By::Engine, "containerd")
        );
        let condition = handlers.condition();
        assert_eq!((condition.holds, condition.reason.as_str()), (Some(true), "HandlersBypass"));
        assert!(condition.message.ends_with(": handler nvidia: Bypass"), "{}", condition.message);
        assert_eq!(handlers.known().collect::<Vec<_>>(), [("mpsgate", true), ("nvidia", false)]);

        let led = Handlers::of(&[reading("containerd", &[found[0], found[2]])]).condition();
        assert_eq!((led.holds, led.reason.as_str()), (Some(false), "HandlersLed"));
        assert!(led.message.ends_with("; kata cannot be led"), "{}", led.message);
    }

    #[test]
    fn without_an_engine_or_with_one_that_says_nothing_nobody_knows() {
        let mut silent = reading("containerd", &[]);
        silent.said = Err("containerd config dump: it did not end in time".to_owned());
        for readings in [vec![], vec![silent]] {
            let handlers = Handlers::of(&readings);
            assert_eq!(handlers.report.by, By::Nobody);
            assert!(handlers.report.led.is_empty() && handlers.report.round.is_empty());
            let condition = handlers.condition();
            assert_eq!((condition.holds, condition.reason.as_str()), (None, "HandlersUnknown"));
        }
    }

    #[test]
    fn an_engine_that_runs_since_before_its_settings_leads_nobody_knows_where() {
        let mut stale =
            reading("containerd", &[("mpsgate", Way::Through), ("nvidia", Way::Bypass)]);
        stale.stale = true;
        let handlers = Handlers::of(&[stale]);
        assert_eq!(names(&handlers.report.unknown), ["mpsgate", "nvidia"]);
        assert!(handlers.report.led.is_empty() && handlers.report.round.is_empty());
        let condition = handlers.condition();
        assert_eq!(condition.holds, None);
        assert!(
            condition.message.ends_with("systemctl restart containerd"),
            "{}",
            condition.message
        );
    }

    #[test]
    fn of_two_engines_a_handler_is_led_where_both_lead_it() {
        let mut crio = reading("crio", &[("runc", Way::Bypass), ("mpsgate", Way::Through)]);
        crio.own = false;
        let both =
            [reading("containerd", &[("mpsgate", Way::Through), ("runc", Way::Through)]), crio];
        let handlers = Handlers::of(&both);
        assert_eq!(names(&handlers.report.led), ["mpsgate"]);
        assert_eq!(names(&handlers.report.round), ["runc"]);
        assert_eq!(handlers.report.by, By::Files);
        assert_eq!(
            (handlers.report.engine.as_str(), handlers.report.default),
            ("containerd,crio", None)
        );
    }
}
