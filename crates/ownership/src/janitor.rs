//! What owners that are dead have left on this machine: found, graded by evidence, and ended where that is proved.
//!
//! `look` gathers facts from the ledger, the guards' journals and [`crate::sight`]'s picture of `/proc`, `grade` is the
//! pure judgement, `end` is the one file that acts and waits. Whoever is ended is ended through a handle whose identity
//! was checked after it was opened, and after a line about it is in the ledger. Why it is so: `docs/janitor.md`.

mod end;
mod grade;
mod groups;
mod look;
mod routine;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use self::end::{Cleaned, Fate};
pub use self::grade::{Grade, Spared};
pub use self::routine::Schedule;
pub(crate) use self::routine::begin;
use crate::identity::Identity;
use crate::ledger::Row;

/// Something that speaks for a process being left over, or against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Proof {
    /// A record is about it.
    Record {
        /// Every field that was written down was found again through a handle; else it cannot be told.
        same: bool,
        /// Also the inode of its pidfd.
        inode: bool,
    },
    /// It stands below a process that is proved to be left over.
    Below,
    /// It bears its owner's mark. Whatever is started by somebody who bears one does: a hint, and no proof.
    Mark,
    /// It bears another owner's mark.
    OtherMark,
    /// Its environment cannot be read.
    NoLook,
    /// It is in a cgroup in which a child of its owner was seen.
    Cgroup,
    /// It is in a cgroup that the guards of its owner made, and none of them holds it any more.
    Deserted,
    /// It was exempt until a time that has passed by the wall clock.
    ExpiredByClock,
    /// Its owner has certainly ended.
    OwnerDead,
    /// What became of its owner cannot be told.
    OwnerUnknown,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Record { same: true, inode: true } => {
                "it is the process of a record (boot, pid, start, pidfd)"
            }
            Self::Record { same: true, inode: false } => {
                "it is the process of a record (boot, pid, start)"
            }
            Self::Record { same: false, .. } => "a record may be about it",
            Self::Below => "it stands below one that is proved",
            Self::Mark => "it bears its owner's mark",
            Self::OtherMark => "it bears another owner's mark",
            Self::NoLook => "its environment cannot be read",
            Self::Cgroup => "it is in the cgroup of a child of its owner",
            Self::Deserted => "it is in a cgroup that its owner's guards made and hold no more",
            Self::ExpiredByClock => "its exemption is over by the wall clock",
            Self::OwnerDead => "its owner is dead, guards and all",
            Self::OwnerUnknown => "what became of its owner cannot be told",
        })
    }
}

/// A process that is, or may be, left over.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// Who it is.
    pub identity: Identity,
    /// Whose it was.
    pub owner: Identity,
    /// Its name, at most 15 bytes.
    pub name: String,
    /// Its command line, redacted.
    pub command: Vec<String>,
    /// How long ago it began.
    pub age: Duration,
    /// Memory that is resident, in bytes.
    pub rss: u64,
    /// Its state as `/proc/PID/stat` says.
    pub state: char,
    /// How sure it is.
    pub grade: Grade,
    /// Why.
    pub evidence: Vec<Proof>,
    /// The parent that is proved, for one that is known by standing below it.
    pub below: Option<u32>,
    /// What was written down of it.
    pub row: Option<Row>,
}

impl Found {
    /// The evidence in one line.
    #[must_use]
    pub fn because(&self) -> String {
        let words: Vec<_> = self.evidence.iter().map(ToString::to_string).collect();
        words.join("; ")
    }
}

/// A process that is spared whatever speaks against it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SparedOne {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The number of the owner that it seems to be of.
    pub owner: u32,
    /// Why it is spared.
    pub why: Spared,
}

/// A cgroup that guards made for an owner that is dead, in which nobody is and which nobody holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EmptyGroup {
    /// Its directory.
    pub dir: PathBuf,
    /// The number of its owner.
    pub owner_pid: u32,
    /// When that began, in clock ticks since the boot.
    pub owner_start: u64,
    /// The pid namespace in which it had that number, where that is another one; nobody is in it any more.
    pub owner_namespace: Option<u64>,
}

impl EmptyGroup {
    /// Why it is one, in one line.
    #[must_use]
    pub fn because(&self) -> String {
        match self.owner_namespace {
            None => "nobody is in it, no guard holds it, and nobody has the number and the start time of its owner".to_owned(),
            Some(namespace) => format!(
                "nobody is in it, no guard holds it, and nobody is in the pid namespace of its owner ({namespace})"
            ),
        }
    }
}

/// What [`Janitor::look`] found.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Finding {
    /// Whoever is or may be left over: proved ones first, then by owner and age.
    pub found: Vec<Found>,
    /// Whoever seems so and is spared.
    pub spared: Vec<SparedOne>,
    /// Whether there is a ledger. Without one nobody is proved.
    pub ledger: bool,
    /// Why the ledger cannot be read. Then nobody is proved either.
    pub trouble: Option<String>,
    /// Rows of the ledger that cannot be read, in words; all others are read.
    pub unreadable_rows: Vec<String>,
    /// Whether processes of other users are shown. Where they are not (`hidepid`), this user's are.
    pub whole: bool,
    /// Processes of this user whose environment cannot be read.
    pub unreadable: usize,
    /// Empty cgroups of dead owners where guards of this program would make theirs.
    pub groups: Vec<EmptyGroup>,
}

/// Looks for what is left over, and ends it when told so.
#[derive(Debug, Clone)]
pub struct Janitor {
    ledger: PathBuf,
    dir: PathBuf,
    jobs: Vec<PathBuf>,
}

impl Janitor {
    /// For the ledger at this path; journals are beside it, as [`crate::Owner::with_ledger`] keeps them.
    #[must_use]
    pub fn of(ledger: impl Into<PathBuf>) -> Self {
        let ledger = ledger.into();
        let dir = ledger.parent().map(Path::to_owned).unwrap_or_default();
        Self { ledger, dir, jobs: Vec::new() }
    }

    /// Also knows when the exempt jobs of this directory ([`crate::spawn_exempt`]) are over. A job whose directory is
    /// not named is spared for ever.
    #[must_use]
    pub fn with_jobs(mut self, dir: impl Into<PathBuf>) -> Self {
        self.jobs.push(dir.into());
        self
    }

    /// What is left over. Changes nothing and signals nobody.
    #[must_use]
    pub fn look(&self) -> Finding {
        look::look(&self.ledger, &self.dir, &self.jobs, false)
    }

    /// As [`Janitor::look`], and looks at no process when no row is about anybody who is left over. What only marks
    /// would show is not found then.
    #[must_use]
    pub fn look_at_rows(&self) -> Finding {
        look::look(&self.ledger, &self.dir, &self.jobs, true)
    }

    /// Ends whom this finding proved and who still is proved: TERM and CONT, after `grace` KILL, with whatever
    /// stands below. Blocks for that, and 5 s at most for what does not die.
    #[must_use]
    pub fn end_proved(&self, finding: &Finding, grace: Duration) -> Cleaned {
        let proved = finding.found.iter().filter(|found| found.grade == Grade::Proved);
        end::end(self, &proved.collect::<Vec<_>>(), Some(Grade::Proved), grace)
    }

    /// Removes the empty cgroups of this finding, but for those in which somebody is by now, or which somebody holds. Gives
    /// those that are gone.
    #[must_use]
    pub fn remove_groups<'a>(&self, finding: &'a Finding) -> Vec<&'a EmptyGroup> {
        finding.groups.iter().filter(|group| groups::remove(group)).collect()
    }

    /// Ends exactly these, on a person's word: each is looked at again, none that is to be spared is signalled, and
    /// of what stands below only what was picked too.
    #[must_use]
    pub fn end_picked(&self, picked: &[&Found], grace: Duration) -> Cleaned {
        end::end(self, picked, None, grace)
    }
}
