//! Ends a job from outside: the one file of this side that waits. With the job's shim alive, its leaving is
//! the kernel's word that nothing is left; without, what belongs to the job is known only as far as its
//! process lives, and by marks.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::look::{self, Held, Reach};
use super::tree::{Ending, Root};
use super::{ReattachError, Stopped, files};
use crate::exit::Process;
use crate::identity::Stat;

/// Without a shim the ends of many are looked at this often.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

#[expect(clippy::disallowed_methods, reason = "this is a file that waits")]
fn now() -> Instant {
    Instant::now()
}

pub(super) fn stop(dir: &Path, id: &str, grace: Duration) -> io::Result<Stopped> {
    let record = look::complete(files::load(dir, id).map_err(io::Error::other)?);
    match look::reach(&record) {
        Reach::Here => {}
        Reach::OtherBoot => return Ok(Stopped { verified: true, ..Stopped::default() }),
        Reach::OtherNamespace => {
            return Err(io::Error::other("the job was started in another pid namespace"));
        }
    }
    if record.empty {
        return Ok(Stopped { verified: true, ..Stopped::default() });
    }
    let shim = record.shim.as_ref().and_then(Held::open);
    if shim.is_some() {
        files::note_stop(dir, id)?;
    }
    let job = record.job.as_ref().and_then(Held::open);
    let ending = end(&Heads { shim, job }, grace);
    // The last thing that a shim says before it leaves; it removes what was never heard of. One that was
    // killed meanwhile does neither.
    let verified = match files::load(dir, id) {
        Ok(record) => record.empty,
        Err(error) => matches!(error, ReattachError::NotFound { .. }),
    };
    let (ended, mut left) = ending.outcome();
    if !verified {
        let more: Vec<_> = unproved(id).into_iter().filter(|one| !left.contains(one)).collect();
        left.extend(more);
    }
    Ok(Stopped { ended, left, verified })
}

/// Whom the job hangs on: its shim as long as that lives, then its own process.
struct Heads {
    shim: Option<Held>,
    job: Option<Held>,
}

impl Heads {
    fn living(&self) -> Option<(&Held, Root)> {
        let shim = self.shim.as_ref().map(|shim| (shim, false));
        let job = self.job.as_ref().map(|job| (job, true));
        let living = [shim, job].into_iter().flatten().find(|(held, _)| held.lives());
        living.map(|(held, member)| (held, Root { pid: held.who.pid, member }))
    }

    /// The roots of a walk, and what must hold after each member was opened.
    fn with<T>(&self, act: impl FnOnce(&[Root], &dyn Fn() -> bool) -> T) -> T {
        match self.living() {
            Some((held, root)) => act(&[root], &|| held.lives()),
            None => act(&[], &|| false),
        }
    }

    fn wait(&self, pause: Duration) {
        match self.living() {
            Some((held, Root { member: false, .. })) => {
                look::readable(held.pidfd.as_fd(), pause);
            }
            // Nothing wakes us when the last of many has ended.
            Some(_) | None => std::thread::park_timeout(pause.min(LOOK_AGAIN)),
        }
    }
}

/// Until the shim has left and nobody who was met lives, or what is left does not die.
fn end(heads: &Heads, grace: Duration) -> Ending {
    let mut ending = heads.with(|roots, certain| Ending::begin(now(), grace, roots, certain));
    while heads.shim.as_ref().is_some_and(Held::lives) || ending.any_left() {
        heads.wait(ending.due().saturating_duration_since(now()));
        if heads.with(|roots, certain| ending.step(now(), roots, certain)) {
            break;
        }
    }
    ending
}

/// Who bears the job's mark and was not met: named, and left alone. A mark is evidence, not proof.
fn unproved(id: &str) -> Vec<Process> {
    let marked = look::marked(id).into_iter();
    let alive = marked.filter_map(|pid| Some((pid, Stat::read(pid)?)));
    alive.filter(|(_, stat)| !stat.is_dead()).map(|(pid, stat)| stat.process(pid)).collect()
}
