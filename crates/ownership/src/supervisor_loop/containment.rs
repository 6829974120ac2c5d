//! Cgroups of scopes, as a second membership beside descent: a scope's process is born in one, whoever
//! lives in it is of that scope, and what an owner left that died with both its guards is found by it.
//!
//! Descent and ECHILD stay the measure of an end; a cgroup says the same again, and more where descent
//! says nothing. Files are in [`crate::cgroup`], which tier can be had in [`crate::containment`].

use std::collections::{HashSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Loop;
use super::ration::{Given as Rationed, Pens};
use crate::cgroup::{Cell, Place, Stale};
use crate::containment::{Containment, LEAF, Why, cgroup_of_guards};
use crate::hook;
use crate::identity::Stat;
use crate::journal;
use crate::launch::{self, CONTAINMENT, LEAVES_STALE, Setting};
use crate::line;
use crate::membership::Member;
use crate::protocol::{Failure, Image, Order};
use crate::registry::ScopeId;
use crate::spawn::Phase;
use crate::succession::Role;
use crate::supervisor::Event;
use crate::sys::Pid;
use crate::sys::burden::Burden;
use crate::table::Slot;

/// For tests only: what is asked for instead of what the owner has.
const TEST_CONTAINMENT: &str = "OWNERSHIP_TEST_CONTAINMENT";

/// A guard that leaves may remove an empty cgroup that its successor has just made: it is made again.
const CELL_TRIES: usize = 2;

mod stale;

use stale::{Ending, FIRST_LOOK};

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
    /// Rations of scopes.
    pub(super) pens: Pens,
    /// Cgroups of scopes that are over, which could not be removed.
    lingering: Vec<Cell>,
    /// What dead owners left, as it was found, and whether it is told to end by TERM first.
    found: VecDeque<(Stale, bool)>,
    /// The same, once it was told.
    stale: Vec<Ending>,
    due: Option<Instant>,
    pause: Duration,
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
            pens: Pens::default(),
            lingering: Vec::new(),
            found: VecDeque::new(),
            stale: Vec::new(),
            due: None,
            pause: FIRST_LOOK,
        }
    }

    /// When there is something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        [self.due, self.pens.due()].into_iter().flatten().min()
    }

    pub(super) fn forget_place(&mut self) {
        self.place = None;
    }

    /// Our own cgroup, where it can be used.
    pub(super) fn base(&self) -> Result<&Path, &Why> {
        self.base.as_deref()
    }

    /// The descriptors that it holds.
    pub(super) fn files(&self) -> usize {
        let held = self.found.len() + self.stale.len();
        usize::from(self.place.is_some()) + held + self.pens.files()
    }

    /// Whether everything that was found was told to end, and after its grace killed.
    pub(super) fn is_done(&self) -> bool {
        !self.has_found() && self.stale.iter().all(|ending| ending.killed)
    }

    /// Whether something was found that nobody was told of yet.
    pub(super) fn has_found(&self) -> bool {
        !self.found.is_empty()
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
        for _ in 1..CELL_TRIES {
            match self.start_once(scope, slot, order, fds, theirs) {
                // Its pen is gone, and with it what it would be held to.
                Err(Failure { phase: Phase::Ration, errno: libc::ENOENT }) => self.leave_pen(scope),
                started => return started,
            }
        }
        self.start_once(scope, slot, order, fds, theirs)
    }

    fn start_once(
        &mut self,
        scope: ScopeId,
        slot: Slot,
        order: &Order,
        fds: &[OwnedFd],
        theirs: Option<&OwnedFd>,
    ) -> Result<(Pid, OwnedFd), Failure> {
        let rationed = self.give_ration(scope, slot, order)?;
        let started = self.start_rationed(scope, slot, order, fds, (theirs, &rationed))?;
        self.rank(started.0, &rationed.burden);
        Ok(started)
    }

    fn start_rationed(
        &mut self,
        scope: ScopeId,
        slot: Slot,
        order: &Order,
        fds: &[OwnedFd],
        (theirs, rationed): (Option<&OwnedFd>, &Rationed),
    ) -> Result<(Pid, OwnedFd), Failure> {
        // Copies of a template write theirs over its own, so all are of one length.
        let tag = match (order.template, &order.image) {
            (None, Image::Named(_) | Image::Open) => {
                let tag = format!("{}:{}", self.owner_identity, scope.0);
                if self.wants_namespace(scope, order.containment) {
                    return self.start_in_namespace(
                        scope,
                        slot,
                        (order, rationed),
                        fds,
                        (theirs, &tag),
                    );
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
        let started = self.start_here(scope, slot, (order, rationed), given, &tag)?;
        self.templates.extend(made.map(|ours| (scope, ours)));
        Ok(started)
    }

    fn start_here(
        &mut self,
        scope: ScopeId,
        slot: Slot,
        (order, rationed): (&Order, &Rationed),
        given: Given<'_>,
        tag: &str,
    ) -> Result<(Pid, OwnedFd), Failure> {
        let mut refused = None;
        let ordered = (order, &rationed.burden);
        for _ in 0..CELL_TRIES {
            let pen = rationed.pen.as_deref();
            let Some(cell) = self.make_cell(scope, order.containment, pen)? else { break };
            match self.start_in((scope, slot), ordered, given, tag, Some(cell.as_fd())) {
                Err(failure) if is_of_the_cell(failure) => refused = Some(failure.errno),
                started => return started,
            }
        }
        if let Some(errno) = refused {
            not_in_its_pen(rationed.pen.as_deref(), errno)?;
            self.without_cell(scope, order.containment, errno)?;
        }
        self.start_in((scope, slot), ordered, given, tag, None)
    }

    fn start_in(
        &mut self,
        (scope, slot): (ScopeId, Slot),
        (order, burden): (&Order, &Burden),
        (fds, theirs, control): Given<'_>,
        tag: &str,
        cgroup: Option<BorrowedFd<'_>>,
    ) -> Result<(Pid, OwnedFd), Failure> {
        if let Image::Fork(template) = order.image {
            return self.fork_in(scope, template, (order, fds, theirs), tag, (cgroup, burden));
        }
        let setting = Setting { burden: Some(burden), ..self.setting(slot, cgroup) };
        launch::start_order(order, fds, (theirs, control), tag, &setting)
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
            burden: None,
            first: None,
        }
    }

    /// The cgroup for a scope's process. `Ok(None)` when it gets none.
    fn make_cell(
        &mut self,
        scope: ScopeId,
        wish: Containment,
        pen: Option<&Path>,
    ) -> Result<Option<OwnedFd>, Failure> {
        let asked = wish.or(self.tier.asked);
        // For what is started outside of the namespace that its owner asked for.
        if asked == Containment::Subreaper {
            return Ok(None);
        }
        match self.try_cell(scope, pen) {
            Ok(cell) => Ok(Some(cell)),
            Err(errno) => {
                not_in_its_pen(pen, errno)?;
                self.without_cell(scope, asked, errno).map(|()| None)
            }
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

    pub(super) fn try_cell(&mut self, scope: ScopeId, pen: Option<&Path>) -> Result<OwnedFd, i32> {
        let of = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        match self.place(true).map_err(of)?.make_cell(scope, pen) {
            // A guard of ours that left has removed it while it was empty. A pen goes with its place: whoever made it makes
            // both again.
            Err(error) if error.kind() == io::ErrorKind::NotFound && pen.is_none() => {
                self.tier.place = None;
                self.place(true).map_err(of)?.make_cell(scope, pen).map_err(of)
            }
            made => made.map_err(of),
        }
    }

    /// The owner's own cgroup, made if it must be.
    pub(super) fn place(&mut self, make: bool) -> io::Result<&Place> {
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

    /// The cgroup of a scope, if it has one.
    pub(super) fn cell(&mut self, scope: ScopeId) -> Option<Cell> {
        if self.tier.is_blind() {
            return None;
        }
        let cell = self.place(false).ok()?.cell(scope);
        if cell.exists() {
            return Some(cell);
        }
        self.look_for_pens();
        self.tier.pens.cell(scope).filter(Cell::exists)
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
    pub(super) fn move_to_base(&mut self, pid: Pid) -> io::Result<()> {
        self.move_out_of_groups(pid);
        let base = self.tier.base.as_ref().map_err(|_| io::ErrorKind::Unsupported)?;
        // Where we moved into a leaf, nobody may stand in what is around it.
        let leaf = base.join(LEAF);
        let to = if leaf.is_dir() { &leaf } else { base };
        std::fs::write(to.join("cgroup.procs"), pid.to_string())
    }

    /// Who lives in a scope's cgroup.
    pub(super) fn cell_members(&mut self, scope: ScopeId) -> Vec<Member> {
        let Some(cell) = self.cell(scope) else { return Vec::new() };
        members_of(&cell)
    }

    /// Freezes a scope's cgroup: who is met in it by the next look is all of it.
    pub(super) fn freeze(&mut self, scope: ScopeId) -> Option<Cell> {
        let cell = self.cell_to_freeze(scope)?;
        cell.freeze();
        Some(cell)
    }

    /// The cgroup of a scope, where scopes are frozen.
    pub(super) fn cell_to_freeze(&mut self, scope: ScopeId) -> Option<Cell> {
        self.cell(scope).filter(|_| !self.off.freeze)
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

    /// Removes what nobody lives in any more, at once or a little later.
    pub(super) fn remove_cell(&mut self, cell: Cell) {
        if !cell.remove() {
            self.tier.lingering.push(cell);
            self.look_at_cells_within(FIRST_LOOK);
        }
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
        for (scope, cell) in place.scopes() {
            let known =
                of_the_other.contains(&scope) || self.machine.registry().get(scope).is_some();
            if cell.is_populated() {
                full.push(scope);
            } else if !known {
                cell.remove();
            }
        }
        full
    }

    fn rows_of_the_other(&self) -> impl Iterator<Item = ScopeId> {
        let rows = self.peer.as_ref().map(|peer| self.table.rows(peer.generation));
        rows.unwrap_or_default().into_iter().map(|row| row.scope)
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
            self.leave_groups();
        }
    }
}

/// Outside of its pen it would be held to nothing.
fn not_in_its_pen(pen: Option<&Path>, errno: i32) -> Result<(), Failure> {
    match pen {
        Some(_) => Err(Failure { phase: Phase::Ration, errno }),
        None => Ok(()),
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
