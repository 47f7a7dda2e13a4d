//! Settings that stand in the place of what cards have answered.

use mpsgate_config::{Enforce, Policy, Tolerance};
use mpsgate_model::Mib;

/// What an operator has set that a card's answers would decide otherwise, a line each. `cards`:
/// index, and the tolerance that follows from its answers.
#[must_use]
pub fn overrides(policy: &Policy, cards: &[(u32, Mib)]) -> Vec<String> {
    let mut lines = Vec::new();
    if policy.enforce == Enforce::Report {
        lines.push(
            "policy.enforce = \"report\": no container is ended that takes more than its grant, so level \
             mps+watchdog is shown by no card's answers"
                .to_owned(),
        );
    }
    if let Tolerance::Mib(set) = policy.tolerance_mib {
        let set = Mib(set.into());
        let answers: Vec<String> = cards
            .iter()
            .filter(|(_, answered)| *answered != set)
            .map(|(index, answered)| format!("{answered} on GPU {index}"))
            .collect();
        if !answers.is_empty() {
            lines.push(format!(
                "policy.tolerance_mib = {}: \"auto\" would be {}",
                set.0,
                answers.join(", ")
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_named_with_what_the_answers_would_have_it_be() {
        let auto = Policy::default();
        assert_eq!(overrides(&auto, &[(0, Mib(566))]), [""; 0]);
        let set = Policy { tolerance_mib: Tolerance::Mib(512), enforce: Enforce::Report, ..auto };
        assert_eq!(
            overrides(&set, &[(0, Mib(566)), (1, Mib(512)), (2, Mib(300))]),
            [
                "policy.enforce = \"report\": no container is ended that takes more than its grant, so level \
                 mps+watchdog is shown by no card's answers",
                "policy.tolerance_mib = 512: \"auto\" would be 566 MiB on GPU 0, 300 MiB on GPU 2",
            ]
        );
        let tolerance = Policy { enforce: Enforce::Kill, ..set };
        assert_eq!(overrides(&tolerance, &[(1, Mib(512))]), [""; 0]);
    }
}
