//! The registry over every pair of what was read and what was written, and what a parent is told.

use super::*;

const PATH: &str = "/tree/a";

fn child(index: u32) -> Who {
    Who::Child(SubagentId::new(index, 1))
}

fn root() -> Who {
    Who::Parent("".into())
}

fn seen(mtime_ns: i64) -> Option<Stamp> {
    Some(stamp(mtime_ns))
}

fn stamp(mtime_ns: i64) -> Stamp {
    Stamp { size: 1, mtime_ns, device: 1, inode: 1, hash: Some([1; 16]) }
}

/// What an agent did before it asks, in the order that it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Read,
    ReadPart,
    Write,
    WriteUntold,
    Delete,
    OtherReads,
    OtherWrites,
    OtherDeletes,
    OtherRenames,
}

const STEPS: [Step; 9] = [
    Step::Read,
    Step::ReadPart,
    Step::Write,
    Step::WriteUntold,
    Step::Delete,
    Step::OtherReads,
    Step::OtherWrites,
    Step::OtherDeletes,
    Step::OtherRenames,
];

fn play(registry: &mut Registry, step: Step, now: u64) {
    let (me, other) = (child(0), child(1));
    match step {
        Step::Read => registry.read(&me, PATH, seen(0), false, now),
        Step::ReadPart => registry.read(&me, PATH, seen(0), true, now),
        Step::Write => registry.changed(&me, PATH, &Change::Written(seen(0)), now),
        Step::WriteUntold => registry.changed(&me, PATH, &Change::Written(None), now),
        Step::Delete => registry.changed(&me, PATH, &Change::Deleted, now),
        Step::OtherReads => registry.read(&other, PATH, seen(0), false, now),
        Step::OtherWrites => {
            registry.changed(&other, PATH, &Change::Written(seen(0)), now);
        }
        Step::OtherDeletes => registry.changed(&other, PATH, &Change::Deleted, now),
        Step::OtherRenames => {
            let change = Change::Renamed { to: "/tree/b".to_owned(), stamp: None };
            registry.changed(&other, PATH, &change, now);
        }
    }
}

/// The contract's order, written apart from the code: what one letter means stands in `letter`.
fn expected(steps: [Step; 2], found: Option<bool>) -> char {
    use Step::{
        Delete, OtherDeletes, OtherReads, OtherRenames, OtherWrites, Read, ReadPart, Write,
        WriteUntold,
    };
    // What I last learned of it: when, whether a part, whether I know what it was.
    let mut mine: Option<(usize, bool, bool)> = None;
    let mut last: Option<(usize, bool, bool)> = None;
    for (at, step) in steps.into_iter().enumerate() {
        match step {
            Read => mine = Some((at, false, true)),
            ReadPart => mine = Some((at, true, true)),
            Write => (mine, last) = (Some((at, false, true)), Some((at, true, false))),
            WriteUntold => (mine, last) = (Some((at, false, false)), Some((at, true, false))),
            Delete => (mine, last) = (None, Some((at, true, false))),
            OtherReads => {}
            OtherWrites => last = Some((at, false, false)),
            OtherDeletes | OtherRenames => last = Some((at, false, true)),
        }
    }
    let others = last.filter(|(_, own, _)| !own);
    let newer = others.is_some_and(|(when, ..)| mine.is_none_or(|(seen, ..)| when > seen));
    match (mine, last, found) {
        (None, None, _) => '.',
        (_, _, None) if !others.is_some_and(|(_, _, taken)| taken) => '.',
        (None, _, _) if newer => 'u',
        (Some(_), _, _) if newer => 's',
        (_, _, None) => '.',
        (Some((_, _, true)), _, Some(false)) => 'e',
        (Some((_, true, _)), ..) => 'p',
        (None, ..) => 'n',
        (Some(_), ..) => '.',
    }
}

fn letter(staleness: Option<&Staleness>) -> char {
    match staleness {
        None => '.',
        Some(Staleness::UnreadChange { .. }) => 'u',
        Some(Staleness::ChangedSince { .. }) => 's',
        Some(Staleness::EditedOutside { .. }) => 'e',
        Some(Staleness::PartlyRead) => 'p',
        Some(Staleness::NeverRead) => 'n',
    }
}

#[test]
fn every_pair_of_steps_is_judged_as_the_contract_says() {
    let mut seen = std::collections::BTreeMap::<char, u32>::new();
    for first in STEPS {
        for second in STEPS {
            // Nothing there, what was there, or something else of the same age and size.
            for found in [None, Some(true), Some(false)] {
                let mut registry = Registry::default();
                play(&mut registry, first, 10);
                // The clock was set back in between: it decides nothing.
                play(&mut registry, second, 5);
                let there =
                    found.map(|same| Stamp { hash: Some([u8::from(same); 16]), ..stamp(0) });
                let verdict = registry.check(&child(0), PATH, there.as_ref());
                let expected = expected([first, second], found);
                assert_eq!(
                    letter(verdict.as_ref()),
                    expected,
                    "{first:?}, {second:?}, found {found:?}: {verdict:?}"
                );
                *seen.entry(expected).or_default() += 1;
            }
        }
    }
    assert_eq!(seen.into_keys().collect::<String>(), ".enpsu", "every verdict is met");
}

#[test]
fn a_rewrite_of_the_same_age_and_size_is_seen() {
    let mut registry = Registry::default();
    registry.read(&child(0), PATH, seen(5), false, 1);
    assert_eq!(registry.check(&child(0), PATH, Some(&stamp(5))), None);
    for other in
        [Stamp { hash: Some([2; 16]), ..stamp(5) }, Stamp { inode: 2, ..stamp(5) }, stamp(6)]
    {
        let verdict = registry.check(&child(0), PATH, Some(&other));
        assert_eq!(verdict, Some(Staleness::EditedOutside { read_ms: 1 }), "{other:?}");
    }
}

#[test]
fn a_write_clears_the_writers_own_staleness() {
    let mut registry = Registry::default();
    registry.read(&child(0), PATH, seen(0), true, 1);
    registry.changed(&child(1), PATH, &Change::Written(Some(stamp(1))), 2);
    assert!(registry.check(&child(0), PATH, Some(&stamp(1))).is_some());
    registry.changed(&child(0), PATH, &Change::Written(Some(stamp(2))), 3);
    assert_eq!(registry.check(&child(0), PATH, Some(&stamp(2))), None);
    let verdict = registry.check(&child(1), PATH, Some(&stamp(2)));
    assert_eq!(letter(verdict.as_ref()), 's', "the other one is stale now");
}

#[test]
fn a_parent_hears_of_what_it_read_and_this_child_changed() {
    let mut registry = Registry::default();
    for path in ["/read", "/deleted", "/untouched", "/again", "/by a sibling"] {
        registry.read(&root(), path, seen(0), false, 1);
    }
    let (own, below, sibling) = (child(0), child(1), child(2));
    registry.enter(own.clone(), root());
    registry.enter(below.clone(), own.clone());
    registry.enter(sibling.clone(), root());
    let write = Change::Written(None);
    registry.changed(&below, "/read", &write, 2);
    registry.leave(&below);
    registry.changed(&own, "/deleted", &Change::Deleted, 2);
    registry.changed(&own, "/never read", &write, 2);
    registry.changed(&own, "/again", &write, 2);
    registry.read(&root(), "/again", seen(1), false, 3);
    registry.changed(&sibling, "/by a sibling", &write, 4);
    let told = |who| {
        let stale = registry.stale_for_parent(who);
        stale.into_iter().map(|(path, _)| path.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(told(&own), ["/deleted", "/read"]);
    assert_eq!(told(&sibling), ["/by a sibling"]);
    assert!(registry.stale_for_parent(&root()).is_empty());
}

#[test]
fn a_later_write_of_a_sibling_hides_nothing() {
    let mut registry = Registry::default();
    registry.read(&root(), PATH, seen(0), false, 1);
    for who in [child(0), child(1)] {
        registry.enter(who.clone(), root());
        registry.changed(&who, PATH, &Change::Written(None), 2);
    }
    for who in [child(0), child(1)] {
        assert_eq!(registry.stale_for_parent(&who).len(), 1, "{who}");
    }
}

#[test]
fn the_oldest_rows_go_and_nothing_grows() {
    let mut registry = Registry::default();
    let (me, other) = (child(0), child(1));
    registry.enter(me.clone(), root());
    for number in 0..2 * PATHS_PER_AGENT {
        registry.read(&me, &format!("/{number}"), seen(0), false, 1);
    }
    for number in 0..2 * WRITERS {
        registry.changed(&other, &format!("/{number}"), &Change::Written(None), 2);
    }
    assert_eq!(registry.rows(&me).0, PATHS_PER_AGENT);
    assert_eq!(registry.rows(&other), (PATHS_PER_AGENT, PATHS_PER_AGENT, WRITERS));
    let newest = format!("/{}", 2 * WRITERS - 1);
    assert_eq!(letter(registry.check(&me, &newest, Some(&stamp(0))).as_ref()), 's');
    assert_eq!(registry.check(&me, "/0", Some(&stamp(0))), None, "nothing is known any more");
    // Its own read was forgotten, who wrote it was not: known, and never read.
    let mine = child(2);
    registry.changed(&mine, "/mine", &Change::Written(None), 3);
    for number in 0..PATHS_PER_AGENT {
        registry.read(&mine, &format!("/{number}"), seen(0), false, 4);
    }
    assert_eq!(registry.check(&mine, "/mine", Some(&stamp(0))), Some(Staleness::NeverRead));
    for who in [me, other, mine] {
        registry.leave(&who);
    }
    assert_eq!(registry.agents(), 0);
}
