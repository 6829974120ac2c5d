//! What becomes of the completion of a background run: a pure machine per completion. `desk` keeps the
//! rows and asks it. Numbers of the contract, section 9.8.
//!
//! ```text
//! running ──finish──► pending ──claim──► claimed ──complete──► delivered
//!                        ▲                  │ release, lease over: pending again, or dropped at the 8th
//!                        └──────────────────┘ defer: pending, and the attempt is given back
//! ```
//!
//! Times are seconds since the epoch, from a clock that somebody may set back: a distance counts in either
//! direction, so that a clock that jumps makes nobody wait for ever.

use std::fmt;

use delegate_protocol::RunId;

/// How long a claim holds, in seconds.
pub const LEASE: f64 = 300.0;
/// Claims after which a completion is given up.
pub const ATTEMPTS: u32 = 8;
/// Age in seconds at which one that nobody took is dropped: 48 hours.
pub const EXPIRY: f64 = 172_800.0;
/// How long the row of a dead owner must have been quiet before others are offered it, in seconds.
pub const IDLE: f64 = 60.0;
/// Completions that wait in one state directory; the oldest over it are dropped.
pub const MOST_PENDING: usize = 1000;

/// Where a completion stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its children work.
    Running,
    /// It waits for a consumer.
    Pending,
    /// A consumer has it.
    Claimed,
    /// A consumer has handled it.
    Delivered,
    /// It was given up, and can still be looked at.
    Dropped,
}

impl State {
    pub(super) const ALL: [Self; 5] =
        [Self::Running, Self::Pending, Self::Claimed, Self::Delivered, Self::Dropped];

    /// The word that the database and JSON have.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Pending => "pending",
            Self::Claimed => "claimed",
            Self::Delivered => "delivered",
            Self::Dropped => "dropped",
        }
    }
}

/// The process that runs it, as its row is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnerIs {
    /// This one.
    Us,
    /// Another one that lives, or may.
    Alive,
    /// It is known to have ended.
    Gone,
}

/// One completion.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// The run.
    pub run_id: RunId,
    /// 0 is the whole call; else a unit of it, from 1.
    pub unit: u32,
    /// The tasks of the unit; empty: all of the run.
    pub tasks: Vec<u32>,
    /// JSON that was captured at dispatch.
    pub origin: String,
    /// The conversation that dispatched it.
    pub session: Option<String>,
    /// Where it stands.
    pub state: State,
    /// Claims so far.
    pub attempts: u32,
    /// When it was claimed last.
    pub claimed_at: Option<f64>,
    /// When it was dispatched.
    pub dispatched_at: f64,
    /// When anything of this last changed.
    pub changed_at: f64,
    /// When its last child had its outcome, or its owner was found dead.
    pub finished_at: Option<f64>,
    /// Its owner is dead: only who proves to be meant may take it.
    pub restored: bool,
    /// Why it was dropped.
    pub why: Option<String>,
}

/// Who asks for a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof<'a> {
    /// A consumer of the process that dispatched it, or of this conversation.
    Session(Option<&'a str>),
    /// Somebody who knows the id of the run, which is no secret to guess.
    Id,
}

/// What a consumer says of what it claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Complete,
    Release,
    Defer,
    Drop(String),
}

/// It is not this consumer's any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the claim is over: {0}")]
pub struct ClaimOver(pub String);

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

const fn distance(one: f64, other: f64) -> f64 {
    (one - other).abs()
}

impl Delivery {
    /// Whether nothing happens to it any more.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        matches!(self.state, State::Delivered | State::Dropped)
    }

    fn to(&mut self, state: State, now: f64) {
        self.state = state;
        self.changed_at = now;
    }

    fn give_up(&mut self, why: &str, now: f64) {
        self.why = Some(why.to_owned());
        self.to(State::Dropped, now);
    }

    /// Its children have their outcomes. Saying it again changes nothing.
    pub(super) fn finish(&mut self, now: f64) {
        if self.state == State::Running {
            self.finished_at = Some(now);
            self.to(State::Pending, now);
        }
    }

    fn lease_is_over(&self, now: f64) -> bool {
        self.claimed_at.is_none_or(|at| distance(now, at) >= LEASE)
    }

    /// Time has passed, or its owner has.
    pub(super) fn sweep(&mut self, owner: OwnerIs, now: f64) {
        if self.state == State::Running && owner == OwnerIs::Gone {
            self.restored = true;
            self.finish(now);
        }
        if self.state == State::Claimed && self.lease_is_over(now) {
            self.back(now);
        }
        let quiet = distance(now, self.changed_at) >= IDLE;
        if self.state == State::Pending && owner == OwnerIs::Gone && !self.restored && quiet {
            self.restored = true;
            self.changed_at = now;
        }
        if self.state == State::Pending && self.finished_at.is_some_and(|at| now - at > EXPIRY) {
            self.give_up("older than 48 h", now);
        }
    }

    /// To the line again after an attempt that came to nothing.
    fn back(&mut self, now: f64) {
        if self.attempts >= ATTEMPTS {
            self.give_up("8 attempts", now);
        } else {
            self.to(State::Pending, now);
        }
    }

    /// Too many wait, and it is the oldest.
    pub(super) fn crowd_out(&mut self, now: f64) {
        self.give_up("more than 1,000 wait", now);
    }

    /// Whether this consumer may have it.
    pub(super) fn may_be_claimed(&self, proof: Proof<'_>, owner: OwnerIs) -> bool {
        self.state == State::Pending
            && match (proof, self.restored) {
                (Proof::Id, _) => self.restored || owner == OwnerIs::Us,
                (Proof::Session(None), false) => owner == OwnerIs::Us,
                (Proof::Session(key), false) => {
                    owner == OwnerIs::Us && key == self.session.as_deref()
                }
                (Proof::Session(key), true) => key.is_some() && key == self.session.as_deref(),
            }
    }

    /// A consumer takes it: counted now, whatever comes of it.
    pub(super) fn claim(&mut self, now: f64) {
        self.attempts += 1;
        self.claimed_at = Some(now);
        self.to(State::Claimed, now);
    }

    /// What the consumer of that attempt says.
    pub(super) fn settle(
        &mut self,
        attempt: u32,
        verdict: Verdict,
        now: f64,
    ) -> Result<(), ClaimOver> {
        if self.state != State::Claimed || self.attempts != attempt {
            let why = format!("it is {} after {} claims", self.state, self.attempts);
            return Err(ClaimOver(why));
        }
        match verdict {
            Verdict::Complete => self.to(State::Delivered, now),
            Verdict::Release => self.back(now),
            Verdict::Defer => {
                self.attempts -= 1;
                self.to(State::Pending, now);
            }
            Verdict::Drop(why) => self.give_up(&why, now),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: f64 = 1_000_000.0;

    fn delivery(state: State) -> Delivery {
        Delivery {
            run_id: RunId::from_u128(1),
            unit: 0,
            tasks: Vec::new(),
            origin: "null".to_owned(),
            session: Some("s".to_owned()),
            state,
            attempts: u32::from(state == State::Claimed),
            claimed_at: (state == State::Claimed).then_some(NOW),
            dispatched_at: NOW,
            changed_at: NOW,
            finished_at: (state != State::Running).then_some(NOW),
            restored: false,
            why: None,
        }
    }

    fn pending() -> Delivery {
        delivery(State::Pending)
    }

    /// Every state, every verdict: only a claim takes one, and of the right attempt only.
    #[test]
    fn a_verdict_counts_for_its_own_claim_only() {
        let verdicts = [
            (Verdict::Complete, State::Delivered, 1),
            (Verdict::Release, State::Pending, 1),
            (Verdict::Defer, State::Pending, 0),
            (Verdict::Drop("w".to_owned()), State::Dropped, 1),
        ];
        for state in State::ALL {
            for (verdict, to, attempts) in &verdicts {
                let mut row = delivery(state);
                let before = row.clone();
                assert!(row.settle(7, verdict.clone(), NOW).is_err());
                let settled = row.settle(1, verdict.clone(), NOW + 1.0);
                if state == State::Claimed {
                    assert_eq!((settled, row.state, row.attempts), (Ok(()), *to, *attempts));
                } else {
                    assert!(settled.is_err() && row == before, "{state} {verdict:?}");
                }
            }
        }
    }

    #[test]
    fn c29_a_failed_delivery_is_offered_again_and_the_eighth_is_the_last() {
        let mut row = pending();
        for attempt in 1..=8 {
            assert!(row.may_be_claimed(Proof::Session(None), OwnerIs::Us), "attempt {attempt}");
            row.claim(NOW);
            row.settle(attempt, Verdict::Release, NOW).unwrap();
        }
        assert_eq!((row.state, row.why.as_deref()), (State::Dropped, Some("8 attempts")));
        assert!(!row.may_be_claimed(Proof::Id, OwnerIs::Us));
        // The same where nobody says anything and every lease ends.
        let mut row = pending();
        for _ in 0..8 {
            row.claim(NOW);
            row.sweep(OwnerIs::Us, NOW + LEASE - 1.0);
            assert_eq!(row.state, State::Claimed, "its lease holds");
            row.sweep(OwnerIs::Us, NOW + LEASE);
        }
        assert_eq!(row.state, State::Dropped);
    }

    #[test]
    fn c30_a_deferred_delivery_spends_no_attempt() {
        let mut row = pending();
        for _ in 0..100 {
            row.claim(NOW);
            row.settle(1, Verdict::Defer, NOW).unwrap();
        }
        assert_eq!((row.state, row.attempts), (State::Pending, 0));
    }

    #[test]
    fn c32_what_waits_for_more_than_48_hours_is_dropped() {
        let mut row = pending();
        row.sweep(OwnerIs::Us, NOW + EXPIRY);
        assert_eq!(row.state, State::Pending);
        row.sweep(OwnerIs::Us, NOW + EXPIRY + 1.0);
        assert_eq!((row.state, row.why.as_deref()), (State::Dropped, Some("older than 48 h")));
        // Work that takes long is not old before it ends.
        let mut row = delivery(State::Running);
        row.sweep(OwnerIs::Us, NOW + 10.0 * EXPIRY);
        assert_eq!(row.state, State::Running);
    }

    #[test]
    fn c33_what_a_dead_owner_left_is_for_who_proves_to_be_meant() {
        let mut row = delivery(State::Running);
        row.sweep(OwnerIs::Alive, NOW);
        assert_eq!(row.state, State::Running);
        row.sweep(OwnerIs::Gone, NOW);
        assert!(row.restored && row.state == State::Pending);
        let gone = OwnerIs::Gone;
        assert!(!row.may_be_claimed(Proof::Session(None), gone));
        assert!(!row.may_be_claimed(Proof::Session(Some("other")), gone));
        assert!(row.may_be_claimed(Proof::Session(Some("s")), gone));
        assert!(row.may_be_claimed(Proof::Id, gone));
        let nobodys = Delivery { session: None, ..row };
        assert!(!nobodys.may_be_claimed(Proof::Session(None), gone), "nobody can prove it");
    }

    #[test]
    fn what_waits_is_offered_to_others_once_its_owner_is_dead_and_it_was_quiet() {
        let mut row = pending();
        assert!(
            !row.may_be_claimed(Proof::Session(Some("s")), OwnerIs::Alive),
            "it is its owner's"
        );
        assert!(!row.may_be_claimed(Proof::Id, OwnerIs::Alive));
        row.sweep(OwnerIs::Alive, NOW + IDLE);
        row.sweep(OwnerIs::Gone, NOW + IDLE - 1.0);
        assert!(!row.restored);
        row.sweep(OwnerIs::Gone, NOW + IDLE);
        assert!(row.restored && row.may_be_claimed(Proof::Session(Some("s")), OwnerIs::Gone));
    }

    #[test]
    fn a_clock_that_is_set_back_drops_nothing_and_holds_nothing_for_ever() {
        let mut row = pending();
        row.claim(NOW);
        row.sweep(OwnerIs::Us, NOW - 10.0);
        assert_eq!(row.state, State::Claimed, "a small step ends no lease");
        row.sweep(OwnerIs::Us, NOW - 86_400.0);
        assert_eq!(row.state, State::Pending, "a large one does not make it last a day");
        row.sweep(OwnerIs::Us, 0.0);
        assert_eq!(row.state, State::Pending, "nothing is old before it is made");
        row.sweep(OwnerIs::Gone, 0.0);
        assert!(row.restored);
    }

    #[test]
    fn a_second_finish_changes_nothing() {
        for state in State::ALL {
            let mut row = delivery(state);
            row.finish(NOW + 5.0);
            let once = row.clone();
            row.finish(NOW + 9.0);
            assert_eq!(row, once);
            assert_eq!(row.finished_at == Some(NOW + 5.0), state == State::Running);
        }
    }
}
