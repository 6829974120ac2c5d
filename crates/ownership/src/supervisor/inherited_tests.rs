//! What a machine makes of rows that another one has left: every kind of row, and replacements at moments
//! that nobody chose.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test names what it is about")]

use std::collections::{BTreeMap, HashSet, VecDeque};

use super::*;
use crate::table::{Flag, Slot, Stage, Table};

fn exit() -> Exit {
    Exit { status: ExitStatus::Code(7), usage: Usage::default() }
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
        Reply::Hello { .. } | Reply::Leaving | Reply::Resynced { .. } | Reply::Pong { .. } => None,
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
    let effects = machine.step(Event::Strays { scopes: vec![ScopeId(5), ScopeId(6)] }, now);
    let ended = effects.iter().filter(|effect| matches!(effect, Effect::Terminate { .. })).count();
    assert_eq!((ended, replies(&effects).len()), (2, 0));
    assert!(
        machine.step(Event::Strays { scopes: vec![ScopeId(5)] }, now).is_empty(),
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
    for request in [Request::EndStrays, Request::Foster { id: 8, scope: 8, pid: 8, grace: GRACE }] {
        assert!(machine.step(ask(1, request), now).is_empty(), "only the owner has such");
    }
}

/// One thing that may happen in a made-up world of guards that replace each other.
#[derive(Debug, Clone)]
enum Turn {
    Spawn {
        line: usize,
        works: bool,
    },
    Die {
        which: usize,
        orphans: usize,
    },
    End {
        which: usize,
    },
    /// So many of the words that wait are heard.
    Hear {
        words: usize,
    },
    /// Dies in the middle of a start, which had come so far.
    Replace {
        foster: bool,
        start: Option<usize>,
        unnoted: bool,
    },
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let one = prop_oneof![
        4 => (0..5_usize, prop::bool::weighted(0.8)).prop_map(|(line, works)| Turn::Spawn { line, works }),
        3 => (0..8_usize, 0..3_usize).prop_map(|(which, orphans)| Turn::Die { which, orphans }),
        1 => (0..8_usize).prop_map(|which| Turn::End { which }),
        3 => (0..6_usize).prop_map(|words| Turn::Hear { words }),
        2 => (any::<bool>(), prop::option::of(0..3_usize), any::<bool>())
            .prop_map(|(foster, start, unnoted)| Turn::Replace { foster, start, unnoted }),
    ];
    prop::collection::vec(one, 0..50)
}

/// A word that waits to be heard.
struct Waiting {
    line: ScopeId,
    id: u64,
    word: &'static str,
    noted: Option<(Slot, Option<Flag>)>,
}

/// A living process.
#[derive(Debug, Clone, Copy)]
struct Living {
    scope: ScopeId,
    is_root: bool,
    /// A child of a guard that lives.
    ours: bool,
}

struct Guards {
    machine: Supervisor,
    table: Table,
    generation: u32,
    rows: BTreeMap<ScopeId, Slot>,
    waiting: VecDeque<Waiting>,
    living: BTreeMap<Pid, Living>,
    now: Instant,
    next: u64,
    /// Asked for on the owner's line, and what was heard about it.
    heard: BTreeMap<u64, Vec<&'static str>>,
    works: bool,
}

impl Guards {
    fn new() -> Self {
        let now = origin();
        Self {
            machine: Supervisor::new(None, 1 << 32, now),
            table: Table::create().expect("table"),
            generation: 1,
            rows: BTreeMap::new(),
            waiting: VecDeque::new(),
            living: BTreeMap::new(),
            now,
            next: 1000,
            heard: BTreeMap::new(),
            works: true,
        }
    }

    fn feed(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in self.machine.step(event, self.now) {
                events.extend(self.act(effect));
            }
        }
    }

    /// As the loop does it, in a world without processes.
    fn act(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Spawn { scope, .. } => {
                self.claim(scope);
                if !self.works {
                    let failure = Failure { phase: Phase::Exec, errno: libc::ENOENT };
                    return Some(Event::Failed { scope, failure });
                }
                let pid = self.born(scope);
                self.table.set_process(self.rows[&scope], pid);
                return Some(Event::Started { scope, pid });
            }
            Effect::Reply { line, reply, about } => self.say(line, &reply, about),
            Effect::Terminate { scope } => {
                if let Some(slot) = self.rows.get(&scope) {
                    self.table.set_ending(*slot, GRACE);
                }
            }
            Effect::Walk { scope } => return self.vanished(scope),
            Effect::Kill { scopes } => return scopes.into_iter().find_map(|s| self.vanished(s)),
            Effect::Forget { scope } => {
                if let Some(slot) = self.rows.remove(&scope)
                    && self.table.stage(slot) != Some(Stage::Empty)
                {
                    self.table.free(slot, self.generation);
                }
            }
            _ => {}
        }
        None
    }

    fn vanished(&self, scope: ScopeId) -> Option<Event> {
        let foster = self.machine.registry().get(scope).is_some_and(|scope| scope.foster);
        let nobody = self.living.values().all(|living| living.scope != scope);
        (foster && nobody).then_some(Event::Vanished { scope })
    }

    fn claim(&mut self, scope: ScopeId) {
        let found = self.machine.registry().get(scope).expect("a scope");
        let (parent, id) = (found.parent, found.id);
        let slot = self.table.claim(self.generation, scope, parent, id, GRACE).expect("room");
        self.rows.insert(scope, slot);
    }

    fn born(&mut self, scope: ScopeId) -> Pid {
        self.next += 1;
        let pid = Pid::try_from(self.next).expect("small");
        self.living.insert(pid, Living { scope, is_root: true, ours: true });
        pid
    }

    fn say(&mut self, line: ScopeId, reply: &Reply, about: Option<ScopeId>) {
        let Some((id, word)) = word(reply) else { return };
        if let (Reply::Emptied { .. }, Some(about)) = (reply, about) {
            let left = self.living.values().filter(|living| living.scope == about).count();
            assert_eq!(left, 0, "{about:?} is told to be empty");
        }
        let slot = about.and_then(|scope| self.rows.get(&scope).copied());
        let noted = slot.map(|slot| match reply {
            Reply::Started { .. } => (slot, Some(Flag::ToldStarted)),
            Reply::Exited { exit, .. } => {
                self.table.set_exit(slot, exit);
                (slot, Some(Flag::ToldExited))
            }
            _ => {
                self.table.advance(slot, Stage::Empty);
                (slot, None)
            }
        });
        self.waiting.push_back(Waiting { line, id, word, noted });
    }

    fn hear(&mut self, words: usize, noted: bool) {
        for _ in 0..words {
            let Some(Waiting { line, id, word, noted: what }) = self.waiting.pop_front() else {
                return;
            };
            if line == ScopeId::ALL && id != 0 {
                self.heard.get_mut(&id).expect("it was asked for on this line").push(word);
            }
            match what.filter(|_| noted) {
                Some((slot, Some(flag))) => self.table.flag(slot, flag, true),
                Some((slot, None)) => self.table.free(slot, self.generation),
                None => {}
            }
        }
    }

    fn ask(&mut self, line: ScopeId) {
        self.next += 1;
        if line == ScopeId::ALL {
            self.heard.insert(self.next, Vec::new());
        }
        self.feed(spawn_event(line.0, self.next));
    }

    fn die(&mut self, which: usize, orphans: usize) {
        let all: Vec<_> = self.living.iter().map(|(pid, living)| (*pid, *living)).collect();
        if all.is_empty() {
            return;
        }
        let (pid, living) = all[which % all.len()];
        self.living.remove(&pid);
        let mut left = Vec::new();
        for _ in 0..orphans {
            self.next += 1;
            let orphan = Pid::try_from(self.next).expect("small");
            self.living.insert(orphan, Living { is_root: false, ..living });
            left.push(orphan);
        }
        if living.ours {
            self.feed(died(pid, &left));
        } else if living.is_root {
            self.feed(Event::FosterDied { scope: living.scope, exit: exit() });
        }
    }

    /// Another guard goes on with what stands in the table.
    fn replace(&mut self, foster: bool, start: Option<usize>, unnoted: bool) {
        if let Some(step) = start {
            self.half_start(step);
        }
        if unnoted {
            self.hear(1, false);
        }
        self.waiting.clear();
        self.rows.clear();
        let before = self.generation;
        self.generation += 1;
        let first = u64::from(self.generation) << 32;
        self.machine = Supervisor::new(None, first, self.now);
        self.table.forget_claims(before);
        let rows = self.table.rows(before);
        for row in &rows {
            self.table.take_over(row.slot, self.generation);
            self.rows.insert(row.scope, row.slot);
            if foster {
                self.table.flag(row.slot, Flag::Foster, true);
            }
        }
        if foster {
            self.living.values_mut().for_each(|living| living.ours = false);
        }
        let unknown = self.living.iter().filter(|(_, living)| living.ours && !living.is_root);
        let unknown = unknown.map(|(pid, living)| Unknown { pid: *pid, tag: Some(living.scope) });
        let unknown = unknown.collect();
        self.feed(Event::Inherit { rows, foster, unknown, suspects: Vec::new() });
        // The owner hears what is said before the next guard answers, and asks again for the rest.
        self.hear(usize::MAX, true);
        let lost: Vec<_> =
            self.heard.iter().filter(|(_, told)| told.is_empty()).map(|(id, _)| *id).collect();
        for id in lost {
            self.feed(spawn_event(0, id));
        }
    }

    /// A start on the owner's line whose guard dies after the claim, after the clone, or before its word.
    fn half_start(&mut self, step: usize) {
        self.next += 1;
        let id = self.next;
        self.heard.insert(id, Vec::new());
        let scope = ScopeId(u64::from(self.generation) << 32 | 0xffff_0000);
        let slot = self.table.claim(self.generation, scope, ScopeId::ALL, id, GRACE).expect("room");
        if step == 0 {
            return;
        }
        let pid = self.born(scope);
        self.table.set_process(slot, pid);
        if step == 1 {
            self.table.advance(slot, Stage::Intent);
        }
    }

    fn apply(&mut self, turn: &Turn) {
        let scopes: Vec<_> = self.machine.registry().iter().map(|(id, _)| id).collect();
        match *turn {
            Turn::Spawn { line, works } => {
                self.works = works;
                self.ask(scopes[line % scopes.len()]);
                self.works = true;
            }
            Turn::Die { which, orphans } => self.die(which, orphans),
            Turn::End { which } => {
                let scope =
                    self.machine.registry().get(scopes[which % scopes.len()]).expect("scope");
                let (parent, id) = (scope.parent, scope.id);
                self.feed(ask(parent.0, Request::End { id, grace: GRACE }));
            }
            Turn::Hear { words } => self.hear(words, true),
            Turn::Replace { foster, start, unnoted } => self.replace(foster, start, unnoted),
        }
    }

    /// Everything that runs is killed, until nothing is left.
    fn finish(&mut self) {
        self.feed(Event::OwnerGone);
        for _ in 0..2_000 {
            if self.machine.registry().is_idle() && self.living.is_empty() {
                break;
            }
            self.die(0, 0);
            self.now += Duration::from_millis(500);
            self.feed(Event::Tick);
        }
        self.hear(usize::MAX, true);
    }
}

/// What was heard, without what was said again.
fn distinct(told: &[&'static str]) -> Vec<&'static str> {
    let mut seen = HashSet::new();
    told.iter().copied().filter(|word| seen.insert(*word)).collect()
}

proptest! {
    #[test]
    fn no_moment_of_a_replacement_loses_anything_or_contradicts(turns in turns()) {
        let mut guards = Guards::new();
        for turn in &turns {
            guards.apply(turn);
            let ours = guards.living.iter().filter(|(_, living)| living.ours);
            for (pid, _) in ours {
                prop_assert!(guards.machine.registry().knows(*pid), "{} is a child of ours", pid);
            }
        }
        guards.finish();
        prop_assert!(guards.machine.registry().is_idle());
        prop_assert!(guards.living.is_empty());
        for (id, told) in &guards.heard {
            let good = matches!(distinct(told)[..], ["failed"] | ["started", "exited", "emptied"]);
            prop_assert!(good, "{} was told {:?}", id, told);
        }
        prop_assert!(guards.table.rows(guards.generation).is_empty(), "no row is left");
    }
}
