//! How a guard begins: from the descriptors that it inherited to a loop that runs.
//!
//! The keeper's first stage leaves in a copy, so that the owner's process sees no child that it did not
//! start; the keeper then starts the supervisor, which is its child. Near its owner ([`Stand::Near`]) the
//! keeper is the owner's child itself, and has no session of its own.

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use super::containment::Tier;
use super::door::Doorway;
use super::keep::Keeping;
use super::off::{Off, die_in_set_up, fail_at_start};
use super::peer::Peer;
use super::voice::{Line, Word};
use super::{IDLE_LIMIT, Loop, chronicle, now, scope};
use crate::hook;
use crate::identity::{self, Stat};
use crate::launch;
use crate::membership::{Protected, Source};
use crate::program::{RoleNumbers, Stand};
use crate::protocol::{MAX_INLINE, Reply, VERSION};
use crate::registry::ScopeId;
use crate::succession::{Role, Succession};
use crate::supervisor::Supervisor;
use crate::sys::{process, signal};
use crate::table::Table;

/// For tests only: milliseconds without children after which the guards leave.
const TEST_IDLE: &str = "OWNERSHIP_TEST_IDLE_MS";

/// Runs this process as a keeper, to its end.
pub(crate) fn run_keeper() -> ExitCode {
    let fds = [process::inherited(3), process::inherited(4)];
    let [Some(control), Some(owner)] = fds else { return ExitCode::from(2) };
    run(|| {
        cut_off(&[&control, &owner], 5)?;
        die_in_set_up("stage");
        if role_numbers().stand == Stand::Near {
            return Loop::keeper(control, owner);
        }
        process::go_on_in_a_copy()?;
        die_in_set_up("keeper");
        // Fails only if the stage's parent leads us already; then we are in a session of our own.
        // detached-spawn: ok — the guards themselves must outlive their owner, to end what that left
        let _ = rustix::process::setsid();
        Loop::keeper(control, owner)
    })
}

/// Runs this process as the supervisor below a keeper, to its end.
pub(crate) fn run_supervisor() -> ExitCode {
    let fds = [3, 4, 5, 6, 7, 8].map(process::inherited);
    let [Some(control), Some(owner), Some(link), Some(table), Some(keeper), Some(alive)] = fds
    else {
        return ExitCode::from(2);
    };
    run(|| {
        cut_off(&[&control, &owner, &link, &table, &keeper, &alive], 9)?;
        fail_at_start()?;
        die_in_set_up("supervisor");
        Loop::supervisor([control, owner, link, table, keeper, alive])
    })
}

fn run(set_up: impl FnOnce() -> io::Result<Loop>) -> ExitCode {
    std::panic::set_hook(Box::new(|_| std::process::abort()));
    match set_up().map(Loop::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Keeps nothing that was inherited but these.
pub(super) fn cut_off(kept: &[&OwnedFd], first_other: i32) -> io::Result<()> {
    for fd in kept {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?;
    }
    process::close_from(first_other);
    process::quiet_standard_streams()
}

impl Loop {
    /// A keeper whose supervisor is still to be started.
    fn keeper(control: OwnedFd, owner: OwnedFd) -> io::Result<Self> {
        show_as("warden");
        let no_scope = scope::enter(&owner);
        let table = Table::create()?;
        table.numbered_up_to(role_numbers().before);
        let (_, alive) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let mut keeper = Self::new(Role::Keeper, control, owner, (table, alive), no_scope)?;
        keeper.start_due = true;
        Ok(keeper)
    }

    fn supervisor([control, owner, link, table, keeper, alive]: [OwnedFd; 6]) -> io::Result<Self> {
        show_as("minder");
        let no_scope = std::env::var(launch::NO_SCOPE).ok();
        let table = Table::open(table)?;
        let mut supervisor = Self::new(Role::Supervisor, control, owner, (table, alive), no_scope)?;
        let shown = identity::pid_of(keeper.as_fd()).unwrap_or(0);
        // The keeper took the number before ours for itself, or has had others since: it says so by the
        // rows that it holds.
        let keeper = Peer::new(keeper, (0, shown), supervisor.table.keeper(), link);
        supervisor.peer = Some(keeper);
        supervisor.serves = true;
        supervisor.machine.set_idle_limit(Some(supervisor.idle_limit), now());
        supervisor.hello(ScopeId::ALL);
        Ok(supervisor)
    }

    fn new(
        role: Role,
        control: OwnedFd,
        owner: OwnedFd,
        (table, alive): (Table, OwnedFd),
        no_scope: Option<String>,
    ) -> io::Result<Self> {
        rustix::process::chdir("/")?;
        signal::ignore_terminal();
        let off = Off::from_environment(role);
        if !off.subreaper {
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        }
        // A dead owner has no number any more; its death is the first thing that will be seen.
        let owner_pid = identity::pid_of(owner.as_fd()).unwrap_or(0);
        let stat = Stat::read(owner_pid);
        let start = stat.as_ref().map_or(0, |stat| stat.start);
        let idle = hook::setting(TEST_IDLE).and_then(|millis| millis.parse().ok());
        let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
        let generation = table.next_generation();
        let mut guard = Self {
            machine: Supervisor::new(None, first_scope(generation), now()),
            succession: Succession::new(role, now()),
            generation,
            table,
            journal: chronicle::open(&owner),
            rows: HashMap::new(),
            unread: Vec::new(),
            peer: None,
            start_due: false,
            mirrors: HashMap::new(),
            commands: HashMap::new(),
            alive,
            firsts: HashMap::new(),
            serves: false,
            owner,
            owner_identity: format!("{owner_pid}.{start}.{}", role_numbers().owner),
            owner_gone: false,
            idle_limit: idle.map_or(IDLE_LIMIT, Duration::from_millis),
            deaths: signal::child_deaths(role_numbers().stand == Stand::Near)?,
            null: null.into(),
            own_handle: identity::own_pidfd()?,
            lines: HashMap::from([(ScopeId::ALL, Line::new(control))]),
            templates: HashMap::new(),
            parting: Vec::new(),
            handles: HashMap::new(),
            fosters: HashMap::new(),
            groups: HashMap::new(),
            met: HashMap::new(),
            marks: None,
            fresh: HashMap::new(),
            reached: HashMap::new(),
            source: if off.lists { Source::Scan } else { Source::probe() },
            protected: Protected {
                own: identity::own_group(),
                owner: stat.map_or(0, |stat| stat.group),
            },
            open_files: raise_open_files(),
            oom_score: lower_oom_score(),
            off,
            tier: Tier::of_guard(no_scope),
            keeping: Keeping::of_guard(),
            doorway: Doorway::default(),
            recount: None,
            buffer: vec![0; MAX_INLINE + 1],
            unburied: false,
            backlog: false,
            leaving: false,
            done: false,
        };
        // Those before us may be dead, and the owner a moment later.
        guard.hold_place();
        Ok(guard)
    }

    /// Says who serves this line from now on.
    pub(super) fn hello(&mut self, line: ScopeId) {
        self.die_at("hello");
        let keeper = match &self.peer {
            Some(peer) if self.succession.role() == Role::Supervisor => &peer.handle,
            Some(_) | None => &self.own_handle,
        };
        let fds = [&self.own_handle, keeper].into_iter().flat_map(OwnedFd::try_clone).collect();
        let (pid, generation) = (identity::own_pid(), self.generation);
        let hello = Reply::Hello { version: VERSION, pid, generation };
        let no_scope = self.tier.no_scope.clone().map(String::into_bytes);
        if let Some(line) = self.lines.get_mut(&line) {
            line.say(Word::new(&hello, fds));
            if let Some(why) = no_scope {
                line.say(Word::new(&Reply::NoScope { why }, Vec::new()));
            }
        }
    }
}

/// The name of the process, which is that of its first thread.
fn show_as(name: &str) {
    // A name is a help, not a need.
    drop(std::fs::write("/proc/self/comm", name));
}

/// Scopes of different guards have different numbers.
fn first_scope(generation: u32) -> u64 {
    (u64::from(generation) << 32) + 1
}

/// What the role's argument carries.
pub(super) fn role_numbers() -> RoleNumbers {
    let role = std::env::args_os().nth(1).unwrap_or_default();
    RoleNumbers::of(&role.to_string_lossy())
}

/// This program, as a keeper starts it again.
pub(super) fn own_program() -> io::Result<OwnedFd> {
    Ok(std::fs::File::open("/proc/self/exe")?.into())
}

/// What follows the role in this program's arguments.
pub(super) fn trailing_args() -> impl Iterator<Item = Vec<u8>> {
    use std::os::unix::ffi::OsStringExt;
    std::env::args_os().skip(2).map(OsStringExt::into_vec)
}

/// A guard holds a handle for each child, and a line for some: takes as many descriptors as it
/// may, and gives its children what they would have had.
fn raise_open_files() -> Option<(u64, u64)> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let (soft, hard) = (before.current?, before.maximum?);
    let raised = Rlimit { current: Some(hard), maximum: Some(hard) };
    setrlimit(Resource::Nofile, raised).ok()?;
    Some((soft, hard))
}

/// For want of memory others are killed first: a guard has little, and holds what must not be left. Gives what
/// it was. Where it may not be lowered (man 5 proc_pid_oom_score_adj), nothing changes.
fn lower_oom_score() -> Option<CString> {
    let path = "/proc/self/oom_score_adj";
    let before = std::fs::read_to_string(path).ok()?;
    if before.trim().parse().is_ok_and(|score: i32| score <= OOM_SCORE) {
        return None;
    }
    std::fs::write(path, OOM_SCORE.to_string()).ok()?;
    CString::new(before.trim()).ok()
}

/// Nearly never. With -1000, which is never, a guard that itself has a fault could take the machine with it.
const OOM_SCORE: i32 = -900;
