//! Ends what is left over. The one file of [`crate::janitor`] that signals and waits.
//!
//! Everybody is opened, checked through the handle, and written down before the first signal. TERM and CONT go first; whoever
//! comes meanwhile below somebody who is held is taken in. After the grace all are stopped until a round meets nobody new,
//! then killed, so that nobody starts others in between.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid as RawPid, PidfdFlags, pidfd_open};

use super::{Found, Grade, Janitor};
use crate::cgroup;
use crate::containment;
use crate::exit::Process;
use crate::identity::{self, Handle, Identity, Stat};
use crate::ledger::{self, Deed, Row};
use crate::membership::Source;
use crate::sight::scan;
use crate::sys::signal;

/// How often it is looked who has come and who is gone.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long somebody may take to die of KILL: longer means that the kernel does not let go.
const DYING: Duration = Duration::from_secs(5);
/// Rounds of stopping. A storm that outruns them is killed as far as it was met.
const ROUNDS: usize = 50;

#[expect(clippy::disallowed_methods, reason = "this is a file that waits")]
fn now() -> Instant {
    Instant::now()
}

/// What became of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// It was signalled and is gone, as its handle says.
    Ended,
    /// It was gone, or another process, when it was opened: nobody was signalled.
    Gone,
    /// What it was to be ended for does not hold any more, or it is to be spared: nobody was signalled.
    NotNow,
    /// It was signalled and is still there.
    Left(String),
}

/// What an end came to.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Cleaned {
    /// Those that were named, in that order, and those who came below them.
    pub fates: Vec<(Process, Fate)>,
    /// Why nothing, or not all, was written in the ledger. What could not be written before was not signalled.
    pub unwritten: Option<String>,
}

impl Cleaned {
    /// How many were ended.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.fates.iter().filter(|(_, fate)| *fate == Fate::Ended).count()
    }

    /// Whether everybody who was named is gone, and all is written.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let gone = |fate: &Fate| matches!(fate, Fate::Ended | Fate::Gone);
        self.unwritten.is_none() && self.fates.iter().all(|(_, fate)| gone(fate))
    }
}

/// Somebody who is held, so that signals reach nobody else.
struct Held {
    handle: OwnedFd,
    process: Process,
    owner: Identity,
    row: Option<Row>,
    why: String,
    /// Why a signal did not reach it.
    refused: Option<Errno>,
}

impl Held {
    fn lives(&self) -> bool {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut asked = [PollFd::new(&self.handle, PollFlags::IN)];
        !poll(&mut asked, Some(&zero)).is_ok_and(|ready| ready > 0)
    }

    fn send(&mut self, signals: &[i32]) {
        for number in signals {
            match signal::send(self.handle.as_fd(), *number) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => self.refused = Some(error),
            }
        }
    }

    fn deed(&self, what: &'static str) -> Deed {
        Deed {
            owner: Some(self.owner.clone()),
            spawn: self.row.as_ref().map(|row| row.spawn),
            pid: self.process.pid,
            what,
            detail: self.why.clone(),
        }
    }
}

/// Ends those of `named` who still have the grade `wanted`, or on a person's word any grade.
pub(super) fn end(
    janitor: &Janitor,
    named: &[&Found],
    wanted: Option<Grade>,
    grace: Duration,
) -> Cleaned {
    let mut cleaned = Cleaned::default();
    if named.is_empty() {
        return cleaned;
    }
    let again = janitor.look();
    let mut held = Vec::new();
    for found in named {
        let process = Process { pid: found.identity.pid, name: found.name.clone() };
        let is_it = |other: &&Found| same(&other.identity, &found.identity);
        let now = again.found.iter().find(is_it);
        let fate = match now {
            Some(now) if wanted.is_none_or(|wanted| now.grade == wanted) => match open(now) {
                Some(handle) => {
                    held.push(hold(handle, now, process, wanted.is_none()));
                    continue;
                }
                None => Fate::Gone,
            },
            Some(_) => Fate::NotNow,
            None if ledger::standing(&found.identity).has_ended() => Fate::Gone,
            None => Fate::NotNow,
        };
        cleaned.fates.push((process, fate));
    }
    let deeds: Vec<_> = held.iter().map(|held| held.deed("ends it")).collect();
    if let Err(error) = ledger::say(&janitor.ledger, "janitor", &deeds) {
        // Nobody is ended without a line that says so.
        let fates = held.into_iter().map(|held| (held.process, Fate::NotNow));
        cleaned.fates.extend(fates);
        cleaned.unwritten = Some(error.to_string());
        return cleaned;
    }
    let mut work = Work { janitor, held, ours: ours(), adopts: wanted.is_some(), unwritten: None };
    work.run(grace);
    work.finish(cleaned)
}

fn same(one: &Identity, other: &Identity) -> bool {
    (one.pid, one.start, one.inode, one.boot) == (other.pid, other.start, other.inode, other.boot)
}

/// A handle of a process that still is the one that was found: checked after it was opened.
fn open(found: &Found) -> Option<OwnedFd> {
    let pid = RawPid::from_raw(found.identity.pid.cast_signed())?;
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let now = Identity::of(found.identity.pid, handle.as_fd());
    let certain = now.start.is_some() && same(&now, &found.identity);
    // One that stands below somebody must still stand there: a start time has a hundredth of a second.
    let parent =
        || Stat::read(found.identity.pid.cast_signed()).map(|stat| stat.parent.cast_unsigned());
    let placed = found.identity.inode.is_some() || found.below.is_none() || parent() == found.below;
    (certain && placed && identity::pid_of(handle.as_fd()).is_some()).then_some(handle)
}

fn hold(handle: OwnedFd, found: &Found, process: Process, picked: bool) -> Held {
    let by = if picked { "picked by a person; " } else { "" };
    let why = format!("{by}{}: {}", found.grade.word(), found.because());
    let (owner, row) = (found.owner.clone(), found.row.clone());
    Held { handle, process, owner, row, why, refused: None }
}

/// This process and those above it.
fn ours() -> HashSet<i32> {
    let parent = |pid: &i32| Stat::read(*pid).map(|stat| stat.parent).filter(|pid| *pid > 0);
    std::iter::successors(Some(identity::own_pid()), parent).take(1024).collect()
}

struct Work<'a> {
    janitor: &'a Janitor,
    held: Vec<Held>,
    ours: HashSet<i32>,
    /// Whether whoever comes below is taken in.
    adopts: bool,
    unwritten: Option<String>,
}

impl Work<'_> {
    fn run(&mut self, grace: Duration) {
        let kill_at = now() + grace;
        if !grace.is_zero() {
            self.held.iter_mut().for_each(|held| held.send(&[libc::SIGTERM, libc::SIGCONT]));
            while self.held.iter().any(Held::lives) && now() < kill_at {
                self.adopt(&[libc::SIGTERM, libc::SIGCONT]);
                std::thread::park_timeout(LOOK_AGAIN.min(kill_at.saturating_duration_since(now())));
            }
        }
        if self.adopts {
            let living = |held: &&mut Held| held.lives();
            self.held.iter_mut().filter(living).for_each(|held| held.send(&[libc::SIGSTOP]));
            let _stable = (0..ROUNDS).any(|_| self.adopt(&[libc::SIGSTOP]) == 0);
        }
        let until = now() + DYING;
        while self.held.iter().any(Held::lives) && now() < until {
            let living = |held: &&mut Held| held.lives();
            self.held.iter_mut().filter(living).for_each(|held| held.send(&[libc::SIGKILL]));
            std::thread::park_timeout(LOOK_AGAIN);
        }
    }

    /// Takes in whoever stands below somebody who is held, and sends them these. Says how many these were.
    fn adopt(&mut self, signals: &[i32]) -> usize {
        if !self.adopts {
            return 0;
        }
        let known: HashSet<u32> =
            self.held.iter().filter(|held| held.lives()).map(|held| held.process.pid).collect();
        let mut new = Vec::new();
        let parents: Vec<i32> = known.iter().map(|pid| pid.cast_signed()).collect();
        let mut children: HashMap<i32, Vec<i32>> =
            Source::probe().children_of(&parents).into_iter().collect();
        for above in self.held.iter().filter(|held| known.contains(&held.process.pid)) {
            let children = children.remove(&above.process.pid.cast_signed()).unwrap_or_default();
            let strangers =
                children.into_iter().filter(|pid| !known.contains(&pid.cast_unsigned()));
            for pid in strangers {
                let child = self.child(above, pid);
                new.extend(child);
            }
        }
        let deeds: Vec<_> = new.iter().map(|held| held.deed("ends it")).collect();
        if let Err(error) = self.note(&deeds) {
            self.unwritten = Some(error);
            return 0;
        }
        let count = new.len();
        new.iter_mut().for_each(|held| held.send(signals));
        self.held.extend(new);
        count
    }

    fn note(&self, deeds: &[Deed]) -> Result<(), String> {
        if deeds.is_empty() {
            return Ok(());
        }
        ledger::say(&self.janitor.ledger, "janitor", deeds).map_err(|error| error.to_string())
    }

    /// A child of somebody who is held, and alive after the child was opened: so its number was its own when the
    /// child named it as its parent.
    fn child(&self, above: &Held, pid: i32) -> Option<Held> {
        let stat =
            Stat::read(pid).filter(|stat| stat.parent.cast_unsigned() == above.process.pid)?;
        let handle = Handle::open(pid, &stat)?.into_fd();
        let theirs = scan::marks(pid.cast_unsigned()).mark().map(scan::Mark::owner);
        let its_owner = theirs.is_none_or(|(owner, start)| {
            (owner, Some(start)) == (above.owner.pid, above.owner.start)
        });
        let role = scan::role(pid.cast_unsigned());
        let spared = self.ours.contains(&pid) || role.is_some() || !its_owner;
        (above.lives() && !spared && !stat.is_dead()).then(|| Held {
            handle,
            process: stat.process(pid),
            owner: above.owner.clone(),
            row: None,
            why: format!("stands below {} ({})", above.process.pid, above.process.name),
            refused: None,
        })
    }

    fn finish(self, mut cleaned: Cleaned) -> Cleaned {
        let (ended, left): (Vec<_>, Vec<_>) = self.held.into_iter().partition(|held| !held.lives());
        let rows: Vec<_> =
            ended.iter().filter_map(|held| Some((held.row.clone()?, held.why.clone()))).collect();
        let path = &self.janitor.ledger;
        let told = ended.iter().map(|held| held.deed("ended"));
        let told =
            told.chain(left.iter().map(|held| held.deed("could not end it"))).collect::<Vec<_>>();
        let written = ledger::settle(path, &rows).and_then(|_| ledger::say(path, "janitor", &told));
        let unwritten = written.err().map(|error| error.to_string());
        cleaned.unwritten = self.unwritten.or(unwritten);
        // Empty by now, unless somebody could not be ended.
        let base = containment::cgroup_of_guards().dir;
        for left in base.map(|base| cgroup::stale(&base)).unwrap_or_default() {
            left.cell.remove();
        }
        cleaned.fates.extend(ended.into_iter().map(|held| (held.process, Fate::Ended)));
        cleaned.fates.extend(left.into_iter().map(|held| {
            let why = held.refused.map_or_else(
                || "it cannot die: the kernel does not let go of it".to_owned(),
                |error| error.to_string(),
            );
            (held.process, Fate::Left(why))
        }));
        cleaned
    }
}
