//! What is asked of mpsgated and of the control daemon, and what they answer.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use mpsgate_host::process::ProcessId;
use mpsgate_model::Instance;
use mpsgate_model::door_file::{Prepared, Question};
use rustix::event::epoll::EventFlags;

use super::{ASKED, CALL, Gate, OLDER, RETRY};
use crate::control_call::{Call, Step};
use crate::door_effect::{Effect, Failure};
use crate::kernel::ThisKernel;
use crate::mps_wire::{Sender, Word};
use crate::question::Asked;
use crate::sockets::Heard;

impl Gate {
    /// Has mpsgated prepare the server for a client of this container.
    pub(super) fn prepare(
        &mut self,
        instance: Instance,
        client: ProcessId,
        effects: &mut Vec<Effect>,
    ) {
        let now = Instant::now();
        let is_older = self.older.is_some_and(|until| now < until);
        let client = Some(client).filter(|_| !is_older);
        if !self.ask(Question::Prepare { instance, client }, now) {
            self.doors.failed(Failure::Unreachable, now, &ThisKernel, effects);
        }
    }

    /// Whether mpsgated takes the question.
    fn ask(&mut self, question: Question, now: Instant) -> bool {
        let asked = Asked::ask(&self.mpsgated, question, now);
        self.asked = asked.filter(|asked| self.watch(asked.fd(), ASKED, EventFlags::IN).is_ok());
        self.asked.is_some()
    }

    /// Calls the control daemon for a client.
    pub(super) fn call(&mut self, sender: Sender, word: Word, effects: &mut Vec<Effect>) {
        let now = Instant::now();
        let pipe = self.pipe.as_ref().map(OwnedFd::as_fd);
        let call = pipe.and_then(|pipe| Call::dial(pipe, Some((sender, word)), now));
        self.call = call.filter(|call| self.watch(call.fd(), CALL, EventFlags::IN).is_ok());
        if self.call.is_none() {
            self.doors.failed(Failure::Unreachable, now, &ThisKernel, effects);
        }
    }

    /// Calls the control daemon for its hello, where it is not known.
    pub(super) fn learn_hello(&mut self, now: Instant) {
        if self.hello.is_some()
            || self.call.is_some()
            || self.asked.is_some()
            || self.rest.is_some()
        {
            return;
        }
        let Some(pipe) = &self.pipe else {
            if !self.ask(Question::Daemon, now) {
                self.rest = Some(now + RETRY);
            }
            return;
        };
        let call = Call::dial(pipe.as_fd(), None, now);
        self.call = call.filter(|call| self.watch(call.fd(), CALL, EventFlags::IN).is_ok());
        if self.call.is_none() {
            // It is a dead one's, perhaps.
            self.pipe = None;
            self.rest = Some(now + RETRY);
        }
    }

    /// Ends what takes too long.
    pub(super) fn give_up(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if self.call.as_ref().is_some_and(|call| call.until() <= now) {
            self.doors.failed(Failure::NoAnswer, now, &ThisKernel, effects);
        }
        if let Some(asked) = self.asked.take_if(|asked| asked.until() <= now)
            && asked.is_for_client()
        {
            self.doors.failed(Failure::Later, now, &ThisKernel, effects);
        }
    }

    /// Goes on with mpsgated.
    pub(super) fn take_answer(&mut self) {
        let Some(asked) = &mut self.asked else { return };
        let (mut effects, now) = (Vec::new(), Instant::now());
        let answer = asked.answer();
        if matches!(answer, Heard::Nothing) {
            return;
        }
        let (is_for_client, of_before) = (asked.is_for_client(), asked.of_before());
        self.asked = None;
        let (prepared, pipe) = match answer {
            Heard::Said(answered) => (Some(answered.prepared), answered.pipe),
            Heard::Nothing | Heard::Gone => (None, None),
        };
        let is_found = pipe.is_some();
        self.pipe = pipe.or_else(|| self.pipe.take());
        if !is_for_client {
            if !is_found {
                self.rest = Some(now + RETRY);
            }
            return;
        }
        // It has ended meanwhile, or is an older one: what it says to that tells.
        if prepared.is_none()
            && let Some(question) = of_before
            && self.ask(question, now)
        {
            self.older = Some(now + OLDER);
            return;
        }
        match prepared {
            Some(Prepared::Ready) => self.doors.prepared(&mut effects),
            Some(Prepared::Full) => self.doors.refused(now, &ThisKernel, &mut effects),
            Some(Prepared::Later) => {
                self.doors.failed(Failure::Later, now, &ThisKernel, &mut effects);
            }
            None => {
                self.older = None;
                self.doors.failed(Failure::Unreachable, now, &ThisKernel, &mut effects);
            }
        }
        self.perform(effects);
    }

    /// Goes on with the control daemon.
    pub(super) fn step(&mut self) {
        let mut effects = Vec::new();
        while let Some(call) = &mut self.call {
            let now = Instant::now();
            match call.step() {
                Step::Wait => break,
                Step::Hello(hello) => {
                    if call.is_for_hello() {
                        self.call = None;
                    }
                    if self.hello.replace(hello).is_none() {
                        self.listen_everywhere();
                    }
                }
                Step::Answer(answer) => {
                    self.said = None;
                    self.answer = Some(answer);
                    self.doors.answered(now, &ThisKernel, &mut effects);
                    break;
                }
                Step::Failed(failure, why) => {
                    // Another control daemon than the one whose hello is known.
                    if why.is_some() && !call.is_greeted() {
                        self.hello = None;
                    }
                    if call.is_for_hello() {
                        self.rest = Some(now + RETRY);
                    }
                    self.call = None;
                    self.complain_of_daemon(why);
                    self.doors.failed(failure, now, &ThisKernel, &mut effects);
                    break;
                }
            }
        }
        self.perform(effects);
    }

    /// Once for each thing that it says, however often clients have it say that.
    fn complain_of_daemon(&mut self, why: Option<String>) {
        if let Some(why) = why
            && self.said.as_ref() != Some(&why)
        {
            log::error!(mpsgated:% = self.mpsgated.display(); "the control daemon cannot be served: {why}");
            self.said = Some(why);
            self.complain_to_mpsgated();
        }
    }

    /// Tells mpsgated that nobody can be served, as long as it is so. Where mpsgated is away it is
    /// told later.
    pub(super) fn complain_to_mpsgated(&self) {
        if let (None, Some(why)) = (self.hello, &self.said) {
            self.say(Question::Unserved { why: why.clone() });
        }
    }

    pub(super) fn report_counts(&self) {
        self.say(Question::Counts(self.doors.counts()));
    }

    fn say(&self, question: Question) {
        drop(Asked::ask(&self.mpsgated, question, Instant::now()));
    }
}
