//! What the owner of a round is told to do, from a seed.

use std::collections::BTreeMap;

/// Numbers from a seed (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64, round: u64) -> Self {
        let mut random = Self(seed ^ round.wrapping_mul(0xd134_2543_de82_ef95));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// A thing to do; the number names what it is about.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// A child that stays.
    Sleeper(u32),
    /// A child above one with a session, a daemon, and one that ignores TERM.
    Tree(u32),
    /// A child that starts programs over a line of its own.
    Worker(u32),
    /// A child that ends by itself.
    Brief(u32),
    Scope(u32),
    /// A child that stays, in a scope.
    Within(u32, u32),
    End(u32, u32),
    Drop(u32),
}

const TREE: &str =
    r#"setsid sleep 600 & (setsid sleep 600 &); sh -c "trap '' TERM; exec sleep 600" & wait"#;

/// Milliseconds that everybody is given who does not obey.
const GRACE: u32 = 60;

/// Steps of one round.
const STEPS: u32 = 24;

/// What is done in a round.
#[derive(Default)]
pub(crate) struct Script {
    /// For the owner to read.
    pub(crate) lines: Vec<String>,
    /// Everything that is asked for, and the scope that it is in.
    asked: BTreeMap<u32, Option<u32>>,
    scopes: Vec<u32>,
    pub(crate) workers: Vec<u32>,
    /// What ends, by order or by itself.
    pub(crate) over: Vec<u32>,
}

impl Script {
    pub(crate) fn add(&mut self, step: Step) {
        let line = match step {
            Step::Sleeper(id) => self.ask(id, None, format!("spawn {id} {GRACE} exec sleep 600")),
            Step::Tree(id) => self.ask(id, None, format!("spawn {id} {GRACE} {TREE}")),
            Step::Worker(id) => {
                self.workers.push(id);
                self.ask(id, None, format!("worker {id} {GRACE}"))
            }
            Step::Brief(id) => {
                self.over.push(id);
                self.ask(id, None, format!("spawn {id} {GRACE} exit {}", id % 100))
            }
            Step::Scope(id) => {
                self.scopes.push(id);
                self.ask(id, None, format!("scope {id}"))
            }
            Step::Within(scope, id) => {
                self.ask(id, Some(scope), format!("within {scope} {id} {GRACE} exec sleep 600"))
            }
            Step::End(id, grace) => {
                self.end(id);
                format!("end {id} {grace}")
            }
            Step::Drop(id) => {
                self.end(id);
                format!("drop {id}")
            }
        };
        self.lines.push(line);
    }

    fn ask(&mut self, id: u32, within: Option<u32>, line: String) -> String {
        self.asked.insert(id, within);
        line
    }

    fn end(&mut self, id: u32) {
        self.over.push(id);
        let inside = self.asked.iter().filter(|(_, scope)| **scope == Some(id));
        self.over.extend(inside.map(|(id, _)| *id));
        self.over.sort_unstable();
        self.over.dedup();
    }

    /// Everything that was asked for.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> {
        self.asked.keys().copied()
    }

    /// The children that are to live in the end.
    pub(crate) fn living(&self) -> impl Iterator<Item = u32> {
        self.all().filter(|id| !self.over.contains(id) && !self.scopes.contains(id))
    }

    /// Steps at random; the first ones are children, so that somebody is there.
    pub(crate) fn write(&mut self, random: &mut Random) {
        self.add(Step::Sleeper(1));
        self.add(Step::Tree(2));
        for id in 3..STEPS {
            let step = match random.below(12) {
                0..3 => Step::Sleeper(id),
                3 => Step::Tree(id),
                4 | 5 => Step::Worker(id),
                6 => Step::Brief(id),
                7 => Step::Scope(id),
                8 | 9 => match self.pick(random, true) {
                    Some(scope) => Step::Within(scope, id),
                    None => Step::Scope(id),
                },
                10 => match self.pick(random, false) {
                    Some(one) => Step::End(one, u32::try_from(random.below(40)).unwrap_or(0)),
                    None => Step::Brief(id),
                },
                _ => match self.pick(random, false) {
                    Some(one) => Step::Drop(one),
                    None => Step::Brief(id),
                },
            };
            self.add(step);
        }
    }

    /// One that is not over: a scope, or anything.
    fn pick(&self, random: &mut Random, scope: bool) -> Option<u32> {
        let fits = |id: &u32| !self.over.contains(id) && (!scope || self.scopes.contains(id));
        let open: Vec<u32> = self.all().filter(fits).collect();
        let at = random.below(open.len().max(1).try_into().ok()?);
        open.get(usize::try_from(at).ok()?).copied()
    }
}
