//! Who a caller on a socket for users is: whom the node's user database knows by its uid, and who
//! there is in the group that the socket is for, where it is for one. The kernel's word alone is
//! not enough: an ordinary user has some 65,536 subordinate uids (subuid(5)), and a process keeps
//! a group that it was started with.

use std::ffi::CString;
use std::io;
use std::pin::pin;
use std::time::Duration;

use mpsgate_model::{Code, Refusal};
use nix::unistd::{Uid, User, getgrouplist};
use tokio::time::timeout;

use crate::daemon::Daemon;
use crate::line::Line;
use crate::user_turns::{Turn, Turns};

/// For an answer. The database may be a directory server's, and hang with it (nsswitch.conf(5)).
const LIMIT: Duration = Duration::from_secs(5);

/// A group whose members are served.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) name: String,
    pub(crate) gid: u32,
}

/// Whom a socket serves.
#[derive(Debug)]
pub(crate) struct Served {
    /// Without a group everybody whom the database knows: Slurm says whose a job is.
    group: Option<Members>,
    /// To ask the database. Each socket has its own: every user may connect to that for jobs.
    pub(crate) turns: Turns,
}

impl Served {
    pub(crate) fn of(group: Option<Members>) -> Self {
        Self { group, turns: Turns::of_uids() }
    }

    /// Whether a uid counts only by what the database says now. A group's user may have left it. A
    /// job's is one while Slurm has a job of his, so a database that is away ends no job of who was
    /// known.
    fn has_to_be_found(&self, uid: u32) -> bool {
        self.group.is_some() || !self.turns.knows(uid)
    }

    /// A uid's turn to be looked up. `None` where none came in time, and it counts without.
    pub(crate) async fn turn(&self, uid: u32) -> Option<Turn> {
        let mut next = pin!(self.turns.next(uid));
        loop {
            // Turns are held for as long as the database hangs. Who waits may be known by then.
            match timeout(LIMIT, next.as_mut()).await {
                Ok(turn) => return turn,
                Err(_) if !self.has_to_be_found(uid) => return None,
                Err(_) => {}
            }
        }
    }
}

/// What the database says of a uid.
enum Found {
    Nobody,
    /// With all groups, the first one too, where these are asked for.
    User {
        name: String,
        groups: Vec<u32>,
    },
}

/// Whether a uid counts on a socket, and its name where the database has said it. It is asked once,
/// in this turn.
pub(crate) async fn check(
    daemon: &Daemon,
    line: &mut Line,
    uid: u32,
    served: &Served,
    turn: Option<Turn>,
) -> Result<Option<String>, Refusal> {
    let with_groups = served.group.is_some();
    let found = match turn {
        Some(turn) => {
            let look = move |_: &_| {
                let _turn = turn;
                look(uid, with_groups)
            };
            let asked = timeout(LIMIT, daemon.blocking(look));
            line.wait("the user database says who you are", asked).await.ok()
        }
        None => None,
    };
    let late = || Err(format!("it has not answered within {} s", LIMIT.as_secs()));
    conclude(uid, found.unwrap_or_else(late), served)
}

/// What follows from what the database says, or from why it says nothing. The name, where it has
/// said it.
fn conclude(
    uid: u32,
    found: Result<Found, String>,
    served: &Served,
) -> Result<Option<String>, Refusal> {
    match &found {
        Ok(Found::User { .. }) => served.turns.know(uid),
        // Where sssd is away, some distributions say that there is no such user, and no error.
        Ok(Found::Nobody) | Err(_) if !served.has_to_be_found(uid) => {
            let reason = found.as_ref().err().map_or("it knows no such user", String::as_str);
            log::debug!(uid, reason; "a user who was known before goes on");
            return Ok(None);
        }
        Ok(Found::Nobody) | Err(_) => {}
    }
    decide(uid, found, served.group.as_ref()).map(Some)
}

fn look(uid: u32, with_groups: bool) -> Result<Found, String> {
    let failed = |error: nix::Error| io::Error::from(error).to_string();
    let Some(user) = User::from_uid(Uid::from_raw(uid)).map_err(failed)? else {
        return Ok(Found::Nobody);
    };
    if !with_groups {
        return Ok(Found::User { name: user.name, groups: Vec::new() });
    }
    let name = CString::new(user.name.as_str()).map_err(|error| error.to_string())?;
    let groups = getgrouplist(&name, user.gid).map_err(failed)?;
    Ok(Found::User { name: user.name, groups: groups.iter().map(|gid| gid.as_raw()).collect() })
}

fn decide(
    uid: u32,
    found: Result<Found, String>,
    group: Option<&Members>,
) -> Result<String, Refusal> {
    let (sentence, hint) = match (found, group) {
        (Ok(Found::User { name, .. }), None) => return Ok(name),
        (Ok(Found::User { name, groups }), Some(group)) if groups.contains(&group.gid) => {
            return Ok(name);
        }
        (Ok(Found::User { name, .. }), Some(Members { name: group, .. })) => (
            format!("{name} (uid {uid}) is not in the group {group}, as the user database has it"),
            format!("as root: usermod -aG {group} {name}"),
        ),
        (Ok(Found::Nobody), _) => (
            format!("uid {uid} is no user of this node: its user database does not know it"),
            format!("ask as the user whose subordinate uid it is; getent passwd {uid}"),
        ),
        (Err(why), _) => (
            format!("the user database does not say who uid {uid} is: {why}"),
            format!(
                "again in a while; as root: getent passwd {uid}; /etc/nsswitch.conf names what is asked"
            ),
        ),
    };
    let page = if group.is_some() { "docs/run.md" } else { "docs/slurm.md" };
    Err(Refusal::new(Code::Unconfirmed, sentence, format!("{hint} ({page})")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn a_uid_counts_where_the_database_knows_it_with_the_sockets_group() {
        let group = Members { name: "gpu".to_owned(), gid: 44 };
        let user =
            |groups: &[u32]| Ok(Found::User { name: "alice".to_owned(), groups: groups.to_vec() });
        for (found, said) in [
            (user(&[1000, 44]), None),
            (user(&[44]), None),
            (user(&[1000]), Some("alice (uid 7) is not in the group gpu")),
            (user(&[]), Some("alice (uid 7) is not in the group gpu")),
            (Ok(Found::Nobody), Some("uid 7 is no user of this node")),
            (Err("it hangs".to_owned()), Some("does not say who uid 7 is: it hangs")),
        ] {
            let decided = decide(7, found, Some(&group));
            match said {
                None => assert_eq!(decided.unwrap(), "alice"),
                Some(said) => {
                    let refusal = decided.unwrap_err();
                    assert_eq!(refusal.code, Code::Unconfirmed);
                    assert!(refusal.sentence.contains(said), "{}", refusal.sentence);
                }
            }
        }
    }

    #[test]
    fn a_jobs_uid_counts_where_the_database_knows_it_in_whatever_group() {
        let alice = Ok(Found::User { name: "alice".to_owned(), groups: Vec::new() });
        assert_eq!(decide(7, alice, None).unwrap(), "alice");
        for (found, said) in [
            (Ok(Found::Nobody), "uid 7 is no user of this node"),
            (Err("it hangs".to_owned()), "does not say who uid 7 is: it hangs"),
        ] {
            let refusal = decide(7, found, None).unwrap_err();
            assert_eq!(refusal.code, Code::Unconfirmed);
            assert!(refusal.sentence.contains(said), "{}", refusal.sentence);
            assert!(refusal.hint.ends_with("(docs/slurm.md)"), "{}", refusal.hint);
        }
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn a_jobs_user_who_was_known_goes_on_without_the_database_and_a_groups_does_not() {
        let jobs = Served::of(None);
        let users = Served::of(Some(Members { name: "gpu".to_owned(), gid: 44 }));
        assert!(jobs.has_to_be_found(7));
        jobs.turns.know(7);
        users.turns.know(7);
        assert!(!jobs.has_to_be_found(7) && jobs.has_to_be_found(8) && users.has_to_be_found(7));
        // It hangs, and has his turns.
        let _hung = (jobs.turn(7).await.unwrap(), jobs.turn(7).await.unwrap());
        assert!(jobs.turn(7).await.is_none());
        let _hung = (users.turn(7).await.unwrap(), users.turn(7).await.unwrap());
        assert!(timeout(LIMIT * 2, users.turn(7)).await.is_err());
        // Who becomes known while he waits for one goes on, too.
        let _hung = (jobs.turn(8).await.unwrap(), jobs.turn(8).await.unwrap());
        let mut third = pin!(jobs.turn(8));
        assert!(timeout(LIMIT * 3, third.as_mut()).await.is_err());
        jobs.turns.know(8);
        assert!(timeout(LIMIT * 2, third).await.unwrap().is_none());
    }

    #[test]
    fn a_database_that_is_away_may_say_that_there_is_no_such_user() {
        let jobs = Served::of(None);
        let users = Served::of(Some(Members { name: "gpu".to_owned(), gid: 44 }));
        let away = || [Ok(Found::Nobody), Err("it hangs".to_owned())];
        let all = |uid, served: &Served| away().map(|found| conclude(uid, found, served).ok());
        assert_eq!(all(7, &jobs), [None, None], "never known");
        for served in [&jobs, &users] {
            let alice = Found::User { name: "alice".to_owned(), groups: vec![44] };
            let name = conclude(7, Ok(alice), served).unwrap();
            assert_eq!(name.as_deref(), Some("alice"));
        }
        assert_eq!(all(7, &jobs), [Some(None), Some(None)], "he goes on");
        assert_eq!(all(8, &jobs), [None, None], "another uid");
        assert_eq!(all(7, &users), [None, None], "he may have left the group");
    }

    #[test]
    fn the_database_knows_root_and_not_every_uid() {
        let Found::User { name, groups } = look(0, true).unwrap() else { panic!("no root") };
        assert_eq!(name, "root");
        assert!(groups.contains(&0));
        assert!(matches!(look(0, false), Ok(Found::User { .. })));
        // The first of the subordinate uids that no distribution gives to anybody.
        for with_groups in [true, false] {
            assert!(matches!(look(0xffff_0000, with_groups), Ok(Found::Nobody)));
        }
    }
}
