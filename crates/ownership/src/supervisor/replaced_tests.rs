//! Guards that replace each other at moments that nobody chose: a machine, the rows that it leaves, and what its
//! owner hears.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test names what it is about")]

use std::collections::{BTreeMap, HashSet, VecDeque};

use super::*;
use crate::table::Slot;

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
