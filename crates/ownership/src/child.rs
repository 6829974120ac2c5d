//! A child or scope as its owner knows it: the request while it is unanswered, then what happened. The
//! asking thread and [`crate::client`]'s reader meet here.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::containment::{Containment, Machine, Tier};
use crate::exit::{ChildEvent, Emptied, Exit};
use crate::protocol::{Adopted, Failure, Order, Request};
use crate::ration::{Offers, Ration};
use crate::spawn::{Leftovers, Phase, SpawnError};
use crate::sys::{Pid, signal};
use crate::{crash, line};

/// What is called for each event of a child.
pub(crate) type OnEvent = Box<dyn FnMut(ChildEvent) + Send>;

/// A child or scope, as its owner knows it.
pub(crate) struct Child {
    pub(crate) id: u64,
    pub(crate) terms: Terms,
    /// What the error of a failed start is about.
    program: PathBuf,
    dir: Option<PathBuf>,
    known: Mutex<Known>,
    changed: Condvar,
    on_event: Mutex<OnEvent>,
}

/// What a guard must know of it for its end.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) grace: Duration,
    pub(crate) leftovers: Leftovers,
    /// Its release command, sealed, and the deadline of that.
    pub(crate) release: Option<(OwnedFd, Duration)>,
    /// It is a group that something else started.
    pub(crate) group: Option<Adopted>,
    /// What was asked for, as far as its owner knows.
    pub(crate) containment: Containment,
    pub(crate) ration: Ration,
}

impl Terms {
    /// Those of a process to be. `fds` are what the order carries.
    pub(crate) fn of(order: &Order, fds: &[OwnedFd]) -> Result<Self, SpawnError> {
        let command = fds.last().zip(order.release).map(|(command, deadline)| {
            command.try_clone().map(|command| (command, deadline)).map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(libc::EMFILE);
                request_error("a descriptor cannot be copied", errno)
            })
        });
        let (grace, leftovers) = (order.grace, order.leftovers);
        let (release, containment) = (command.transpose()?, order.containment);
        Ok(Self { grace, leftovers, release, group: None, containment, ration: order.ration })
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child").field("id", &self.id).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Known {
    /// The request, until it is answered.
    pending: Option<Arc<Packed>>,
    /// The answer, until the asking thread took it.
    answer: Option<Result<Answer, SpawnError>>,
    /// The pidfd of a process that was started.
    handle: Option<Arc<OwnedFd>>,
    pid: Pid,
    /// The number in its mark.
    scope: u64,
    exit: Option<Exit>,
    end: Option<End>,
    /// What was let live at its end is gone too.
    over: bool,
    wanted: Wanted,
}

/// What its owner wants of it, beside that it runs: said again to a guard that takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wanted {
    /// That it ends, with this grace.
    pub(crate) end: Option<Duration>,
    /// That it stands still, or goes on again, if either was ever asked for.
    pub(crate) paused: Option<bool>,
    /// That it is let go: at once, or once it is empty.
    pub(crate) disown: Option<bool>,
}

/// A process that another guard may take over.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) pid: Pid,
    pub(crate) scope: u64,
    pub(crate) handle: Arc<OwnedFd>,
}

/// A request ready to be sent, as often as needed.
pub(crate) struct Packed {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    sent: AtomicBool,
}

/// What a start led to.
#[derive(Debug)]
pub(crate) struct Answer {
    /// 0 for a scope without a process.
    pub(crate) pid: Pid,
    /// The number in its mark.
    pub(crate) scope: u64,
    /// The pidfd, or the line of a scope.
    pub(crate) fd: Arc<OwnedFd>,
}

#[derive(Debug, Clone)]
enum End {
    Emptied(Emptied),
    Lost,
}

impl Known {
    /// Whether this says that what was let live is gone.
    fn is_over_by(&self, event: &ChildEvent) -> bool {
        let let_live = matches!(&self.end, Some(End::Emptied(emptied)) if emptied.kept > 0);
        let is_end = match event {
            ChildEvent::Emptied(emptied) => emptied.kept == 0,
            ChildEvent::Lost => true,
            ChildEvent::Exited(_) | ChildEvent::Stopped(_) => false,
        };
        let_live && is_end && !self.over
    }
}

/// A panic of a callback leaves nothing half done behind these locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Child {
    pub(crate) fn new(
        id: u64,
        terms: Terms,
        program: PathBuf,
        dir: Option<PathBuf>,
        on_event: OnEvent,
    ) -> Self {
        Self {
            id,
            terms,
            program,
            dir,
            known: Mutex::default(),
            changed: Condvar::new(),
            on_event: Mutex::new(on_event),
        }
    }

    fn wait_for<T>(&self, mut ready: impl FnMut(&mut Known) -> Option<T>) -> T {
        let mut known = lock(&self.known);
        loop {
            if let Some(value) = ready(&mut known) {
                return value;
            }
            known = self.changed.wait(known).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A request is on its way.
    pub(crate) fn ask(&self, request: Arc<Packed>) {
        lock(&self.known).pending = Some(request);
    }

    /// The request, if it is not answered.
    pub(crate) fn pending(&self) -> Option<Arc<Packed>> {
        lock(&self.known).pending.clone()
    }

    pub(crate) fn wait_answer(&self) -> Result<Answer, SpawnError> {
        self.wait_for(|known| known.answer.take())
    }

    /// Whether its scope is known to be over.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.known).end.is_some()
    }

    /// How its process ended, if that is known.
    pub(crate) fn exit(&self) -> Option<Exit> {
        lock(&self.known).exit.clone()
    }

    pub(crate) fn wait_exit(&self) -> Option<Exit> {
        self.wait_for(|known| match (&known.exit, &known.end) {
            (Some(exit), _) => Some(Some(exit.clone())),
            (None, Some(_)) => Some(None),
            (None, None) => None,
        })
    }

    pub(crate) fn wait_empty(&self) -> Option<Emptied> {
        self.wait_for(|known| match &known.end {
            Some(End::Emptied(emptied)) => Some(Some(emptied.clone())),
            Some(End::Lost) => Some(None),
            None => None,
        })
    }

    pub(crate) fn answer(&self, answer: Result<Answer, SpawnError>) {
        let mut known = lock(&self.known);
        known.pending = None;
        if let Some(answer) = answer.as_ref().ok().filter(|answer| answer.pid != 0) {
            known.handle = Some(Arc::clone(&answer.fd));
            (known.pid, known.scope) = (answer.pid, answer.scope);
        }
        known.answer = Some(answer);
        self.changed.notify_all();
    }

    /// Its process, if it has one that is not known to have left its scope empty.
    pub(crate) fn running(&self) -> Option<Running> {
        let known = lock(&self.known);
        let handle = Arc::clone(known.handle.as_ref().filter(|_| known.end.is_none())?);
        Some(Running { pid: known.pid, scope: known.scope, handle })
    }

    /// Number of its process and of its scope, if its end was told while something was let live.
    pub(crate) fn kept(&self) -> Option<(Pid, u64)> {
        let known = lock(&self.known);
        let kept = matches!(&known.end, Some(End::Emptied(Emptied { kept: 1.., .. })));
        kept.then_some((known.pid, known.scope))
    }

    /// Notes what is wanted of it, and gives all of it.
    pub(crate) fn want(&self, change: impl FnOnce(&mut Wanted)) -> Wanted {
        let mut known = lock(&self.known);
        change(&mut known.wanted);
        known.wanted
    }

    /// Told to the callback first, so that who waits for it finds the callback's work done. Its panic is
    /// its own affair: the thread that calls it serves every other child too.
    ///
    /// What was said by one guard may be said again by the next: the second time is not told. After an end that
    /// let something live, one more comes: when that is gone.
    pub(crate) fn tell(&self, event: ChildEvent) {
        let mut known = lock(&self.known);
        if known.is_over_by(&event) {
            known.over = true;
        } else if known.end.is_some()
            || (known.exit.is_some() && matches!(event, ChildEvent::Exited(_)))
        {
            return;
        }
        drop(known);
        let told = AssertUnwindSafe(|| lock(&self.on_event)(event.clone()));
        if catch_unwind(told).is_err() {
            tracing::error!(id = self.id, "the callback of a child panicked");
        }
        let mut known = lock(&self.known);
        match event {
            ChildEvent::Stopped(_) => {}
            ChildEvent::Exited(exit) => known.exit = Some(exit),
            // The first end is what its owner was told.
            ChildEvent::Emptied(_) | ChildEvent::Lost if known.over => {}
            ChildEvent::Emptied(emptied) => known.end = Some(End::Emptied(emptied)),
            ChildEvent::Lost => known.end = Some(End::Lost),
        }
        self.changed.notify_all();
    }

    /// The supervisor is gone. What was not answered may or may not have been done.
    pub(crate) fn lose(&self) {
        let (pending, handle) = {
            let known = lock(&self.known);
            (known.pending.is_some(), known.handle.clone())
        };
        if pending {
            return self.answer(Err(supervisor_error("its guards died", None)));
        }
        // What something else started is not ours to kill while the owner lives.
        if let Some(handle) = handle.filter(|_| self.terms.group.is_none()) {
            // Fails only when it is dead already.
            let _ = signal::send(handle.as_fd(), libc::SIGKILL);
        }
        self.tell(ChildEvent::Lost);
    }

    /// What is missing when a file that is there cannot be executed because there is "no such file".
    fn missing_interpreter(&self) -> Option<String> {
        use std::io::Read;
        // A bare name was looked up in a PATH that is not ours; a directory of the child comes first.
        let named = self.program.as_os_str().as_bytes().contains(&b'/');
        let path = self.dir.as_ref().map_or(self.program.clone(), |dir| dir.join(&self.program));
        let file = std::fs::File::open(path).ok().filter(|_| named)?;
        let mut head = Vec::new();
        file.take(256).read_to_end(&mut head).ok()?;
        let line = head.split(|byte| *byte == b'\n').next()?;
        let Some(line) = line.strip_prefix(b"#!") else {
            return Some("its loader or interpreter does not exist".into());
        };
        let line = String::from_utf8_lossy(line);
        let interpreter = line.split_whitespace().next().unwrap_or_default();
        Some(format!("its interpreter {interpreter} does not exist"))
    }

    pub(crate) fn error(&self, failure: Failure, no_scope: Option<String>) -> SpawnError {
        let path = match failure.phase {
            Phase::Chdir => self.dir.clone(),
            Phase::Request
            | Phase::Supervisor
            | Phase::Clone
            | Phase::Setup
            | Phase::Exec
            | Phase::Ration
            | Phase::Contain => Some(self.program.clone()),
        };
        let detail = match (failure.phase, failure.errno) {
            (Phase::Exec, libc::ENOEXEC) => {
                Some("not a program, and no #! in its first line".into())
            }
            (Phase::Exec, libc::ENOENT) => self.missing_interpreter(),
            (Phase::Contain, errno) => Some(not_contained(self.terms.containment, errno, no_scope)),
            (Phase::Ration, errno) => Some(not_rationed(&self.terms, errno)),
            _ => None,
        };
        let said = || std::io::Error::from_raw_os_error(failure.errno).to_string();
        SpawnError {
            phase: failure.phase,
            errno: Some(failure.errno),
            path,
            detail: detail.unwrap_or_else(said),
        }
    }
}

impl Packed {
    pub(crate) fn new(bytes: Vec<u8>, fds: Vec<OwnedFd>) -> Self {
        Self { bytes, fds, sent: AtomicBool::new(false) }
    }

    pub(crate) fn mark_sent(&self) {
        self.sent.store(true, Ordering::Relaxed);
    }

    /// No guard has read it.
    pub(crate) fn mark_unsent(&self) {
        self.sent.store(false, Ordering::Relaxed);
    }

    /// Whether a guard may have read it.
    pub(crate) fn was_sent(&self) -> bool {
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits for room: a supervisor reads unless thousands of its replies are unread.
    pub(crate) fn send(&self, line: &OwnedFd) {
        let fds: Vec<BorrowedFd<'_>> = self.fds.iter().map(AsFd::as_fd).collect();
        let name = || Some(Request::decode(&self.bytes)?.name());
        crash::asker_comes("before-ask", name);
        if let Err(error) = line::send(line.as_fd(), &self.bytes, &fds, true) {
            tracing::debug!(%error, "not sent: the line has ended");
        }
        crash::asker_comes("after-ask", name);
    }
}

pub(crate) fn supervisor_error(detail: &str, errno: Option<i32>) -> SpawnError {
    SpawnError { phase: Phase::Supervisor, errno, path: None, detail: detail.to_owned() }
}

pub(crate) fn request_error(detail: &str, errno: i32) -> SpawnError {
    SpawnError { phase: Phase::Request, errno: Some(errno), path: None, detail: detail.to_owned() }
}

/// Why what was asked for by name cannot be had, where the guards ran.
fn not_contained(asked: Containment, errno: i32, no_scope: Option<String>) -> String {
    let machine = Machine { scope: no_scope.map(Err), ..Machine::look() };
    let tier = match asked {
        Containment::PidNamespace => Tier::PidNamespace,
        Containment::Auto | Containment::Subreaper | Containment::Cgroup => Tier::Cgroup,
    };
    let why = machine.refusal(tier);
    let why = why.map_or_else(
        || std::io::Error::from_raw_os_error(errno).to_string(),
        |why| why.to_string(),
    );
    let what = tier.word().replace('-', " ");
    format!("a {what} was asked for, and there can be none: {why}. With `auto` it starts without")
}

/// Why a limit cannot be held, where the guards ran.
fn not_rationed(terms: &Terms, errno: i32) -> String {
    let offers = Offers::look(terms.containment);
    let missing = terms.ration.asked().map(|limit| offers.decide(limit));
    let missing = missing.filter(|held| held.means.is_none()).map(|held| {
        let why: Vec<_> = held.not.iter().map(ToString::to_string).collect();
        format!("{} cannot be limited here: {}", held.limit.word(), why.join("; "))
    });
    let missing: Vec<_> = missing.collect();
    if missing.is_empty() {
        let error = std::io::Error::from_raw_os_error(errno);
        return format!("what it may use could not be limited: {error}");
    }
    missing.join(". ")
}
