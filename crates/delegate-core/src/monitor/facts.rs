//! What is known of one child, and what is said to and by its machine ([`super::child`]): plain data.

use std::time::Duration;

use delegate_protocol::message::Verdict;
use ownership::{Emptied, ExitStatus};

use crate::monitor::cancel::CancelReason;
use crate::monitor::liveness::{Activity, Expired, Patience};

/// The time limits of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// From launch to the first frame.
    pub start: Duration,
    /// Wall clock from the child's own start.
    pub run: Option<Duration>,
    /// Limits of a child that makes no progress.
    pub patience: Patience,
    /// From the interrupt until TERM.
    pub interrupt_grace: Duration,
    /// From TERM until KILL.
    pub terminate_grace: Duration,
}

/// Where a child stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The launcher was asked.
    Launching,
    /// It exists and has not said `Hello`.
    Greeting,
    /// It has its spec.
    Running,
    /// Its time is over; what it is doing is being written down.
    Diagnosing,
    /// It was asked to unwind.
    Interrupting,
    /// Its scope is being ended.
    Terminating,
    /// It said `Finish` and has not left yet.
    Draining,
    /// Everything is known; the outcome is being stored.
    Settling,
    /// The outcome was handed on.
    Ended,
}

/// A new fact about a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// It exists. `None` is a thread.
    Launched {
        /// Its process.
        pid: Option<u32>,
    },
    /// It does not, and never did.
    LaunchFailed,
    /// Its first frame, of the right version.
    Hello,
    /// It broke the protocol in a way that cannot be mended.
    Violation(String),
    /// Its last frame.
    Finish(Verdict),
    /// It closed its line, and so can say nothing more, while its process was not known to be gone.
    LineClosed,
    /// Nothing more can be read from it.
    StreamEnded,
    /// Its process or thread ended.
    Exited(ExitStatus),
    /// Its scope is empty, or `left` says what cannot die.
    Emptied(Emptied),
    /// The supervisor is gone.
    Lost,
    /// What it was seen to do.
    Activity(Activity),
    /// What it was doing is written down, or could not be.
    Diagnosed,
    /// It gets more time.
    Extend(Duration),
    /// Children of its own were started.
    Delegated,
    /// All of one such delegation have their outcomes.
    DelegationOver,
    /// It waits for children of its own, and for nothing else (`true`), or goes on.
    Waits(bool),
    /// It should stop.
    Cancel(CancelReason),
    /// Its outcome was handed to the store, and this is whether the disk has it.
    Recorded(bool),
    /// Time passed.
    Tick,
}

/// What should be done for a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Order {
    /// Send its spec.
    Begin,
    /// Tell the parent that it is there.
    Touch,
    /// Warn, the consumer and the child: this limit is near, or was passed.
    Warn(Expired),
    /// Write down what it is doing, then say [`Input::Diagnosed`].
    Diagnose,
    /// It is paused: its processes stand still (SIGSTOP).
    Stop,
    /// The pause is over, or it is asked to stop and has to hear of it: its processes go on.
    Continue,
    /// Ask it to unwind.
    Interrupt,
    /// End its scope: TERM, CONT, this grace, KILL.
    Terminate(Duration),
    /// Take the outcome and store it.
    Settle,
    /// The outcome is stored: announce it.
    Announce,
}

/// What is known of a child. Every field is a fact; none is a verdict.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Its process.
    pub pid: Option<u32>,
    /// When the launcher had made it.
    pub launched_at: Option<Duration>,
    /// When it got its spec: its own start.
    pub started_at: Option<Duration>,
    /// When everything was known.
    pub ended_at: Duration,
    /// The strongest reason to stop it.
    pub cancel: Option<CancelReason>,
    /// When a limit of its time ran out.
    pub timed_out_at: Option<Duration>,
    /// Which limit that was.
    pub expired: Option<Expired>,
    /// How long it had made no progress by then.
    pub quiet_for: Option<Duration>,
    /// It said nothing within the start limit, or its launch did not even return.
    pub start_timeout: bool,
    /// Its first violation.
    pub violation: Option<String>,
    /// Its own word.
    pub verdict: Option<Verdict>,
    /// How its process ended.
    pub exit: Option<ExitStatus>,
    /// What became of its scope.
    pub emptied: Option<Emptied>,
    /// The supervisor died first, or never answered.
    pub lost: bool,
    /// A thread that did not return.
    pub abandoned: bool,
    /// It did not leave after its `Finish` and was ended.
    pub lingered: bool,
    /// Nothing was ever launched.
    pub launch_failed: bool,
}

/// Who holds a child's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// The whole batch is paused.
    Batch = 1,
    /// This child is.
    Own = 2,
}
