//! Rations of scopes: who is held to one stands in a *pen* together with all that is started in it, and has what
//! the kernel keeps for each process. Which means there are decides [`crate::ration`], files are in
//! [`crate::cgroup`], and what a process has by itself in [`crate::sys::burden`].
//!
//! A pen is a cgroup of version 2 around those of its scopes, groups of version 1, or both. Its names are made of
//! numbers that both guards know, so a guard that takes over finds pens by looking.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{Loop, now};
use crate::cgroup::rationed::{Bounds, hand_on};
use crate::cgroup::{Cell, Place, make_dir};
use crate::containment::Containment;
use crate::exit::{ExitStatus, Reached};
use crate::hook;
use crate::identity;
use crate::protocol::{Failure, Order, Request};
use crate::ration::{
    Controller, Lack, Limit, MOST_NICE, Means, Ration, group_of_version_1, is_guard,
};
use crate::registry::{Root, ScopeId};
use crate::spawn::Phase;
use crate::supervisor::Event;
use crate::sys::Pid;
use crate::sys::burden::Burden;
use crate::sys::wait::Dead;
use crate::table::{Flag, Slot};

/// Between two looks at how much time a pen has used, at least; how far it can be overdrawn on each processor.
const SHORTEST_LOOK: Duration = Duration::from_millis(50);

/// Whoever has no right to do it at will may rank one session in this time (`proc_sched_autogroup_set_nice`).
const RANK_PAUSE: Duration = Duration::from_millis(110);

/// What is known of rations here.
#[derive(Default)]
pub(super) struct Pens {
    /// Our own groups of version 1, as they were looked up.
    groups: HashMap<Controller, Result<PathBuf, Lack>>,
    /// What is ours inside of them.
    places: HashMap<Controller, Place>,
    known: HashMap<ScopeId, Pen>,
    /// Scopes whose cgroup stands in a pen, and whose pen that is.
    within: HashMap<ScopeId, ScopeId>,
    /// Whether what another guard made was looked for.
    looked: bool,
    /// Processes whose sessions are still to get their nice value.
    unranked: VecDeque<(Pid, i32)>,
    rank_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct Pen {
    /// Of processor time; 0 for no limit.
    seconds: u64,
    /// The cgroup of version 2.
    dir: Option<PathBuf>,
    /// Whatever holds limits.
    bounds: Vec<Bounds>,
    /// How often nothing was started in it because it was full.
    refused: u32,
    /// It was ended because its time was used up.
    spent: bool,
    look_at: Option<Instant>,
}

impl Pen {
    fn reached(&self) -> Reached {
        let mut all = Reached { processes: self.refused, ..Reached::default() };
        for bounds in &self.bounds {
            let Reached { memory, processes, cpu: _ } = bounds.reached();
            all.memory = all.memory.saturating_add(memory);
            all.processes = all.processes.saturating_add(processes);
        }
        all.cpu = self.spent || self.left().is_some_and(|left| left.is_zero());
        all
    }

    /// What is left of its processor time, where that is counted.
    fn left(&self) -> Option<Duration> {
        let dir = self.dir.clone().filter(|_| self.seconds > 0)?;
        let used = Bounds { dir, version: Means::CgroupV2 }.cpu_micros()?;
        Some(Duration::from_secs(self.seconds).saturating_sub(Duration::from_micros(used)))
    }
}

impl Pens {
    /// When there is something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let looks = self.known.values().filter_map(|pen| pen.look_at);
        looks.chain(self.rank_at).min()
    }

    pub(super) fn files(&self) -> usize {
        self.places.len()
    }

    /// The cgroup of a scope that stands in a pen.
    pub(super) fn cell(&self, scope: ScopeId) -> Option<Cell> {
        let dir = self.known.get(self.within.get(&scope)?)?.dir.as_ref()?;
        Some(Cell::within(dir, scope))
    }

    /// Our own group of version 1 for a controller.
    fn group(&mut self, controller: Controller) -> Result<PathBuf, Lack> {
        let look = || match hook::is_off("v1") {
            true => Err(Lack::NotInVersion1(controller)),
            false => group_of_version_1(controller),
        };
        self.groups.entry(controller).or_insert_with(look).clone()
    }

    /// Our own groups of version 1, each once: one may have several controllers.
    pub(super) fn groups(&mut self) -> Vec<PathBuf> {
        let found = Controller::ALL.into_iter().filter_map(|which| self.group(which).ok());
        let mut found: Vec<_> = found.collect();
        found.sort();
        found.dedup();
        found
    }
}

/// What a process to be gets.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// The directory of its pen.
    pub(super) pen: Option<PathBuf>,
    pub(super) burden: Burden,
}

impl Loop {
    /// What the process of a scope gets of the ration that was asked for with it, or of that of the scope around it.
    pub(super) fn give_ration(
        &mut self,
        scope: ScopeId,
        slot: Slot,
        order: &Order,
    ) -> Result<Given, Failure> {
        // It is run when nothing of the scope is left.
        if self.machine.registry().get(scope).is_none_or(|scope| scope.releases) {
            return Ok(Given::default());
        }
        match self.rationed_around(scope) {
            None if order.ration.is_empty() => Ok(Given::default()),
            None => {
                self.table.flag(slot, Flag::Rationed, true);
                self.make_pen(scope, order)
            }
            // One in another is not kept apart.
            Some(_) if !order.ration.is_empty() => Err(refused(libc::EOPNOTSUPP)),
            Some(around) => self.enter_pen(scope, around),
        }
    }

    fn is_rationed(&self, scope: ScopeId) -> bool {
        self.row(scope).is_some_and(|slot| self.table.is_flagged(slot, Flag::Rationed))
    }

    /// The scope around this one that has a ration.
    fn rationed_around(&self, scope: ScopeId) -> Option<ScopeId> {
        let parent = |scope| self.machine.registry().get(scope).map(|scope| scope.parent);
        let mut at = parent(scope)?;
        while at != ScopeId::ALL {
            if self.is_rationed(at) {
                return Some(at);
            }
            at = parent(at)?;
        }
        None
    }

    fn make_pen(&mut self, scope: ScopeId, order: &Order) -> Result<Given, Failure> {
        let ration = order.ration;
        let own = rustix::process::getpriority_process(None).unwrap_or(0);
        let mut burden = Burden {
            nice: ration.nice.map(|nice| (own + i32::from(nice)).min(i32::from(MOST_NICE))),
            open_files: ration.open_files,
            cpu: ration.cpu_seconds(),
            ..Burden::default()
        };
        if !ration.binds_a_tree() {
            return Ok(Given { pen: None, burden });
        }
        let seconds = ration.cpu_seconds().unwrap_or(0);
        // From here on it is removed with its scope, whatever fails.
        let dir = self.make_pen_dir(scope, seconds, order.containment);
        let look_at = dir.as_ref().filter(|_| seconds > 0).map(|_| now() + SHORTEST_LOOK);
        let pen = Pen { seconds, dir: dir.clone(), look_at, ..Pen::default() };
        self.tier.pens.known.insert(scope, pen);
        if dir.is_some() {
            self.tier.pens.within.insert(scope, scope);
        }
        for limit in ration.asked() {
            let Some(controller) = limit.controller() else { continue };
            let two =
                dir.clone().and_then(|dir| self.hold_in_version_2(limit, controller, dir, &ration));
            let bounds = match two {
                Some(bounds) => Ok(bounds),
                None => self.hold_in_version_1(scope, limit, controller, &ration, &mut burden),
            };
            match (bounds, limit) {
                (Ok(bounds), _) => {
                    let pen = self.tier.pens.known.get_mut(&scope);
                    pen.into_iter().for_each(|pen| pen.bounds.push(bounds.clone()));
                }
                (Err(_), Limit::Memory) => burden.data = ration.memory,
                // A wish.
                (Err(_), Limit::CpuWeight) => {}
                (Err(error), _) => {
                    return Err(refused(error.raw_os_error().unwrap_or(libc::EOPNOTSUPP)));
                }
            }
        }
        Ok(Given { pen: dir, burden })
    }

    /// The cgroup of version 2, where scopes have any.
    fn make_pen_dir(&mut self, scope: ScopeId, seconds: u64, wish: Containment) -> Option<PathBuf> {
        if wish.or(self.tier.asked) == Containment::Subreaper {
            return None;
        }
        let dir = self.place(true).ok()?.pen(scope, seconds);
        if make_dir(&dir).is_err() {
            // A guard that left has removed the place while it was empty.
            self.tier.forget_place();
            self.place(true).ok()?;
            make_dir(&dir).ok()?;
        }
        Some(dir)
    }

    fn hold_in_version_2(
        &mut self,
        limit: Limit,
        controller: Controller,
        dir: PathBuf,
        ration: &Ration,
    ) -> Option<Bounds> {
        let owner = identity::pid_of(self.owner.as_fd())?;
        let base = self.tier.base().ok()?.to_owned();
        hand_on(&base, controller, |pid| pid == owner || is_guard(pid)).ok()?;
        let place = self.place(true).ok()?.dir().to_owned();
        hand_on(&place, controller, |_| false).ok()?;
        let bounds = Bounds { dir, version: Means::CgroupV2 };
        bounds.set(limit, ration).ok()?;
        Some(bounds)
    }

    fn hold_in_version_1(
        &mut self,
        scope: ScopeId,
        limit: Limit,
        controller: Controller,
        ration: &Ration,
        burden: &mut Burden,
    ) -> io::Result<Bounds> {
        let unsupported = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        let base = self.tier.pens.group(controller).map_err(|_| unsupported())?;
        let path = Place::path(&base, &self.owner_identity);
        if let Some(place) = self.tier.pens.places.get(&controller)
            && !place.dir().is_dir()
        {
            self.tier.pens.places.remove(&controller);
        }
        let place = match self.tier.pens.places.remove(&controller) {
            Some(place) => place,
            None => Place::make(path)?,
        };
        let dir = place.dir().join(scope.0.to_string());
        self.tier.pens.places.insert(controller, place);
        make_dir(&dir)?;
        let bounds = Bounds { dir, version: Means::CgroupV1 };
        bounds.set(limit, ration)?;
        burden.groups.push(bounds.door()?);
        Ok(bounds)
    }

    /// What is started in a scope that has a ration is as if its process had started it.
    fn enter_pen(&mut self, scope: ScopeId, around: ScopeId) -> Result<Given, Failure> {
        self.look_for_pens();
        let root = self.machine.registry().get(around).map(|scope| scope.root);
        let mut burden = match root {
            Some(Root::Running(pid) | Root::Foster(pid)) => Burden::of_parent(pid),
            _ => Burden::default(),
        };
        let Some(pen) = self.tier.pens.known.get_mut(&around) else {
            return Ok(Given { pen: None, burden });
        };
        for bounds in pen.bounds.iter().filter(|bounds| bounds.version == Means::CgroupV1) {
            // Only a fork inside of it would be refused by the kernel.
            if bounds.is_full() {
                pen.refused = pen.refused.saturating_add(1);
                return Err(Failure { phase: Phase::Clone, errno: libc::EAGAIN });
            }
            let door = bounds.door();
            burden.groups.push(door.map_err(|e| refused(e.raw_os_error().unwrap_or(libc::EIO)))?);
        }
        let dir = pen.dir.clone();
        if dir.is_some() {
            self.tier.pens.within.insert(scope, around);
        }
        Ok(Given { pen: dir, burden })
    }

    /// What another guard made, and this one has taken over.
    pub(super) fn look_again_for_pens(&mut self) {
        self.tier.pens.looked = false;
        let any = self.rows.values().any(|slot| self.table.is_flagged(*slot, Flag::Rationed));
        if any {
            self.look_for_pens();
        }
    }

    pub(super) fn look_for_pens(&mut self) {
        if std::mem::replace(&mut self.tier.pens.looked, true) {
            return;
        }
        let found = self.place(false).map(Place::pens).unwrap_or_default();
        for (scope, seconds, dir, cells) in found {
            let pens = &mut self.tier.pens;
            pens.within.extend(cells.into_iter().map(|cell| (cell, scope)));
            pens.known.entry(scope).or_insert_with(|| Pen {
                seconds,
                look_at: (seconds > 0).then(now),
                bounds: vec![Bounds { dir: dir.clone(), version: Means::CgroupV2 }],
                dir: Some(dir),
                ..Pen::default()
            });
        }
        for base in self.tier.pens.groups() {
            let place = Place::path(&base, &self.owner_identity);
            for (scope, cell) in Place::scopes_in(&place) {
                let pen = self.tier.pens.known.entry(scope).or_default();
                let dir = cell.dir().to_owned();
                if !pen.bounds.iter().any(|bounds| bounds.dir == dir) {
                    pen.bounds.push(Bounds { dir, version: Means::CgroupV1 });
                }
            }
        }
    }

    /// Adds to the end of a root what its scope had met by then.
    pub(super) fn note_reached(&mut self, dead: &mut Dead) {
        let root = self.machine.registry().root_of(dead.pid);
        if let Some(scope) = root.filter(|scope| self.is_rationed(*scope)) {
            dead.exit.reached = self.reached(scope, dead.exit.status);
        }
    }

    /// What a scope that has a ration has met.
    pub(super) fn reached(&mut self, scope: ScopeId, status: ExitStatus) -> Reached {
        if !self.is_rationed(scope) {
            return Reached::default();
        }
        self.look_for_pens();
        let pen = self.tier.pens.known.get(&scope);
        let mut reached = pen.map(Pen::reached).unwrap_or_default();
        reached.cpu |= matches!(status, ExitStatus::Signal { signal: libc::SIGXCPU, .. });
        reached
    }

    /// A scope is over: nobody is held to anything any more.
    pub(super) fn leave_pen(&mut self, scope: ScopeId) {
        self.tier.pens.within.remove(&scope);
        let Some(pen) = self.tier.pens.known.remove(&scope) else { return };
        let groups = pen.bounds.into_iter().map(|bounds| bounds.dir);
        for dir in groups.chain(pen.dir) {
            self.remove_cell(Cell::at(dir));
        }
    }

    /// Ends what has used up its time, and ranks who waits for it, when it is time.
    pub(super) fn look_at_rations(&mut self) {
        if self.tier.pens.due().is_none_or(|due| now() < due) {
            return;
        }
        self.rank_next();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let processors = u32::try_from(processors).unwrap_or(u32::MAX);
        let mut over = Vec::new();
        for (scope, pen) in &mut self.tier.pens.known {
            if pen.look_at.is_none_or(|due| now() < due) {
                continue;
            }
            // All of them at once cannot use it up sooner.
            let left = pen.left();
            pen.look_at = left.map(|left| now() + (left / processors).max(SHORTEST_LOOK));
            if left.is_some_and(|left| left.is_zero()) && !hook::is_off("cpu-count") {
                (pen.spent, pen.look_at) = (true, None);
                over.push(*scope);
            }
        }
        for scope in over {
            let Some(found) = self.machine.registry().get(scope) else { continue };
            let (line, request) = (found.parent, Request::End { id: found.id, grace: found.grace });
            self.feed(Event::Request { line, request, fds: Vec::new() });
        }
    }

    /// A process has a nice value beside others of its session only, where the kernel makes sessions groups of their
    /// own (autogroups, man 7 sched): then its session gets the same.
    pub(super) fn rank(&mut self, pid: Pid, burden: &Burden) {
        let Some(nice) = burden.nice else { return };
        let pens = &mut self.tier.pens;
        if pens.rank_at.is_some() || !rank_session(pid, nice) {
            pens.unranked.push_back((pid, nice));
            pens.rank_at.get_or_insert_with(|| now() + RANK_PAUSE);
        }
    }

    fn rank_next(&mut self) {
        let pens = &mut self.tier.pens;
        if pens.rank_at.is_some_and(|at| now() < at) {
            return;
        }
        pens.rank_at = None;
        while let Some((pid, nice)) = pens.unranked.front() {
            // It is reaped, and its number may be another's.
            let known = self.machine.registry().root_of(*pid).is_some();
            if known && !rank_session(*pid, *nice) {
                pens.rank_at = Some(now() + RANK_PAUSE);
                return;
            }
            pens.unranked.pop_front();
        }
    }

    /// The last guard removes what is empty.
    pub(super) fn leave_groups(&mut self) {
        self.tier.pens.places.clear();
        for base in self.tier.pens.groups() {
            let path = Place::path(&base, &self.owner_identity);
            if path.is_dir() {
                Cell::at(path).remove();
            }
        }
    }

    /// Moves a process out of our groups of version 1.
    pub(super) fn move_out_of_groups(&mut self, pid: Pid) {
        for base in self.tier.pens.groups() {
            if Place::path(&base, &self.owner_identity).is_dir() {
                // It is gone, or was not in there.
                drop(std::fs::write(base.join("cgroup.procs"), pid.to_string()));
            }
        }
    }
}

/// `false` when it is to be tried again later.
fn rank_session(pid: Pid, nice: i32) -> bool {
    // Kernels without autogroups have no such file.
    let written = std::fs::write(format!("/proc/{pid}/autogroup"), nice.to_string());
    written.map_or_else(|error| error.raw_os_error() != Some(libc::EAGAIN), |()| true)
}

fn refused(errno: i32) -> Failure {
    Failure { phase: Phase::Ration, errno }
}
