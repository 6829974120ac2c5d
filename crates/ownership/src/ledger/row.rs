//! The rows of the ledger, as plain data: what is to be started, what became of it, and by whom.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::redact;
use crate::exit::{ExitStatus, Released};
use crate::identity::Identity;

/// What is about to be started. Nothing of its environment is kept; its arguments are redacted here.
#[derive(Debug, Clone)]
#[must_use = "nothing is written before Ledger::intent"]
pub struct Intent {
    pub(super) spawn: u64,
    pub(super) purpose: String,
    pub(super) argv: Vec<String>,
    pub(super) executable: String,
    pub(super) dir: String,
    pub(super) policy: Policy,
    pub(super) release: Vec<OsString>,
}

impl Intent {
    /// The child `spawn` ([`super::next_spawn`]) is to execute `executable` with these arguments.
    pub fn new(spawn: u64, executable: &Path, argv: &[OsString]) -> Self {
        Self {
            spawn,
            purpose: String::new(),
            argv: redact::redact(argv),
            executable: redact::line(executable.as_os_str()),
            dir: String::new(),
            policy: Policy::Owned,
            release: Vec::new(),
        }
    }

    /// What it is for.
    pub fn purpose(mut self, purpose: &str) -> Self {
        self.purpose = redact::line(OsStr::new(purpose));
        self
    }

    /// Its working directory.
    pub fn dir(mut self, dir: &Path) -> Self {
        self.dir = redact::line(dir.as_os_str());
        self
    }

    /// It may outlive its owner, for this reason, until then.
    pub fn exempt(mut self, reason: &str, expires: Option<SystemTime>) -> Self {
        self.policy = Policy::Exempt {
            reason: redact::line(OsStr::new(reason)),
            expires: expires.map(unix_ms),
        };
        self
    }

    /// The command that undoes its work in another daemon. Kept as it is, so that it can be run: it must
    /// not hold a secret.
    pub fn release(mut self, command: Vec<OsString>) -> Self {
        self.release = command;
        self
    }
}

/// Whether a child dies with its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// It does.
    Owned,
    /// It does not.
    #[non_exhaustive]
    Exempt {
        /// Why not.
        reason: String,
        /// Until when, in unix milliseconds; `None` is for ever.
        expires: Option<u64>,
    },
}

/// How far a child is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// It is to be started; whether it was is not known.
    Intent,
    /// It was started, and its scope is not known to be empty.
    Running,
    /// Nothing of it is left, or what is left cannot die.
    Ended,
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// It exited, and its scope is empty.
    Exited(ExitStatus),
    /// It is gone; how is not known.
    Lost,
    /// So many of its scope cannot die. (Those that were let live keep the row running.)
    Left(u32),
    /// It was never started.
    NotStarted,
}

/// Who ended a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndedBy {
    /// Its owner asked for it.
    Owner,
    /// The supervisor, on its own account.
    Supervisor,
    /// The keeper, on its own account.
    Keeper,
    /// It ended by itself.
    Itself,
    /// The janitor, on evidence.
    Janitor,
    /// The watchdog of an owner whose loop did not turn any more.
    Watchdog,
}

/// One child.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// Who started it.
    pub owner: Identity,
    /// Its number, unique for this owner.
    pub spawn: u64,
    /// How far it is.
    pub state: State,
    /// When it was to be started, in unix milliseconds by the wall clock: for people. Order is that of rows.
    pub intent_at: u64,
    /// What it is for.
    pub purpose: String,
    /// Its arguments, redacted and bounded.
    pub argv: Vec<String>,
    /// Its program.
    pub executable: String,
    /// Its working directory, if one was named.
    pub dir: String,
    /// Whether it dies with its owner.
    pub policy: Policy,
    /// Who it is, once it was started.
    pub identity: Option<Identity>,
    /// How its process ended, which may be before its scope does.
    pub exit: Option<ExitStatus>,
    /// When it ended, in unix milliseconds.
    pub ended_at: Option<u64>,
    /// How it ended.
    pub end: Option<End>,
    /// Who ended it.
    pub ended_by: Option<EndedBy>,
    /// Why, in words.
    pub why: String,
    /// The command that undoes its work in another daemon; empty if there is none.
    pub release: Vec<OsString>,
}

impl Row {
    pub(super) fn of(intent: Intent, owner: &Identity, now: u64) -> Self {
        let Intent { spawn, purpose, argv, executable, dir, policy, release } = intent;
        Self {
            owner: owner.clone(),
            spawn,
            state: State::Intent,
            intent_at: now,
            purpose,
            argv,
            executable,
            dir,
            policy,
            identity: None,
            exit: None,
            ended_at: None,
            end: None,
            ended_by: None,
            why: String::new(),
            release,
        }
    }

    /// Its scope is over. Who asked for that earlier stays; a row ends once.
    pub(super) fn finish(&mut self, end: Option<End>, by: EndedBy, why: &str, now: u64) {
        if self.state == State::Ended {
            return;
        }
        self.state = State::Ended;
        self.end = end.or_else(|| Some(self.exit.map_or(End::Lost, End::Exited)));
        self.ended_at = Some(now);
        self.blame(by, why);
    }

    /// Says that its release command failed, if it did, behind why it ended.
    pub(super) fn released(&mut self, released: Option<Released>) {
        if let Some(failed) = released.filter(|released| !released.succeeded()) {
            let between = if self.why.is_empty() { "" } else { "; " };
            self.why += &format!("{between}its release command {failed}");
        }
    }

    /// Says who ends it, and why. The first one to do so stays.
    pub(super) fn blame(&mut self, by: EndedBy, why: &str) {
        if self.ended_by.is_none() {
            self.ended_by = Some(by);
            self.why = redact::line(OsStr::new(why));
        }
    }
}

/// Milliseconds since 1970; a clock before that counts as 1970.
pub(super) fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Now, by the wall clock.
pub(crate) fn now_ms() -> u64 {
    unix_ms(SystemTime::now())
}
