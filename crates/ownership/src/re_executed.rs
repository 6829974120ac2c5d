//! A program that was executed in an owner's own place takes up what the one before it had started.
//! `client::comeback` finds its guards.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::sync::Arc;

use crate::client::{Client, comeback};
use crate::exit::Exit;
use crate::owner::{Owned, Owner};
use crate::program::Program;

impl Owner {
    /// Takes up what an owner had that this process was before it executed this program (execve, from whichever
    /// thread): its guards have kept the children, as they do until the process is gone. Waits for them, 5 s at
    /// most: they may not have seen yet that the line has ended, or one of them is being replaced. Guards that
    /// have to be started later are `program`, as [`Owner::new`] says.
    ///
    /// Where the process had several owners each call takes up one, in the order in which they were made. What
    /// was taken up already is not taken up again: then there are no guards that wait. A copy of the
    /// process by fork is another process, which has none.
    ///
    /// A scope of [`Owner::scope`] ended with the program that held it. The guards are found by a socket below
    /// `$XDG_RUNTIME_DIR`, else `/tmp`; they let in nobody but this process.
    ///
    /// # Errors
    /// Nothing was started, and what lives goes on as before.
    pub fn reattach(program: Program, args: Vec<OsString>) -> Result<Reattached, NotReattached> {
        let found = comeback::reattach(program, args).map_err(NotReattached::from)?;
        let client = found.client;
        let returned = |came| Returned { client: Arc::clone(&client), came };
        let children = found.children.into_iter().map(returned).collect();
        Ok(Reattached { children, groups: found.groups, owner: Self::taken_up(client) })
    }
}

/// What an owner of this process had.
#[derive(Debug)]
#[non_exhaustive]
pub struct Reattached {
    /// The owner, which goes on.
    pub owner: Owner,
    /// Its children, in the order in which they were started; those too that ended in between.
    pub children: Vec<Returned>,
    /// Leaders of the process groups that it had adopted ([`Owner::own_process_groups`]). They stay owned.
    pub groups: Vec<i32>,
}

#[cfg(feature = "ledger")]
impl Reattached {
    /// As [`Owner::with_ledger`]. The ends of these children are written into the rows that the program before
    /// this one began, or into new ones where it had not come to that. What that program heard in its last 5 ms is in
    /// its rows if it called [`Ledger::flush`](crate::ledger::Ledger::flush) before it executed this one.
    #[must_use]
    pub fn with_ledger(self, ledger: Arc<crate::ledger::Ledger>) -> Self {
        use crate::recorder::Recorder;
        let known = self.children.iter().map(|returned| {
            let answer = &returned.came.answer;
            (returned.came.child.id, answer.pid.cast_unsigned(), Arc::clone(&answer.fd))
        });
        let argvs = self.children.iter().map(|returned| returned.came.argv.as_slice());
        let entries = Recorder::new(Arc::clone(&ledger)).resume(known.zip(argvs));
        for (returned, entry) in self.children.iter().zip(entries) {
            if let Some(entry) = entry {
                returned.came.late.is(entry);
            }
        }
        Self { owner: self.owner.with_ledger(ledger), ..self }
    }
}

/// A child that the program before this one had started. Dropping it leaves the child alone: it lives on, and ends
/// with this process at the latest. [`Returned::take`] gives the handle whose drop ends it.
#[must_use = "what is not taken lives on until this process ends"]
pub struct Returned {
    client: Arc<Client>,
    came: comeback::Came,
}

impl fmt::Debug for Returned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Returned")
            .field("pid", &self.pid())
            .field("argv", &self.came.argv)
            .field("exit", &self.came.exit)
            .finish_non_exhaustive()
    }
}

impl Returned {
    /// Its pid: an address for messages, not an identity.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.came.answer.pid.cast_unsigned()
    }

    /// Its number, as the ledger has it.
    #[must_use]
    pub fn spawn(&self) -> u64 {
        self.came.child.id
    }

    /// Its arguments, as it shows them now: for recognising it. Empty when it has ended.
    pub fn argv(&self) -> impl Iterator<Item = &OsStr> {
        self.came.argv.iter().map(OsString::as_os_str)
    }

    /// Value of `OWNERSHIP_TAG` in its environment.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.came.tag
    }

    /// How its process had ended by the time it was taken up. `None` while it lived.
    #[must_use]
    pub fn exit(&self) -> Option<&Exit> {
        self.came.exit.as_ref()
    }

    /// Takes it: from here on it is as if it had been started by this program.
    pub fn take(self) -> Owned {
        let Self { client, came } = self;
        let comeback::Came { child, answer, grace, late, .. } = came;
        Owned::returned(client, child, grace, late.entry(), answer)
    }
}

/// Nothing was taken up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotReattached {
    /// No guards wait for this process: it had no owner before it executed this program, or all that was there was
    /// taken up, or both guards are dead. Whoever wants an owner makes one ([`Owner::new`]).
    NoGuards,
    /// There are guards, and they did not answer in time. What they have lives on; it may be tried again.
    #[non_exhaustive]
    TimedOut {
        /// What is known of why.
        detail: String,
    },
    /// Something is missing that it takes.
    #[non_exhaustive]
    Failed {
        /// What, and what to do.
        detail: String,
        /// The system's error number, if there is one.
        errno: Option<i32>,
    },
}

impl From<comeback::Why> for NotReattached {
    fn from(why: comeback::Why) -> Self {
        match why {
            comeback::Why::NoGuards => Self::NoGuards,
            comeback::Why::TimedOut(detail) => Self::TimedOut { detail },
            comeback::Why::Failed(detail, errno) => Self::Failed { detail, errno },
        }
    }
}

impl fmt::Display for NotReattached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nothing = "nothing was started";
        match self {
            Self::NoGuards => write!(
                f,
                "no guards wait for this process: it owned nothing before it executed this program, or that was \
                 taken up already; {nothing}"
            ),
            Self::TimedOut { detail } => write!(
                f,
                "the guards of this process were not reached in time: {detail}; {nothing}, and what they have \
                 lives on"
            ),
            Self::Failed { detail, .. } => write!(f, "not re-attached: {detail}; {nothing}"),
        }
    }
}

impl std::error::Error for NotReattached {}
