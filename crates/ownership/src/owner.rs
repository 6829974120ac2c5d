//! The owning side: starts the guards when they are first needed, asks it, and hands out what comes
//! back. What travels and who reads it is in the `client` module.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::client::{Answer, Child, Client};
use crate::containment::Containment;
use crate::exit::{ChildEvent, Emptied, Exit};
use crate::group::GroupError;
use crate::number::next_spawn;
pub use crate::program::KEEPER_ROLE;
use crate::program::{Program, SUPERVISOR_ROLE, Stand, is_role};
use crate::recorder::{Entry, Recorder};
use crate::spawn::{DEFAULT_GRACE, Phase, Spawn, SpawnError};

/// A connection to a supervisor. Cheap to clone; all clones are one owner.
///
/// A copy of the process made by fork refuses to use it.
#[derive(Debug, Clone)]
pub struct Owner {
    client: Arc<Client>,
    recorder: Recorder,
}

impl Owner {
    /// An owner whose guards are `program`, run with [`KEEPER_ROLE`] and then `args`. They are started at
    /// the first spawn and leave after 30 s without children; the next spawn starts others.
    #[must_use]
    pub fn new(program: Program, args: Vec<OsString>) -> Self {
        Self { client: Client::start(program, args, Stand::Apart), recorder: Recorder::off() }
    }

    /// One whose guards are its children and stay in its session, and which has nothing but a [`crate::wrap`].
    #[cfg(target_os = "linux")]
    pub(crate) fn near(program: Program) -> Self {
        Self { client: Client::start(program, Vec::new(), Stand::Near), recorder: Recorder::off() }
    }

    /// The one that was taken up again.
    #[cfg(target_os = "linux")]
    pub(crate) fn taken_up(client: Arc<Client>) -> Self {
        Self { client, recorder: Recorder::off() }
    }

    /// The owner at the other end of a line that this process inherited ([`Spawn::line`]). What it
    /// starts belongs to this process's own scope. Marks the descriptor close-on-exec.
    #[must_use]
    pub fn inherited(line: OwnedFd) -> Self {
        Self { client: Client::given(line), recorder: Recorder::off() }
    }

    /// Writes down what it starts and what becomes of it: the intent before anything is started, for which
    /// a spawn waits 2 s at most.
    #[cfg(all(target_os = "linux", feature = "ledger"))]
    ///
    /// Its guards keep their journal beside that file, as [`Owner::with_journal`] says.
    #[must_use]
    pub fn with_ledger(self, ledger: Arc<crate::ledger::Ledger>) -> Self {
        if let Some(dir) = ledger.path().parent() {
            self.client.keep_journal(dir);
        }
        Self { recorder: Recorder::new(ledger), ..self }
    }

    /// Looks for what dead owners have left, as the schedule says, on a thread of its own. Needs a ledger
    /// ([`Owner::with_ledger`]), and does nothing without one. The thread ends when nobody has that any more.
    #[cfg(all(target_os = "linux", feature = "ledger"))]
    #[must_use]
    pub fn with_janitor(self, schedule: crate::janitor::Schedule) -> Self {
        if let Some(ledger) = self.recorder.ledger() {
            crate::janitor::begin(ledger, schedule);
        }
        self
    }

    /// Guards that are started from now on write down below `dir` what they see and do
    /// ([`crate::journal`]). All clones of an owner have the same guards, so the first directory stays. Nothing is
    /// written where a file system may keep its writer waiting: one of a network, or of another process.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn with_journal(self, dir: impl AsRef<std::path::Path>) -> Self {
        self.client.keep_journal(dir.as_ref());
        self
    }

    /// Guards that are started from now on hold scopes together with this, unless a [`Spawn`] says otherwise;
    /// without it [`Containment::Auto`]. All clones of an owner have the same guards, so the first one stays.
    #[must_use]
    pub fn with_containment(self, containment: Containment) -> Self {
        self.client.contain(containment);
        self
    }

    /// Why the systemd that its guards asked for a cgroup gave none, with what to do where that is known. `None` when it
    /// gave one, when nobody had to be asked, and before the guards were there ([`Machine::door`](crate::Machine::door)).
    #[must_use]
    pub fn no_scope(&self) -> Option<String> {
        self.client.no_scope()
    }

    /// Guards that are started from now on leave alone what dead owners left in cgroups, which they end otherwise: for
    /// who wants to look first ([`crate::janitor`]). All clones of an owner have the same guards.
    #[must_use]
    pub fn leaving_stale(self) -> Self {
        self.client.leave_stale();
        self
    }

    /// Guards that are started from now on let live what these rules keep ([`crate::keep`]). All clones of an owner have
    /// the same guards, so the first ones stay.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub(crate) fn with_kept(self, rules: &crate::keep::Rules) -> Self {
        if !rules.is_empty() {
            self.client.keep(rules.to_string());
        }
        self
    }

    /// Starts a process. Blocks until it was executed or has failed.
    ///
    /// `on_event` is called on this owner's reader thread, in order, for everything that happens to
    /// the child: it must not block, and must not start anything.
    ///
    /// # Errors
    /// Nothing was started; the error says at which step, with error number and path.
    pub fn spawn(
        &self,
        spawn: Spawn,
        mut on_event: impl FnMut(ChildEvent) + Send + 'static,
    ) -> Result<Owned, SpawnError> {
        let grace = spawn.grace;
        let number = next_spawn();
        let entry = self.recorder.intent(number, &spawn, || self.client.prepare());
        let (told, mut has_ended) = (entry.clone(), false);
        let on_event = move |event| {
            told.event(&event);
            // That what was let live is gone is for the ledger only: a child ends once.
            let goes_on = matches!(event, ChildEvent::Exited(_) | ChildEvent::Stopped(_));
            if !std::mem::replace(&mut has_ended, !goes_on) {
                on_event(event);
            }
        };
        let asked = self.client.spawn(number, spawn, Box::new(on_event));
        let (child, answer) = asked.inspect_err(|error| entry.failed(error))?;
        let Answer { pid, fd: pidfd, .. } = answer;
        entry.started(pid.cast_unsigned(), &pidfd);
        let scope =
            ScopeHandle { client: Arc::clone(&self.client), child, grace, entry: Some(entry) };
        Ok(Owned { scope, pid: pid.cast_unsigned(), pidfd })
    }

    /// Takes over process groups that something else started in this process (`std::process::Command` with
    /// `process_group`, a library): when this process is gone, in any way, they are ended as children are.
    /// Until then they are left alone. Groups are named by the numbers of their leaders, which must not be
    /// reaped yet. A group that is owned already stays so.
    ///
    /// They are the owner's children, not the guards', so what has left its group by then is found by its
    /// parents, its session if the leader leads one, and by [`Owner::mark`]; see the README for what is
    /// missed. [`Owner::spawn`] misses nothing.
    ///
    /// # Errors
    /// One of them must not be signalled (0, 1, a negative number, the group of this process, of one that
    /// it descends from or of a guard), leads no group, or is a stranger's: its leader neither descends from this process
    /// nor bears an [`Owner::mark`] of this owner. Then none is adopted. Also when the guards cannot
    /// be reached; those before it are adopted then.
    pub fn own_process_groups(&self, leaders: &[i32]) -> Result<(), GroupError> {
        self.client.own_groups(leaders)
    }

    /// Lets groups go: nothing happens to them any more. When this returns it is so. What is not owned is
    /// no error. Not to be called from an `on_event`, for whose thread it waits.
    pub fn release_process_groups(&self, leaders: &[i32]) {
        self.client.release_groups(leaders);
    }

    /// Lets a group go as soon as nobody in it lives; zombies count as gone. Until then it is owned. For a
    /// leader that is about to be reaped, after which others could get its number. Returns at once.
    pub fn release_process_group_once_empty(&self, leader: i32) {
        self.client.release_group_once_empty(leader);
    }

    /// Name and value of an environment variable. What bears it ends with the group whose leader bears it,
    /// even when it has left group, session and parents. For each call another value.
    #[must_use]
    pub fn mark(&self) -> (String, String) {
        self.client.mark()
    }

    /// Opens a scope without a process of its own: programs started through [`Scope::owner`] end
    /// together when the scope is ended or dropped. For agents that run in a thread.
    ///
    /// # Errors
    /// When the supervisor cannot be started or reached.
    pub fn scope(
        &self,
        purpose: &str,
        on_event: impl FnMut(ChildEvent) + Send + 'static,
    ) -> Result<Scope, SpawnError> {
        tracing::debug!(purpose, "scope");
        let grace = DEFAULT_GRACE;
        let (child, answer) = self.client.open(grace, Box::new(on_event))?;
        let scope = ScopeHandle { client: Arc::clone(&self.client), child, grace, entry: None };
        // Nobody else holds the line of a scope.
        let line = Arc::into_inner(answer.fd).ok_or_else(|| SpawnError {
            phase: Phase::Request,
            errno: None,
            path: None,
            detail: "the line of the scope is held elsewhere".into(),
        })?;
        let owner = Self { recorder: self.recorder.clone(), ..Self::inherited(line) };
        Ok(Scope { scope, owner })
    }
}

static DEFAULT: OnceLock<Owner> = OnceLock::new();

/// Starts a process under the owner that [`set_default`] named.
///
/// # Errors
/// As [`Owner::spawn`]; also when no default owner is set.
pub fn spawn_owned(spawn: Spawn) -> Result<Owned, SpawnError> {
    let owner = DEFAULT.get().ok_or_else(|| SpawnError {
        phase: Phase::Request,
        errno: None,
        path: None,
        detail: "no default owner is set".into(),
    })?;
    owner.spawn(spawn, |_| {})
}

/// Makes `owner` the one that [`spawn_owned`] uses. The first call wins; `false` for later ones.
pub fn set_default(owner: Owner) -> bool {
    DEFAULT.set(owner).is_ok()
}

/// When this process was started as a guard, or as the shim of an exempt job, runs it to its end. Call it
/// first in `main`, before any thread exists.
#[must_use]
pub fn run_if_asked() -> Option<ExitCode> {
    let role = std::env::args_os().nth(1)?;
    if is_role(&role, KEEPER_ROLE) {
        Some(crate::client::run_keeper())
    } else if is_role(&role, SUPERVISOR_ROLE) {
        Some(crate::client::run_supervisor())
    } else if is_role(&role, crate::program::FIRST_ROLE) {
        Some(crate::client::run_first())
    } else if role == crate::exempt::SHIM_ROLE {
        Some(crate::exempt::run_shim())
    } else {
        None
    }
}

/// What [`Owned`] and [`Scope`] share: a scope that is ended when its handle is dropped.
#[derive(Debug)]
struct ScopeHandle {
    client: Arc<Client>,
    child: Arc<Child>,
    grace: Duration,
    /// `None` for a scope without a process.
    entry: Option<Entry>,
}

impl ScopeHandle {
    fn end(&self, grace: Duration, why: &str) {
        if let Some(entry) = &self.entry {
            entry.ending(why);
        }
        self.client.end(&self.child, grace);
    }

    fn pause(&self) {
        self.client.pause(&self.child);
    }

    fn resume(&self) {
        self.client.resume(&self.child);
    }
}

impl Drop for ScopeHandle {
    fn drop(&mut self) {
        if !self.child.has_ended() {
            self.end(self.grace, "dropped");
        }
    }
}

/// A running child. Dropping it ends its scope (TERM, CONT, grace, KILL); the supervisor does that,
/// no thread of ours waits.
#[derive(Debug)]
#[must_use = "dropping it ends the child"]
pub struct Owned {
    scope: ScopeHandle,
    pid: u32,
    pidfd: Arc<OwnedFd>,
}

impl Owned {
    /// One that was started by the program that this process was before.
    #[cfg(target_os = "linux")]
    pub(crate) fn returned(
        client: Arc<Client>,
        child: Arc<Child>,
        grace: Duration,
        entry: Option<Entry>,
        answer: Answer,
    ) -> Self {
        let Answer { pid, fd: pidfd, .. } = answer;
        let scope = ScopeHandle { client, child, grace, entry };
        Self { scope, pid: pid.cast_unsigned(), pidfd }
    }

    /// What its owner's line knows it as.
    #[cfg(target_os = "linux")]
    pub(crate) fn number(&self) -> u64 {
        self.scope.child.id
    }

    /// Its pid: an address for messages, not an identity.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The cgroup that it stands in, as the kernel tells now; `None` when it has none of its own
    /// ([`Containment`]), has left it, or has ended.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn cgroup(&self) -> Option<std::path::PathBuf> {
        let own = std::fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).ok()?;
        let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
        let path = std::path::Path::new(path);
        // Directly, or in a pen.
        let around = path.ancestors().skip(1).take(2).filter_map(|dir| dir.file_name()?.to_str());
        let mut around = around.map(|name| name.starts_with("ownership-"));
        around.any(|is_place| is_place).then(|| path.to_owned())
    }

    /// Its pidfd; readable when it has ended (man 2 pidfd_open).
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Ends the scope: TERM and CONT to all of it, after `grace` KILL, until it is empty. Returns at
    /// once; [`ChildEvent::Emptied`] tells when. Later calls can only shorten the grace.
    pub fn end(&self, grace: Duration) {
        self.scope.end(grace, "asked");
    }

    /// Ends the scope without grace.
    pub fn kill(&self) {
        self.end(Duration::ZERO);
    }

    /// Stops (SIGSTOP) every process of the scope.
    pub fn pause(&self) {
        self.scope.pause();
    }

    /// Continues every process of the scope.
    pub fn resume(&self) {
        self.scope.resume();
    }

    /// Waits for the exit. `None` when it is not known: the child is lost, or it cannot die and its scope's
    /// end was told without it.
    pub fn wait(&self) -> Option<Exit> {
        self.scope.child.wait_exit()
    }

    /// Waits until the scope is empty. `None` when the child is lost.
    pub fn wait_empty(&self) -> Option<Emptied> {
        self.scope.child.wait_empty()
    }
}

#[cfg(target_os = "linux")]
impl Spawn {
    /// Starts no program, but a copy of this template: descriptors, environment, directory, scope and all
    /// else are as of one that executes it. It needs a [`Spawn::line`]. What the template is to be shown as
    /// stays what this spawn is shown as.
    #[cfg(target_os = "linux")]
    pub fn copy_of(mut self, template: &Owned) -> Self {
        self.copies = Some(template.number());
        self
    }
}

/// A scope without a process of its own. Dropping it ends what was started in it.
#[derive(Debug)]
#[must_use = "dropping it ends what was started in it"]
pub struct Scope {
    scope: ScopeHandle,
    owner: Owner,
}

impl Scope {
    /// The owner to start programs with.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.owner.clone()
    }

    /// As [`Owned::end`].
    pub fn end(&self, grace: Duration) {
        self.scope.end(grace, "asked");
    }

    /// As [`Owned::pause`].
    pub fn pause(&self) {
        self.scope.pause();
    }

    /// As [`Owned::resume`].
    pub fn resume(&self) {
        self.scope.resume();
    }
}
