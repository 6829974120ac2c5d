//! What a machine makes of rows that another one has left: every kind of row.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test names what it is about")]

use super::*;
use crate::table::{Flag, Stage, Table};

fn exit() -> Exit {
    Exit {
        status: ExitStatus::Code(7),
        usage: Usage::default(),
        reached: crate::exit::Reached::default(),
    }
}

fn fresh() -> (Supervisor, Instant) {
    let now = origin();
    (Supervisor::new(None, 9 << 32, now), now)
}

/// A kind of row.
#[derive(Debug, Clone, Copy)]
struct Kind {
    stage: Stage,
    pid: Pid,
    failed: bool,
    rootless: bool,
    fosters: bool,
    flags: [bool; 3],
    ending: bool,
    orphaned: bool,
}

const TOLD: [Flag; 3] = [Flag::ToldStarted, Flag::ToldExited, Flag::ToldEmptied];

impl Kind {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for stage in [Stage::Intent, Stage::Alive, Stage::Dead, Stage::Empty] {
            for bits in 0..(1_u32 << 9) {
                let bit = |at: u32| bits >> at & 1 == 1;
                let pid = if bit(0) { 101 } else { 0 };
                let flags = [bit(4), bit(5), bit(6)];
                let [failed, rootless, fosters] = [bit(1), bit(2), bit(3)];
                let (ending, orphaned) = (bit(7), bit(8));
                let kind = Self { stage, pid, failed, rootless, fosters, flags, ending, orphaned };
                if kind.makes_sense() {
                    all.push(kind);
                }
            }
        }
        all
    }

    /// Whether a guard comes to leave such a row.
    fn makes_sense(self) -> bool {
        let had_process = self.pid != 0;
        match self.stage {
            Stage::Intent => {
                self.flags == [false; 3] && !self.ending && (had_process || !self.failed)
            }
            _ => !self.failed && had_process != self.rootless && !(self.rootless && self.flags[1]),
        }
        .then_some(())
        .is_some_and(|()| !(self.stage == Stage::Dead && self.rootless))
    }

    fn row(self, table: &mut Table) -> Row {
        let parent = if self.orphaned { ScopeId(77) } else { ScopeId::ALL };
        let slot = table.claim(1, ScopeId(5), parent, 3, GRACE).expect("room");
        if self.rootless {
            table.flag(slot, Flag::Rootless, true);
        }
        if self.pid != 0 {
            table.set_process(slot, self.pid);
        }
        if matches!(self.stage, Stage::Dead | Stage::Empty) && self.pid != 0 {
            table.set_exit(slot, &exit());
        }
        for (flag, on) in TOLD.into_iter().zip(self.flags) {
            table.flag(slot, flag, on);
        }
        if self.ending {
            table.set_ending(slot, GRACE);
        }
        if self.failed {
            let failed = crate::sys::start::Failed { phase: Phase::Exec, errno: libc::ENOENT };
            table.failed_word(slot).store(failed.word(), std::sync::atomic::Ordering::Release);
        }
        table.advance(slot, self.stage);
        table.rows(1).pop().expect("a row")
    }

    /// What is said about it at once, in order.
    fn told(self) -> Vec<&'static str> {
        let unborn = self.stage == Stage::Intent && (self.rootless || self.pid == 0);
        if unborn {
            return Vec::new();
        }
        if self.failed {
            return vec!["failed"];
        }
        let process = !self.rootless;
        let exited = process && matches!(self.stage, Stage::Dead | Stage::Empty);
        // Of a root that is no child of ours nobody is known to be left only after a look.
        let over = self.stage == Stage::Empty
            || self.stage == Stage::Dead && !self.fosters
            || self.rootless && (self.ending || self.orphaned);
        let words = [
            (process && !self.flags[0], "started"),
            (exited && !self.flags[1], "exited"),
            (over && !self.flags[2], "emptied"),
        ];
        words.into_iter().filter(|(said, _)| *said).map(|(_, word)| word).collect()
    }
}

fn word(reply: &Reply) -> Option<(u64, &'static str)> {
    match reply {
        Reply::Started { id, .. } | Reply::Opened { id } => Some((*id, "started")),
        Reply::Failed { id, .. } => Some((*id, "failed")),
        Reply::Exited { id, .. } => Some((*id, "exited")),
        Reply::Emptied { id, .. } => Some((*id, "emptied")),
        Reply::Hello { .. }
        | Reply::NoScope { .. }
        | Reply::Leaving
        | Reply::Resynced { .. }
        | Reply::Stopped { .. }
        | Reply::Pong { .. }
        | Reply::Returned(_)
        | Reply::Recounted { .. } => None,
    }
}

#[test]
fn every_kind_of_row_is_taken_over_by_owners_that_live_and_that_do_not() {
    let kinds = Kind::all();
    assert!(kinds.len() > 100, "{}", kinds.len());
    for kind in kinds {
        for owner_gone in [false, true] {
            let shown = format!("{kind:?} owner gone {owner_gone}");
            let (mut machine, now) = fresh();
            if owner_gone {
                machine.step(Event::OwnerGone, now);
            }
            let mut table = Table::create().expect("table");
            let rows = vec![kind.row(&mut table)];
            let (unknown, suspects) = (Vec::new(), Vec::new());
            let inherit = Event::Inherit { rows, foster: kind.fosters, unknown, suspects };
            let effects = machine.step(inherit, now);
            let told: Vec<_> = replies(&effects).into_iter().filter_map(word).collect();
            let id = if kind.orphaned { 0 } else { 3 };
            assert!(told.iter().all(|(about, _)| *about == id), "{shown}: {told:?}");
            let told: Vec<_> = told.into_iter().map(|(_, word)| word).collect();
            let mut expected = kind.told();
            if owner_gone && kind.rootless && kind.stage == Stage::Alive && !kind.ending {
                expected = if kind.flags[2] { vec![] } else { vec!["emptied"] };
            }
            assert_eq!(told, expected, "{shown}");
            let kept = machine.registry().get(ScopeId(5));
            let forgotten = effects.iter().any(|effect| matches!(effect, Effect::Forget { .. }));
            assert_eq!(kept.is_none(), forgotten, "{shown}");
            let ends = owner_gone || kind.ending || kind.orphaned;
            if let Some(kept) = kept {
                assert_eq!(kept.foster, kind.fosters && !kind.rootless, "{shown}");
                let dead = kept.root == Root::Dead;
                assert_eq!(kept.ladder.is_some(), ends || dead, "{shown}");
            }
        }
    }
}

/// A keeper took a worker's line over and started something on it, under a lower number than the worker's.
#[test]
fn what_a_scope_is_in_is_taken_over_first() {
    let mut table = Table::create().expect("table");
    let inner = table.claim(1, ScopeId(1 << 32), ScopeId(3 << 32), 1, GRACE).expect("room");
    let outer = table.claim(1, ScopeId(3 << 32), ScopeId::ALL, 1, GRACE).expect("room");
    for (slot, pid) in [(inner, 102), (outer, 101)] {
        table.set_process(slot, pid);
        table.flag(slot, Flag::ToldStarted, true);
    }
    let (mut machine, now) = fresh();
    let (unknown, suspects) = (Vec::new(), Vec::new());
    let inherit = Event::Inherit { rows: table.rows(1), foster: false, unknown, suspects };
    machine.step(inherit, now);
    let line = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Reply { line, reply: Reply::Exited { .. }, .. } => Some(*line),
            _ => None,
        })
    };
    let effects = machine.step(died(102, &[]), now);
    assert_eq!(line(&effects), Some(ScopeId(3 << 32)), "it is told to who asked for it");
}

#[test]
fn rows_that_stand_in_each_other_end_nothing_else() {
    let mut table = Table::create().expect("table");
    for (scope, parent) in [(5, 6), (6, 5), (7, 7)] {
        let slot = table.claim(1, ScopeId(scope), ScopeId(parent), scope, GRACE).expect("room");
        table.set_process(slot, Pid::try_from(scope).expect("small"));
    }
    let (mut machine, now) = fresh();
    let (unknown, suspects) = (Vec::new(), Vec::new());
    let inherit = Event::Inherit { rows: table.rows(1), foster: false, unknown, suspects };
    machine.step(inherit, now);
    for pid in [5, 6, 7] {
        machine.step(died(pid, &[]), now);
    }
    assert!(machine.registry().is_idle());
}

#[test]
fn the_end_of_a_root_that_is_no_child_of_ours_is_told_once_and_so_is_its_scopes() {
    let mut table = Table::create().expect("table");
    let slot = table.claim(1, ScopeId(5), ScopeId::ALL, 3, GRACE).expect("room");
    table.set_process(slot, 101);
    table.flag(slot, Flag::ToldStarted, true);
    let (mut machine, now) = fresh();
    let (unknown, suspects) = (Vec::new(), Vec::new());
    let inherit = Event::Inherit { rows: table.rows(1), foster: true, unknown, suspects };
    assert!(replies(&machine.step(inherit, now)).is_empty());
    let vanished = || Event::Vanished { scope: ScopeId(5) };
    assert!(machine.step(vanished(), now).is_empty(), "its root was not seen dead");
    let ended = || Event::FosterDied { scope: ScopeId(5), exit: exit() };
    assert_eq!(replies(&machine.step(ended(), now)).len(), 1);
    assert!(machine.step(ended(), now).is_empty(), "once");
    machine.step(Event::OwnerGone, now);
    assert!(machine.step(Event::NoChild, now).is_empty(), "the kernel's word does not count here");
    assert_eq!(emptied(&machine.step(vanished(), now)), 1);
    assert!(machine.step(vanished(), now).is_empty(), "once");
    assert!(matches!(machine.step(Event::NoChild, now)[..], [Effect::Exit]));
}

#[test]
fn strays_are_ended_and_nobody_is_told() {
    let (mut machine, now) = fresh();
    let effects =
        machine.step(Event::Strays { scopes: vec![ScopeId(5), ScopeId(6)], grace: GRACE }, now);
    let ended = effects.iter().filter(|effect| matches!(effect, Effect::Terminate { .. })).count();
    assert_eq!((ended, replies(&effects).len()), (2, 0));
    assert!(
        machine.step(Event::Strays { scopes: vec![ScopeId(5)], grace: GRACE }, now).is_empty(),
        "known by now"
    );
    for scope in [5, 6].map(ScopeId) {
        assert!(replies(&machine.step(Event::Vanished { scope }, now)).is_empty());
    }
    assert!(machine.registry().is_idle());
}

#[test]
fn what_we_do_not_have_is_the_other_ones_and_questions_are_answered() {
    let (mut machine, now) = running();
    for request in
        [Request::End { id: 9, grace: GRACE }, Request::Pause { id: 9 }, Request::Resume { id: 9 }]
    {
        let effects = machine.step(ask(0, request.clone()), now);
        assert!(matches!(&effects[..], [Effect::Relay { request: told }] if *told == request));
        assert!(
            machine.step(ask(1, request), now).iter().all(|e| !matches!(e, Effect::Relay { .. }))
        );
    }
    let effects = machine.step(ask(1, Request::Resync { number: 4 }), now);
    assert!(matches!(replies(&effects)[..], [Reply::Resynced { number: 4 }]));
    let effects = machine.step(ask(1, Request::Ping { number: 5 }), now);
    assert!(matches!(replies(&effects)[..], [Reply::Pong { number: 5 }]));
    let effects = machine.step(ask(0, Request::Recount { number: 6 }), now);
    assert!(matches!(effects[..], [Effect::Recount { number: 6 }]));
    let foster = Request::Foster {
        id: 8,
        scope: 8,
        pid: 8,
        grace: GRACE,
        leftovers: Leftovers::Kill,
        release: None,
        kept: false,
    };
    for request in [Request::EndStrays, Request::Recount { number: 7 }, foster] {
        assert!(machine.step(ask(1, request), now).is_empty(), "only the owner has such");
    }
}

#[path = "replaced_tests.rs"]
mod replaced;
