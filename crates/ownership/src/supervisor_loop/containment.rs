//! Cgroups of scopes, as a second membership beside descent: a scope's process is born in one, whoever
//! lives in it is of that scope, and what an owner left that died with both its guards is found by it.
//!
//! Descent and ECHILD stay the measure of an end; a cgroup says the same again, and more where descent
//! says nothing. Files are in [`crate::cgroup`], which tier can be had in [`crate::containment`].

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{Loop, now, scope};
use crate::cgroup::{self, Cell, Place, Stale};
use crate::containment::{Containment, Why, cgroup_of_guards};
use crate::hook;
use crate::identity::Stat;
use crate::journal;
use crate::launch::{self, CONTAINMENT, LEAVES_STALE, Setting};
use crate::line;
use crate::membership::Member;
use crate::protocol::{Failure, Image, Order};
use crate::registry::ScopeId;
use crate::spawn::{DEFAULT_GRACE, Phase};
use crate::succession::Role;
use crate::supervisor::Event;
use crate::sys::Pid;
use crate::table::Slot;

/// For tests only: what is asked for instead of what the owner has.
const TEST_CONTAINMENT: &str = "OWNERSHIP_TEST_CONTAINMENT";

/// What is empty and cannot be removed yet is tried again after this time; what a dead owner left, first
/// after this time, then after twice that, up to [`SLOWEST_LOOK`].
const FIRST_LOOK: Duration = Duration::from_millis(20);
const SLOWEST_LOOK: Duration = Duration::from_secs(2);

/// A guard that leaves may remove an empty cgroup that its successor has just made: it is made again.
const CELL_TRIES: usize = 2;

/// How scopes are held together here.
pub(super) struct Tier {
    /// What the owner asked for.
    pub(super) asked: Containment,
    /// What dead owners left is not ours to end.
    leaves_stale: bool,
    /// Our own cgroup, or why there is none to be used.
    base: Result<PathBuf, Why>,
    /// Why a systemd that was asked for a scope gave none.
    pub(super) no_scope: Option<String>,
    place: Option<Place>,
    /// Cgroups of scopes that are over, which could not be removed.
    lingering: Vec<Cell>,
    stale: Vec<Ending>,
    due: Option<Instant>,
    pause: Duration,
}

/// What a dead owner left, while it is ended.
struct Ending {
    left: Stale,
    kill_at: Instant,
    killed: bool,
}

impl Tier {
    pub(super) fn of_guard(no_scope: Option<String>) -> Self {
        let (asked, leaves_stale) = asked();
        let seen = cgroup_of_guards();
        let base = match (&seen.dir, seen.refusal()) {
            _ if hook::is_off("cgroup") => Err(Why::NotTried),
            // That none was made yet is no reason.
            (Some(dir), Some(Why::NotWritable { .. }) | None) if seen.into => Ok(dir.clone()),
            (_, why) => Err(why.unwrap_or(Why::NoInto)),
        };
        Self {
            asked,
            leaves_stale,
            base,
            no_scope,
            place: None,
            lingering: Vec::new(),
            stale: Vec::new(),
            due: None,
            pause: FIRST_LOOK,
        }
    }

    /// When there is something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The descriptors that it holds.
    pub(super) fn files(&self) -> usize {
        usize::from(self.place.is_some()) + self.stale.len()
    }

    /// Whether everything that was found was told to end, and after its grace killed.
    pub(super) fn is_done(&self) -> bool {
        self.stale.iter().all(|ending| ending.killed)
    }

    /// Nothing is there to be looked at: most machines of the weakest tier.
    fn is_blind(&self) -> bool {
        self.base.is_err()
    }
}

/// What the owner asks for, and whether what dead owners left is not the guards' to end.
pub(super) fn asked() -> (Containment, bool) {
    let said = std::env::var(CONTAINMENT).unwrap_or_default();
    let named = said.strip_suffix(LEAVES_STALE).unwrap_or(&said);
    let tested = hook::setting(TEST_CONTAINMENT).and_then(|word| word.parse().ok());
    (tested.or_else(|| named.parse().ok()).unwrap_or_default(), named.len() < said.len())
}

/// Descriptors of a child to be: those that the order carries, its line, and where it is a template the
/// number and its end of the line on which it is asked to fork.
type Given<'a> = (&'a [OwnedFd], Option<&'a OwnedFd>, Option<(RawFd, &'a OwnedFd)>);

impl Loop {
    /// Starts what was ordered, in the cgroup of its scope if it gets one.
    pub(super) fn start_contained(
        &mut self,
        scope: ScopeId,
        slot: Slot,
        order: &Order,
        fds: &[OwnedFd],
        theirs: Option<&OwnedFd>,
    ) -> Result<(Pid, OwnedFd), Failure> {
        // Copies of a template write theirs over its own, so all are of one length.
        let tag = match (order.template, &order.image) {
            (None, Image::Named(_) | Image::Open) => {
                let tag = format!("{}:{}", self.owner_identity, scope.0);
                if self.wants_namespace(scope, order.containment) {
                    return self.start_in_namespace(scope, slot, order, fds, (theirs, &tag));
                }
                tag
            }
            // A copy would stand outside: less than what was asked for.
            (Some(_), _) | (None, Image::Fork(_))
                if self.wants_namespace(scope, order.containment) =>
            {
                return Err(Failure { phase: Phase::Contain, errno: libc::EOPNOTSUPP });
            }
            (Some(_), _) | (None, Image::Fork(_)) => {
                format!("{}:{:020}", self.owner_identity, scope.0)
            }
        };
        let mut made = None;
        let control = order.template.map(|number| line::pair().map(|pair| (number, pair)));
        let control = control
            .transpose()
            .map_err(|errno| Failure { phase: Phase::Setup, errno: errno.raw_os_error() })?;
        let control = control.map(|(number, (ours, theirs))| {
            made = Some(ours);
            (number, theirs)
        });
        let given = (fds, theirs, control.as_ref().map(|(number, fd)| (*number, fd)));
        let started = self.start_here(scope, slot, order, given, &tag)?;
        self.templates.extend(made.map(|ours| (scope, ours)));
        Ok(started)
    }

    fn start_here(
        &mut self,
        scope: ScopeId,
        slot: Slot,
        order: &Order,
        given: Given<'_>,
        tag: &str,
    ) -> Result<(Pid, OwnedFd), Failure> {
        let mut refused = None;
        for _ in 0..CELL_TRIES {
            let Some(cell) = self.make_cell(scope, order.containment)? else { break };
            match self.start_in((scope, slot), order, given, tag, Some(cell.as_fd())) {
                Err(failure) if is_of_the_cell(failure) => refused = Some(failure.errno),
                started => return started,
            }
        }
        if let Some(errno) = refused {
            self.without_cell(scope, order.containment, errno)?;
        }
        self.start_in((scope, slot), order, given, tag, None)
    }

    fn start_in(
        &mut self,
        (scope, slot): (ScopeId, Slot),
        order: &Order,
        (fds, theirs, control): Given<'_>,
        tag: &str,
        cgroup: Option<BorrowedFd<'_>>,
    ) -> Result<(Pid, OwnedFd), Failure> {
        if let Image::Fork(template) = order.image {
            return self.fork_in(scope, template, (order, fds, theirs), tag, cgroup);
        }
        launch::start_order(order, fds, (theirs, control), tag, &self.setting(slot, cgroup))
    }

    /// What each of our children gets.
    pub(super) fn setting<'a>(&'a self, slot: Slot, cgroup: Option<BorrowedFd<'a>>) -> Setting<'a> {
        Setting {
            null: self.null.as_fd(),
            open_files: self.open_files,
            subreaper: !self.off.subreaper,
            oom_score: self.oom_score.as_deref(),
            words: (self.table.pid_word(slot), self.table.failed_word(slot)),
            cgroup,
            first: None,
        }
    }

    /// The cgroup for a scope's process. `Ok(None)` when it gets none.
    fn make_cell(&mut self, scope: ScopeId, wish: Containment) -> Result<Option<OwnedFd>, Failure> {
        let asked = wish.or(self.tier.asked);
        // For what is started outside of the namespace that its owner asked for.
        if asked == Containment::Subreaper {
            return Ok(None);
        }
        match self.try_cell(scope) {
            Ok(cell) => Ok(Some(cell)),
            Err(errno) => self.without_cell(scope, asked, errno).map(|()| None),
        }
    }

    /// It could not be had, or nothing could be born in it: whether it goes on without.
    fn without_cell(
        &mut self,
        scope: ScopeId,
        asked: Containment,
        errno: i32,
    ) -> Result<(), Failure> {
        if asked.or(self.tier.asked) == Containment::Cgroup {
            return Err(Failure { phase: Phase::Contain, errno });
        }
        // On a machine that has none that is no news.
        if !self.tier.is_blind() {
            let id = self.machine.registry().get(scope).map_or(0, |scope| scope.id);
            self.write_down(journal::Event::NoCgroup { spawn: id, errno });
        }
        Ok(())
    }

    pub(super) fn try_cell(&mut self, scope: ScopeId) -> Result<OwnedFd, i32> {
        let of = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        let made = self.place(true).map_err(|error| of(&error))?.make_cell(scope);
        match made {
            // Somebody removed it while it was empty.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.tier.place = None;
                let place = self.place(true).map_err(|error| of(&error))?;
                place.make_cell(scope).map_err(|error| of(&error))
            }
            made => made.map_err(|error| of(&error)),
        }
    }

    /// The owner's own cgroup, made if it must be.
    fn place(&mut self, make: bool) -> io::Result<&Place> {
        if self.tier.place.is_none() {
            let base = self.tier.base.as_ref().map_err(|_| io::ErrorKind::Unsupported)?;
            let path = Place::path(base, &self.owner_identity);
            let place = if make { Place::make(path)? } else { Place::open(path)? };
            if make && !place.has_kill() {
                place.remove();
                self.tier.base = Err(Why::NoKill);
                return Err(io::ErrorKind::Unsupported.into());
            }
            self.tier.place = Some(place);
        }
        self.tier.place.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Says that a guard lives, where the other one may have said it alone: what a dead owner left is otherwise ended
    /// by the guards of the next one, which know nothing of what is to be kept.
    pub(super) fn hold_place(&mut self) {
        if !self.tier.is_blind() {
            drop(self.place(false));
        }
    }

    /// The cgroup of a scope, if it has one.
    pub(super) fn cell(&mut self, scope: ScopeId) -> Option<Cell> {
        if self.tier.is_blind() {
            return None;
        }
        let cell = self.place(false).ok()?.cell(scope);
        cell.exists().then_some(cell)
    }

    /// The scope that a process is of: that in whose cgroup it stands, else the one that its environment names.
    pub(super) fn scope_of(&self, pid: Pid) -> Option<ScopeId> {
        let place = self.tier.place.as_ref();
        place.and_then(|place| place.scope_of(pid)).or_else(|| self.tag_of(pid))
    }

    /// Whether a process stands in the cgroup of one of our scopes.
    pub(super) fn stands_in_a_cell(&mut self, pid: Pid) -> bool {
        if self.tier.is_blind() || self.place(false).is_err() {
            return false;
        }
        self.tier.place.as_ref().is_some_and(|place| place.scope_of(pid).is_some())
    }

    /// Moves a process to where we stand ourselves.
    pub(super) fn move_to_base(&self, pid: Pid) -> io::Result<()> {
        let base = self.tier.base.as_ref().map_err(|_| io::ErrorKind::Unsupported)?;
        std::fs::write(base.join("cgroup.procs"), pid.to_string())
    }

    /// Who lives in a scope's cgroup.
    pub(super) fn cell_members(&mut self, scope: ScopeId) -> Vec<Member> {
        let Some(cell) = self.cell(scope) else { return Vec::new() };
        members_of(&cell)
    }

    /// Freezes a scope's cgroup: who is met in it by the next look is all of it.
    pub(super) fn freeze(&mut self, scope: ScopeId) -> Option<Cell> {
        let cell = self.cell(scope).filter(|_| !self.off.freeze)?;
        cell.freeze();
        Some(cell)
    }

    /// KILL to the cgroups of these scopes. What was in them, for the journal.
    pub(super) fn kill_cells(&mut self, scopes: &[ScopeId]) {
        for scope in scopes {
            let Some(cell) = self.cell(*scope) else { continue };
            let pids = cell.pids();
            cell.kill();
            self.write_down_signal(*scope, libc::SIGKILL, pids);
        }
    }

    /// A scope is over. Who lives in its cgroup all the same was not ours by descent: that is ended as what
    /// nobody knows, with the grace that its scope had.
    pub(super) fn leave_cell(&mut self, scope: ScopeId, grace: Duration) -> Option<Event> {
        let cell = self.cell(scope)?;
        if cell.remove() {
            return None;
        }
        if cell.is_populated() && !cell.pids().is_empty() {
            return Some(Event::Strays { scopes: vec![scope], grace });
        }
        self.tier.lingering.push(cell);
        self.look_at_cells_within(FIRST_LOOK);
        None
    }

    /// Scopes that have a cgroup with somebody in it.
    pub(super) fn celled(&mut self) -> Vec<ScopeId> {
        if self.tier.is_blind() {
            return Vec::new();
        }
        if self.place(false).is_err() {
            return Vec::new();
        }
        let Some(place) = &self.tier.place else { return Vec::new() };
        let of_the_other: HashSet<_> = self.rows_of_the_other().collect();
        let mut full = Vec::new();
        for scope in place.scopes() {
            let known =
                of_the_other.contains(&scope) || self.machine.registry().get(scope).is_some();
            if place.cell(scope).is_populated() {
                full.push(scope);
            } else if !known {
                place.cell(scope).remove();
            }
        }
        full
    }

    fn rows_of_the_other(&self) -> impl Iterator<Item = ScopeId> {
        let rows = self.peer.as_ref().map(|peer| self.table.rows(peer.generation));
        rows.unwrap_or_default().into_iter().map(|row| row.scope)
    }

    /// Looks for what dead owners left where we are, and begins to end it.
    pub(super) fn find_stale(&mut self) {
        let Ok(base) = &self.tier.base else { return };
        let leaves = self.tier.leaves_stale || self.tier.asked == Containment::Subreaper;
        if leaves || self.succession.role() != Role::Supervisor {
            return;
        }
        let kill_at = now() + DEFAULT_GRACE;
        for left in scope::bases(base).iter().flat_map(|base| cgroup::stale(base)) {
            if left.cell.remove() {
                continue;
            }
            left.cell.freeze();
            let members = members_of(&left.cell);
            for member in &members {
                member.send(&[libc::SIGTERM, libc::SIGCONT]);
            }
            left.cell.thaw();
            let pids: Vec<_> = members.iter().map(|member| member.pid).collect();
            self.write_down_signal(ScopeId::ALL, libc::SIGTERM, pids);
            self.tier.stale.push(Ending { left, kill_at, killed: false });
            self.tier.pause = FIRST_LOOK;
        }
        if !self.tier.stale.is_empty() {
            self.look_at_cells_within(FIRST_LOOK);
        }
    }

    fn look_at_cells_within(&mut self, pause: Duration) {
        let due = now() + pause;
        self.tier.due = Some(self.tier.due.map_or(due, |before| before.min(due)));
    }

    /// Goes on with what is being ended or removed, when it is time.
    pub(super) fn look_at_cells(&mut self) {
        if self.tier.due.is_none_or(|due| now() < due) {
            return;
        }
        self.tier.due = None;
        self.tier.lingering.retain(|cell| !cell.remove());
        let (mut killed, mut kept) = (Vec::new(), Vec::new());
        for mut ending in std::mem::take(&mut self.tier.stale) {
            if ending.left.cell.remove() {
                continue;
            }
            if now() >= ending.kill_at {
                if !ending.killed {
                    killed.extend(ending.left.cell.pids());
                }
                ending.left.cell.kill();
                ending.killed = true;
            }
            kept.push(ending);
        }
        self.tier.stale = kept;
        self.write_down_signal(ScopeId::ALL, libc::SIGKILL, killed);
        if !self.tier.lingering.is_empty() || !self.tier.stale.is_empty() {
            self.tier.pause = (self.tier.pause * 2).min(SLOWEST_LOOK);
            let until_kill = self.tier.stale.iter().filter(|ending| !ending.killed);
            let until_kill = until_kill.map(|e| e.kill_at.saturating_duration_since(now())).min();
            self.look_at_cells_within(until_kill.unwrap_or(SLOWEST_LOOK).min(self.tier.pause));
        }
    }

    /// The last guard removes what is empty.
    pub(super) fn leave_place(&mut self) {
        for cell in std::mem::take(&mut self.tier.lingering) {
            cell.remove();
        }
        if self.succession.role() == Role::Keeper || self.peer.is_none() {
            drop(self.place(false));
            if let Some(place) = self.tier.place.take() {
                place.remove();
            }
        }
    }
}

/// The kernel would not have it born in there; what is short for everybody is no reason of the cgroup.
fn is_of_the_cell(failure: Failure) -> bool {
    failure.phase == Phase::Clone && ![libc::EAGAIN, libc::ENOMEM].contains(&failure.errno)
}

fn members_of(cell: &Cell) -> Vec<Member> {
    let met = cell.pids().into_iter();
    let met = met.filter_map(|pid| Some(Member { pid, stat: Stat::read(pid)? }));
    met.filter(|member| !member.stat.is_dead()).collect()
}
