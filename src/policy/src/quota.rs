//! What one user may give the own processes (`mpsgate run`).

use mpsgate_model::{Code, Mib, Refusal};

/// What each user of `run.group` may have at a time. 0 bounds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quota {
    /// `run.max_mib`
    pub memory: Mib,
    /// `run.max_grants`
    pub grants: u32,
}

impl Quota {
    /// Whether a user with so many grants of `has` in all may have another one of `asked`.
    ///
    /// # Errors
    /// [`Code::Quota`], with what the user has and may have.
    pub fn check(self, grants: u32, has: Mib, asked: Mib) -> Result<(), Refusal> {
        let hint = |key: &str| {
            format!(
                "end one of your processes (mpsgate run --name names them), or ask whoever runs this \
                 node to raise {key} in /etc/mpsgate/config.toml"
            )
        };
        if self.grants > 0 && grants >= self.grants {
            let sentence = format!(
                "it would be the user's grant number {}, and a user may have {} at a time",
                grants.saturating_add(1),
                self.grants
            );
            return Err(Refusal::new(Code::Quota, sentence, hint("run.max_grants")));
        }
        if self.memory.0 > 0 && has.0.saturating_add(asked.0) > self.memory.0 {
            let beside = if has.0 > 0 {
                format!(" beside the {has} of other processes")
            } else {
                String::new()
            };
            let sentence = format!(
                "the user asks for {asked}{beside}, and may have {} at a time",
                self.memory
            );
            return Err(Refusal::new(Code::Quota, sentence, hint("run.max_mib")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn a_user_has_so_much_and_so_many_at_a_time() {
        let quota = |mib, grants| Quota { memory: Mib(mib), grants };
        for (quota, grants, has, asked, refused) in [
            (quota(0, 0), 1000, u64::MAX, u64::MAX, None),
            (quota(7168, 0), 0, 0, 7168, None),
            (quota(7168, 0), 0, 0, 7169, Some("the user asks for 7169 MiB, and may have 7 GiB")),
            (
                quota(7168, 0),
                1,
                7168,
                1,
                Some("asks for 1 MiB beside the 7 GiB of other processes"),
            ),
            (quota(7168, 0), 1, u64::MAX, u64::MAX, Some("may have 7 GiB at a time")),
            (quota(0, 2), 1, 9, 9, None),
            (quota(0, 2), 2, 9, 9, Some("grant number 3, and a user may have 2 at a time")),
            (quota(7168, 2), 2, 9, 9, Some("grant number 3")),
        ] {
            let found = quota.check(grants, Mib(has), Mib(asked));
            match refused {
                None => found.unwrap(),
                Some(said) => {
                    let refusal = found.unwrap_err();
                    assert_eq!(refusal.code, Code::Quota);
                    assert!(refusal.sentence.contains(said), "{}", refusal.sentence);
                }
            }
        }
    }
}
