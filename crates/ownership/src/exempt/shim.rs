//! The shim of one job, in a process of its own: starts the job, is its parent and the subreaper of all that it
//! starts, writes down how it ended, ends it when its time is over, and leaves when the kernel says that
//! nothing is left.
//!
//! It gets its orders from the owner that started it and then knows nobody any more. It is not owned:
//! it bears no owner's mark, and the stage that started it left, so that it is nobody's child but init's.
//! If it is killed, the job runs on, and how it ends will not be known.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::record::{self, End, Record};
use super::start::{Answer, Job};
use super::tree::{Ending, Root};
use super::{Cause, Outer, files, look, start};
use crate::identity;
use crate::line::{self, Received};
use crate::protocol::{MAX_INLINE, Order, Request};
use crate::sys::wait::{Dead, Look};
use crate::sys::{Pid, process, signal, wait};

/// A deadline that the clock cannot hold is none.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[expect(clippy::disallowed_methods, reason = "this is a file that waits")]
fn now() -> Instant {
    Instant::now()
}

/// Runs this process as a shim, to its end.
pub(crate) fn run() -> ExitCode {
    let Some(control) = process::inherited(3) else { return ExitCode::from(2) };
    std::panic::set_hook(Box::new(|_| std::process::abort()));
    match set_up(&control).and_then(|deaths| serve(control, &deaths)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn set_up(control: &OwnedFd) -> io::Result<OwnedFd> {
    rustix::io::fcntl_setfd(control, rustix::io::FdFlags::CLOEXEC)?;
    process::close_from(4);
    process::quiet_standard_streams()?;
    process::go_on_in_a_copy()?;
    // detached-spawn: ok — an exempt job outlives its owner, and its shim with it
    let _ = rustix::process::setsid();
    rustix::process::chdir("/")?;
    // Shares no word with owner, guards or job: a kill by name takes one of them at most.
    rustix::thread::set_name(c"steward")?;
    signal::ignore_terminal();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    signal::child_deaths(false)
}

/// Takes the orders, starts the job and stays with it.
fn serve(control: OwnedFd, deaths: &OwnedFd) -> io::Result<()> {
    let Some((mut record, order, fds)) = orders(&control)? else { return Ok(()) };
    start::crash_at("shim-ordered");
    let dir = record.log.parent().map(Path::to_owned).unwrap_or_default();
    record.shim = look::own();
    record.outer = outer(record.outer.take(), record.owner.pid);
    let grace = order.grace;
    let begun = begin(&dir, &mut record, &order, &fds);
    drop(fds);
    let mut shim = Shim { dir, record, deaths, ending: None, root: None };
    let say = |answer: Answer| line::send(control.as_fd(), &answer.encode(), &[], true).is_ok();
    match begun {
        Ok(pid) if say(Answer::Started(pid)) => {
            drop((control, order));
            shim.root = Some(pid);
            shim.run(grace);
        }
        // A job that nobody has heard of does not run.
        Ok(_) => shim.undo(),
        Err(failure) => {
            shim.undo();
            say(Answer::Failed(failure));
        }
    }
    Ok(())
}

/// `None` when the owner was gone before it had said all.
fn orders(control: &OwnedFd) -> io::Result<Option<(Record, Order, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; MAX_INLINE + 1];
    let Received::Record { bytes: terms, .. } = line::receive(control.as_fd(), &mut buffer, true)?
    else {
        return Ok(None);
    };
    let Received::Record { bytes, fds } = line::receive(control.as_fd(), &mut buffer, true)? else {
        return Ok(None);
    };
    let (Ok(record), Some(Request::Spawn(order))) =
        (Record::decode(&terms), Request::decode(&bytes))
    else {
        return Ok(None);
    };
    Ok(Some((record, *order, fds)))
}

/// The owner's mark came with the terms; who adopted us shows only here, for the stage is gone by now. An
/// owner that is init or a collector itself is no stranger.
fn outer(given: Option<Outer>, owner: Pid) -> Option<Outer> {
    let adopter = look::adopter().filter(|adopter| adopter.pid != owner.cast_unsigned());
    let outer = Outer { tag: given.and_then(|given| given.tag), adopter };
    Some(outer).filter(|outer| *outer != Outer::default())
}

/// Writes down what is meant, starts it, and writes down who it is.
fn begin(
    dir: &Path,
    record: &mut Record,
    order: &Order,
    fds: &[OwnedFd],
) -> Result<Pid, crate::protocol::Failure> {
    let at_setup = |error: io::Error| start::setup_failure(&error);
    let log = files::create_log(record).map_err(at_setup)?;
    files::store(dir, record).map_err(at_setup)?;
    start::crash_at("shim-recorded");
    let (pid, _pidfd) = start::start_job(&Job { order, fds, log: &log })?;
    start::crash_at("shim-started");
    // Our unreaped child: its number is its own.
    record.job = look::identify(pid);
    let recorded = match record.job {
        Some(_) => files::store(dir, record),
        None => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    };
    start::crash_at("shim-named");
    recorded.map_err(at_setup)?;
    Ok(pid)
}

struct Shim<'a> {
    dir: PathBuf,
    record: Record,
    deaths: &'a OwnedFd,
    ending: Option<Ending>,
    /// The job's process, until it is dead.
    root: Option<Pid>,
}

impl Shim<'_> {
    fn run(&mut self, grace: Duration) {
        let time = self.record.expires.map(|at| at.saturating_sub(self.record.started));
        let expiry = time.map(|millis| now() + Duration::from_millis(millis).min(LONGEST));
        let roots = roots();
        while self.bury() {
            let due = self.ending.as_ref().map(Ending::due).or(expiry);
            self.wait(due);
            match &mut self.ending {
                Some(ending) => {
                    // Who does not die is waited for all the same.
                    ending.step(now(), &roots, &|| true);
                }
                None if expiry.is_some_and(|expiry| expiry <= now()) => {
                    self.ending = Some(Ending::begin(now(), grace, &roots, &|| true));
                }
                None => {}
            }
        }
        self.record.empty = true;
        self.write();
    }

    /// Ends what was started although nobody heard of it, and removes every trace.
    fn undo(&mut self) {
        let roots = roots();
        let mut ending = Ending::begin(now(), Duration::ZERO, &roots, &|| true);
        while self.bury() {
            self.wait(Some(ending.due()));
            ending.step(now(), &roots, &|| true);
        }
        // What cannot be removed stays, and says that nothing runs.
        let _stays = files::remove(&self.dir, &self.record);
    }

    /// Buries the dead; `false` when the kernel says that nobody is left.
    fn bury(&mut self) -> bool {
        loop {
            match wait::look() {
                Look::Alive => return true,
                Look::NoChild => return false,
                Look::Dead(dead) => {
                    self.note(&dead);
                    wait::reap(dead.pid);
                }
            }
        }
    }

    /// The end of the job's own process is written while its number is still taken.
    fn note(&mut self, dead: &Dead) {
        if self.root != Some(dead.pid) {
            return;
        }
        self.root = None;
        let stopper = files::stopper(&self.dir, &self.record.id).map(|by| Cause::Stopped { by });
        let cause = match &self.ending {
            Some(_) => Cause::Expired,
            None => stopper.unwrap_or(Cause::Itself),
        };
        self.record.end = Some(End { at: record::now(), cause, status: dead.exit.status });
        self.write();
    }

    /// Where it cannot be written now it may be at the end.
    fn write(&self) {
        let _later = files::store(&self.dir, &self.record);
    }

    fn wait(&self, until: Option<Instant>) {
        let left = until.map(|until| until.saturating_duration_since(now()));
        let limit = left.and_then(|left| Timespec::try_from(left).ok());
        let mut asked = [PollFd::new(self.deaths, PollFlags::IN)];
        if poll(&mut asked, limit.as_ref()).is_ok_and(|ready| ready > 0) {
            let mut bytes = [0; 1024];
            while rustix::io::read(self.deaths, &mut bytes).is_ok_and(|read| read > 0) {}
        }
    }
}

fn roots() -> [Root; 1] {
    [Root { pid: identity::own_pid(), member: false }]
}
