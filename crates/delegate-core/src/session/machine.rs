//! Which prompt is given when, what a lost worker comes to, and when a session is over: a pure machine of
//! (state, event, now). [`super::drive`] waits and acts.
//!
//! A turn is begun by one worker, once: one whose worker is lost is over, and is never given again. What waits in
//! line goes to the next worker, and so does what was on its way to one that says that it has not begun it. A worker that leaves, in whatever way, while it is wanted is replaced; but no more
//! often than [`Policy::max_restarts`] within [`Policy::window`], and never one whose agent takes no prompts.

use std::collections::VecDeque;
use std::time::Duration;

/// Prompts that wait in line at most.
pub const WAITING: usize = 64;

/// The limits of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Workers that take the place of lost ones within [`Policy::window`], at most; with 0 the first loss ends it.
    pub(crate) max_restarts: u32,
    /// See there.
    pub(crate) window: Duration,
    /// From the begin of a turn to its end.
    pub(crate) turn_timeout: Option<Duration>,
    /// Without a turn. Then the session ends by itself.
    pub(crate) idle_timeout: Option<Duration>,
    /// Turns that are begun.
    pub(crate) max_turns: Option<u64>,
    /// From the stop of a turn until its worker is ended.
    pub(crate) grace: Duration,
}

/// Why a session is over.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// Nothing came for as long as its idle limit.
    Idle,
    /// It has had as many turns as it may have.
    MaxTurns,
    /// Whoever held it wanted no more.
    Closed,
    /// It was stopped.
    Stopped,
    /// Its workers were lost too often.
    GaveUp,
    /// Its agent takes no prompts.
    TakesNoTurns,
}

impl Why {
    /// For people.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::MaxTurns => "max_turns",
            Self::Closed => "closed",
            Self::Stopped => "stopped",
            Self::GaveUp => "gave_up",
            Self::TakesNoTurns => "takes_no_turns",
        }
    }
}

/// Who ends a turn before its agent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// Somebody asked.
    Asked,
    /// Its limit ran out.
    Timeout,
}

/// How a worker has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parting {
    /// In some way: what it did is not known.
    Lost,
    /// By its own word that it has begun no turn since the last one ended.
    BetweenTurns,
    /// So will each.
    Hopeless,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A prompt with this number is stored.
    Prompted(u64),
    /// The worker wants the next one.
    Asked,
    /// The worker says that this turn is over.
    Over(u64),
    /// The worker has left, or could not be started.
    Gone(Parting),
    /// This turn is not wanted any more.
    StopTurn(u64),
    /// No more prompts: it ends behind those that wait.
    Close,
    /// It ends now.
    Stop,
    /// Time has passed.
    Tick,
}

/// What is to be done, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Start a worker.
    Launch,
    /// Give this turn to the worker that has asked.
    Give(u64),
    /// Tell the worker that has asked that there are no more.
    NoMore,
    /// Tell the worker to end this turn.
    StopTurn(u64),
    /// Have the worker end: interrupt, grace, kill.
    EndWorker,
    /// The turn ended as its worker says.
    Settle(u64, Option<Stop>),
    /// The turn ended with its worker.
    Lose(u64, Option<Stop>),
    /// The turn was on its way to a worker that has not begun it: it is the first in line again.
    TakeBack(u64),
    /// The turn is never begun.
    Refuse(u64),
    /// That was all.
    Over(Why),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worker {
    /// It has not asked yet, or has told the end of its turn.
    Busy,
    /// It has asked, at that time.
    Waits(Duration),
    Works(Turn),
    /// It was told that there are no more.
    Leaves,
    /// There is none, and will be none.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn {
    number: u64,
    deadline: Option<Duration>,
    stop: Option<Stop>,
    /// When its worker is ended.
    end_at: Option<Duration>,
}

/// A session.
#[derive(Debug)]
pub(super) struct Machine {
    policy: Policy,
    worker: Worker,
    line: VecDeque<u64>,
    begun: u64,
    /// The strongest reason to end; a later, weaker one does not replace it.
    closing: Option<Why>,
    /// When workers were replaced, within the window.
    replaced: VecDeque<Duration>,
    restarts: u32,
}

impl Machine {
    /// One whose first worker is on its way.
    pub(super) fn new(policy: Policy) -> Self {
        let (line, replaced) = (VecDeque::new(), VecDeque::new());
        Self { policy, worker: Worker::Busy, line, begun: 0, closing: None, replaced, restarts: 0 }
    }

    /// Workers that took the place of another so far.
    pub(super) const fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Whether its worker waits for a prompt.
    pub(super) const fn is_idle(&self) -> bool {
        matches!(self.worker, Worker::Waits(_))
    }

    /// Whether it was stopped: whatever worker there is, is not wanted.
    pub(super) fn is_stopped(&self) -> bool {
        self.closing >= Some(Why::Stopped)
    }

    /// Whether its workers were lost too often.
    pub(super) fn has_given_up(&self) -> bool {
        self.closing == Some(Why::GaveUp)
    }

    /// Why a prompt is not begun, for people.
    pub(super) fn refusal(&self) -> String {
        match self.closing {
            None => "it was stopped before its turn".to_owned(),
            Some(Why::GaveUp) => {
                let Policy { max_restarts, window, .. } = self.policy;
                let window = window.as_secs_f64();
                format!(
                    "its session gave up: more than {max_restarts} workers were lost within {window} s"
                )
            }
            Some(Why::MaxTurns) => {
                format!(
                    "its session has had its {} turns",
                    self.policy.max_turns.unwrap_or_default()
                )
            }
            Some(Why::TakesNoTurns) => "its agent takes no turns".to_owned(),
            Some(Why::Idle | Why::Closed | Why::Stopped) => "its session has ended".to_owned(),
        }
    }

    /// When time alone changes something.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        match self.worker {
            Worker::Works(turn) => {
                let deadline = turn.deadline.filter(|_| turn.stop != Some(Stop::Timeout));
                deadline.into_iter().chain(turn.end_at).min()
            }
            Worker::Waits(since) => Some(since.saturating_add(self.policy.idle_timeout?)),
            Worker::Busy | Worker::Leaves | Worker::None => None,
        }
    }

    /// Takes an event.
    pub(super) fn step(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Prompted(number) => self.prompted(number, now, &mut effects),
            Event::Asked => self.asked(now, &mut effects),
            Event::Over(number) => {
                if let Worker::Works(turn) = self.worker
                    && turn.number == number
                {
                    self.worker = Worker::Busy;
                    effects.push(Effect::Settle(number, turn.stop));
                }
            }
            Event::Gone(parting) => self.gone(parting, now, &mut effects),
            Event::StopTurn(number) => self.stop_turn(number, now, &mut effects),
            Event::Close => {
                // One that leaves already leaves for its own reason.
                self.closing.get_or_insert(Why::Closed);
                if matches!(self.worker, Worker::Waits(_)) {
                    self.next(now, &mut effects);
                }
            }
            Event::Stop => self.stop(&mut effects),
            Event::Tick => self.tick(now, &mut effects),
        }
        effects
    }

    fn prompted(&mut self, number: u64, now: Duration, effects: &mut Vec<Effect>) {
        if self.closing.is_some() || self.worker == Worker::None {
            effects.push(Effect::Refuse(number));
            return;
        }
        self.line.push_back(number);
        if matches!(self.worker, Worker::Waits(_)) {
            self.next(now, effects);
        }
    }

    fn asked(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        match self.worker {
            Worker::Busy => self.next(now, effects),
            // It has left its turn without a word: that worker is not to be trusted.
            Worker::Works(_) => effects.push(Effect::EndWorker),
            Worker::Waits(_) | Worker::Leaves | Worker::None => {}
        }
    }

    /// The worker has nothing to do.
    fn next(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.policy.max_turns.is_some_and(|most| self.begun >= most) {
            self.close(Why::MaxTurns);
            self.refuse_all(effects);
        }
        match self.line.pop_front() {
            Some(number) => {
                self.begun += 1;
                let deadline = self.policy.turn_timeout.map(|limit| now.saturating_add(limit));
                self.worker = Worker::Works(Turn { number, deadline, stop: None, end_at: None });
                effects.push(Effect::Give(number));
            }
            None if self.closing.is_some() => {
                self.worker = Worker::Leaves;
                effects.push(Effect::NoMore);
            }
            None => self.worker = Worker::Waits(now),
        }
    }

    fn gone(&mut self, parting: Parting, now: Duration, effects: &mut Vec<Effect>) {
        if self.worker == Worker::None {
            return;
        }
        if let Worker::Works(turn) = self.worker {
            if parting == Parting::BetweenTurns && turn.stop.is_none() {
                self.begun -= 1;
                self.line.push_front(turn.number);
                effects.push(Effect::TakeBack(turn.number));
            } else {
                effects.push(Effect::Lose(turn.number, turn.stop));
            }
        }
        if parting == Parting::Hopeless {
            self.close(Why::TakesNoTurns);
        }
        let done = match self.closing {
            None => false,
            // What waits is still to be done.
            Some(Why::Closed) => self.line.is_empty(),
            Some(_) => true,
        };
        while self.replaced.front().is_some_and(|at| at.saturating_add(self.policy.window) <= now) {
            self.replaced.pop_front();
        }
        if !done && self.replaced.len() >= self.policy.max_restarts as usize {
            self.close(Why::GaveUp);
        } else if !done {
            self.replaced.push_back(now);
            self.restarts += 1;
            self.worker = Worker::Busy;
            effects.push(Effect::Launch);
            return;
        }
        self.worker = Worker::None;
        self.refuse_all(effects);
        effects.extend(self.closing.map(Effect::Over));
    }

    fn stop_turn(&mut self, number: u64, now: Duration, effects: &mut Vec<Effect>) {
        if let Some(at) = self.line.iter().position(|waiting| *waiting == number) {
            self.line.remove(at);
            effects.push(Effect::Refuse(number));
        } else if let Worker::Works(turn) = &mut self.worker
            && turn.number == number
            && turn.stop.is_none()
        {
            turn.stop = Some(Stop::Asked);
            turn.end_at = Some(now.saturating_add(self.policy.grace));
            effects.push(Effect::StopTurn(number));
        }
    }

    fn stop(&mut self, effects: &mut Vec<Effect>) {
        if self.closing >= Some(Why::Stopped) {
            return;
        }
        self.close(Why::Stopped);
        self.refuse_all(effects);
        match &mut self.worker {
            Worker::Waits(_) => {
                self.worker = Worker::Leaves;
                effects.push(Effect::NoMore);
            }
            Worker::Works(turn) => {
                turn.stop = turn.stop.or(Some(Stop::Asked));
                effects.push(Effect::EndWorker);
            }
            Worker::Busy | Worker::Leaves => effects.push(Effect::EndWorker),
            Worker::None => {}
        }
    }

    fn tick(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        match &mut self.worker {
            Worker::Works(turn) => {
                let due = turn.deadline.is_some_and(|at| at <= now);
                if due && turn.stop != Some(Stop::Timeout) {
                    // A limit is the stronger reason, whenever it comes.
                    turn.stop = Some(Stop::Timeout);
                    turn.end_at = turn.end_at.or(Some(now.saturating_add(self.policy.grace)));
                    effects.push(Effect::StopTurn(turn.number));
                }
                if turn.end_at.is_some_and(|at| at <= now) {
                    turn.end_at = None;
                    turn.deadline = None;
                    effects.push(Effect::EndWorker);
                }
            }
            Worker::Waits(since) => {
                let since = *since;
                if self.policy.idle_timeout.is_some_and(|idle| since.saturating_add(idle) <= now) {
                    self.close(Why::Idle);
                    self.next(now, effects);
                }
            }
            Worker::Busy | Worker::Leaves | Worker::None => {}
        }
    }

    fn close(&mut self, why: Why) {
        self.closing = self.closing.max(Some(why));
    }

    fn refuse_all(&mut self, effects: &mut Vec<Effect>) {
        effects.extend(self.line.drain(..).map(Effect::Refuse));
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
