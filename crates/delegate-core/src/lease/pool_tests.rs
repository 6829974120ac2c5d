//! Tests of [`super`]: leases, rotation and strategies, each rule and every order of events.

use std::time::Duration;

use super::*;
use crate::lease::status::{COOLDOWN, SOLE};

const NOW: Moment = Moment::from_ms(1_800_000_000_000);
const LATER: (Moment, u64) = (NOW, 0);

fn key(name: &str) -> ApiKey {
    ApiKey::new(format!("sk-{name}"))
}

fn print(name: &str) -> Fingerprint {
    Fingerprint::of(&key(name))
}

fn child(index: u32) -> SubagentId {
    SubagentId::new(index, 0)
}

fn entry(name: &str) -> Entry {
    Entry::new(name, key(name))
}

fn pool<const N: usize>(names: [&str; N]) -> Pool {
    Pool::new(PoolSpec { entries: names.map(entry).into(), ..PoolSpec::default() })
}

/// The name of the key.
fn name(given: Option<Given>) -> Option<String> {
    given.map(|given| given.api_key.reveal().trim_start_matches("sk-").to_owned())
}

fn lease(pool: &mut Pool, index: u32) -> Option<String> {
    name(pool.lease(child(index), None, NOW))
}

fn rotate(pool: &mut Pool, index: u32, failed: &str, status: u16) -> Rotation {
    let failure = KeyFailure::status(status);
    pool.rotate((child(index), None), Some(&print(failed)), &failure, LATER).0
}

fn next(rotation: Rotation) -> Option<String> {
    match rotation {
        Rotation::Next(given) => name(Some(given)),
        Rotation::Wait(_) | Rotation::Nothing(_) => None,
    }
}

#[test]
fn c41_leases_spread_over_keys_before_they_share() {
    let mut pool = pool(["a", "b", "c"]);
    let first: Vec<_> = (0..3).filter_map(|index| lease(&mut pool, index)).collect();
    assert_eq!(first, ["a", "b", "c"]);
    for index in 3..30 {
        assert!(lease(&mut pool, index).is_some(), "it waits for nobody");
    }
    assert_eq!(pool.leases().values().copied().collect::<Vec<_>>(), [10, 10, 10]);
    pool.release(child(1));
    pool.release(child(1));
    pool.release(child(99));
    assert_eq!(lease(&mut pool, 50).as_deref(), Some("b"), "the key with the fewest");
}

#[test]
fn c41_leases_of_other_parents_count() {
    let mut pool = pool(["a", "b", "c"]);
    pool.set_others([(print("a"), 2), (print("b"), 1)].into());
    let taken: Vec<_> = (0..3).filter_map(|index| lease(&mut pool, index)).collect();
    assert_eq!(taken, ["c", "b", "c"]);
}

#[test]
fn c41_two_entries_with_one_key_are_one_place() {
    let mut pool = Pool::new(PoolSpec {
        entries: vec![entry("a"), Entry { id: "a2".to_owned(), ..entry("a") }, entry("b")],
        ..PoolSpec::default()
    });
    assert_eq!((lease(&mut pool, 0), lease(&mut pool, 1)), (Some("a".into()), Some("b".into())));
}

#[test]
fn c39_one_key_in_two_entries_is_marked_once_in_both() {
    let mut pool = Pool::new(PoolSpec {
        entries: vec![entry("a"), Entry { id: "a2".to_owned(), ..entry("a") }, entry("b")],
        ..PoolSpec::default()
    });
    lease(&mut pool, 0);
    assert_eq!(next(rotate(&mut pool, 0, "a", 429)).as_deref(), Some("b"));
    let states: Vec<_> =
        pool.entries().map(|(entry, _, record, _)| (&*entry.id, record.state)).collect();
    assert_eq!(states, [("a", State::Exhausted), ("a2", State::Exhausted), ("b", State::Ok)]);
}

/// A key that no entry has marks nobody, is answered with each other key at most once, and then not at
/// all (#70401).
#[test]
fn c40_an_unknown_failed_key_marks_nobody_and_goes_once_around() {
    let mut pool = pool(["a", "b", "c"]);
    lease(&mut pool, 0);
    let around: Vec<_> = (0..5).map(|_| next(rotate(&mut pool, 0, "stranger", 401))).collect();
    let of = |name: &str| Some(name.to_owned());
    assert_eq!(around, [of("b"), of("c"), of("a"), None, None]);
    assert!(pool.records().is_empty(), "nobody is marked");
    // A failure of a key that is known ends the row.
    assert_eq!(next(rotate(&mut pool, 0, "a", 429)).as_deref(), Some("b"));
    assert_eq!(next(rotate(&mut pool, 0, "stranger", 401)).as_deref(), Some("c"));
    let mut single = self::pool(["a"]);
    lease(&mut single, 0);
    let refused = rotate(&mut single, 0, "stranger", 401);
    assert_eq!(refused, Rotation::Nothing(Nothing::Unknown), "there is no other");
}

#[test]
fn a_failure_without_a_key_is_of_the_key_that_the_child_holds() {
    let mut pool = pool(["a", "b", "c"]);
    (0..2).for_each(|index| drop(lease(&mut pool, index)));
    let failure = KeyFailure::status(429);
    let (rotation, marked) = pool.rotate((child(1), None), None, &failure, LATER);
    assert_eq!((next(rotation).as_deref(), marked), (Some("c"), Some(Marked::Fresh)));
    assert_eq!(pool.records().keys().collect::<Vec<_>>(), [&print("b")]);
}

/// RB-43: many children meet one failure of one key.
#[test]
fn rb_43_simultaneous_failures_of_one_key_are_one_rotation() {
    let mut pool = pool(["k0", "k1", "k2"]);
    for index in 0..16 {
        pool.lease_entry(child(index), "k0").unwrap();
    }
    for index in 0..16 {
        let to = next(rotate(&mut pool, index, "k0", 429)).unwrap();
        assert_ne!(to, "k0");
    }
    assert_eq!(pool.records().len(), 1, "only the key that failed is marked");
    assert_eq!(pool.records()[&print("k0")].marked, 1, "and once");
    assert_eq!(pool.leases(), [(print("k1"), 8), (print("k2"), 8)].into());
}

#[test]
fn the_only_living_key_rests_a_minute_and_money_an_hour() {
    for (status, expected) in [(429, SOLE), (503, SOLE), (402, COOLDOWN)] {
        let mut pool = pool(["a", "b"]);
        lease(&mut pool, 0);
        let revoked = KeyFailure::status(401).reason("token_revoked");
        pool.rotate((child(0), None), Some(&print("b")), &revoked, LATER);
        let rotation = rotate(&mut pool, 0, "a", status);
        assert_eq!(rotation, Rotation::Wait(NOW.after(expected)), "{status}");
        assert_eq!(pool.next_available_at(None, NOW), Some(NOW.after(expected)));
        assert_eq!(name(pool.lease(child(0), None, NOW)), None, "nothing may be taken");
        assert_eq!(name(pool.lease(child(0), None, NOW.after(expected))).as_deref(), Some("a"));
    }
}

#[test]
fn c38_a_dead_key_is_never_leased_again_until_it_is_changed() {
    let mut pool = pool(["a"]);
    lease(&mut pool, 0);
    let revoked = KeyFailure::status(401).reason("invalid_grant").reset("5");
    let (rotation, _) = pool.rotate((child(0), None), Some(&print("a")), &revoked, LATER);
    assert_eq!(rotation, Rotation::Nothing(Nothing::AllGone));
    let far = Moment::from_ms(u64::MAX);
    assert_eq!(pool.lease(child(1), None, far), None);
    assert_eq!(pool.select(None, far, 0), None);
    assert_eq!(pool.next_available_at(None, NOW), None);
    // Its owner has changed it.
    let entry = Entry { key: Some(key("new")), ..entry("a") };
    pool.replace(PoolSpec { entries: vec![entry], ..PoolSpec::default() });
    assert_eq!(lease(&mut pool, 1).as_deref(), Some("new"));
}

#[test]
fn c42_a_leased_entry_serves_the_childs_endpoint() {
    let at = |name: &str, url: &str| Entry { base_url: Some(url.to_owned()), ..entry(name) };
    let mut pool = Pool::new(PoolSpec {
        base_url: Some("https://own.example".to_owned()),
        entries: vec![entry("own"), at("x", "https://x.example"), at("y", "https://y.example")],
        ..PoolSpec::default()
    });
    for (endpoint, expected) in [
        (Some("https://x.example/"), Some("x")),
        (Some("https://Y.example"), Some("y")),
        (Some("https://own.example"), Some("own")),
        (Some("https://z.example"), None),
    ] {
        assert_eq!(name(pool.lease(child(0), endpoint, NOW)).as_deref(), expected, "{endpoint:?}");
        assert_eq!(pool.serves_at_all(endpoint), expected.is_some());
    }
    let given = pool.lease(child(0), Some("https://x.example"), NOW).unwrap();
    assert_eq!(given.base_url.as_deref(), Some("https://x.example"), "a bundle");
    // The next one serves it too, or there is none.
    let failure = KeyFailure::status(429);
    let here = (child(0), Some("https://x.example"));
    let (rotation, _) = pool.rotate(here, Some(&print("x")), &failure, LATER);
    assert!(matches!(rotation, Rotation::Wait(_)), "{rotation:?}");
}

#[test]
fn strategies_order_what_is_taken() {
    let taken = |strategy, count: u64| {
        let mut pool = pool(["a", "b", "c"]);
        pool.strategy = strategy;
        (0..count).map(|dice| name(pool.select(None, NOW, dice)).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(taken(PoolStrategy::FillFirst, 3), ["a", "a", "a"]);
    assert_eq!(taken(PoolStrategy::RoundRobin, 5), ["a", "b", "c", "a", "b"]);
    assert_eq!(taken(PoolStrategy::LeastUsed, 4), ["a", "b", "c", "a"]);
    let random = taken(PoolStrategy::Random, 600);
    for name in ["a", "b", "c"] {
        let count = random.iter().filter(|taken| *taken == name).count();
        assert!((120..280).contains(&count), "{name}: {count} of 600");
    }
}

#[test]
fn round_robin_goes_on_where_it_was_and_skips_what_rests() {
    let mut first = pool(["a", "b", "c"]);
    first.strategy = PoolStrategy::RoundRobin;
    assert_eq!(name(first.select(None, NOW, 0)).as_deref(), Some("a"));
    let mut second = pool(["a", "b", "c"]);
    second.strategy = PoolStrategy::RoundRobin;
    second.set_turns(first.turns().clone());
    lease(&mut second, 0);
    rotate(&mut second, 0, "b", 429);
    let taken: Vec<_> = (0..3).filter_map(|_| name(second.select(None, NOW, 0))).collect();
    assert!(!taken.contains(&"b".to_owned()), "{taken:?}");
}

#[test]
fn priority_decides_and_edits_keep_leases_and_status() {
    let with = |name: &str, priority| Entry { priority, ..entry(name) };
    let mut pool = Pool::new(PoolSpec {
        entries: vec![with("late", 5), with("early", -1), with("same", -1)],
        ..PoolSpec::default()
    });
    assert_eq!(lease(&mut pool, 0).as_deref(), Some("early"));
    assert_eq!(lease(&mut pool, 1).as_deref(), Some("same"));
    rotate(&mut pool, 1, "same", 429);
    let entries = vec![with("same", 0), with("early", 3), entry("added")];
    pool.replace(PoolSpec { entries, ..PoolSpec::default() });
    assert!(pool.holds_good_key(child(0), NOW), "early stayed");
    assert!(!pool.holds_good_key(child(1), NOW), "late was taken away");
    let states: Vec<_> =
        pool.entries().map(|(entry, _, record, load)| (&*entry.id, record.state, load)).collect();
    assert_eq!(
        states,
        [("same", State::Exhausted, 0), ("added", State::Ok, 0), ("early", State::Ok, 1),]
    );
}

#[test]
fn an_entry_without_its_key_is_never_taken() {
    let mut pool = Pool::new(PoolSpec {
        entries: vec![Entry { key: None, ..entry("missing") }],
        ..PoolSpec::default()
    });
    assert_eq!(lease(&mut pool, 0), None);
    assert_eq!(pool.lease_entry(child(0), "missing"), None);
    assert!(!pool.serves_at_all(None));
    assert_eq!(rotate(&mut pool, 0, "x", 401), Rotation::Nothing(Nothing::Unknown));
}

mod orders {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::{
        COOLDOWN, Duration, Fingerprint, KeyFailure, Moment, NOW, Pool, PoolSpec, Rotation, State,
        child, entry, print,
    };

    /// What happens to a pool.
    #[derive(Debug, Clone)]
    enum Step {
        Lease(u32),
        End(u32),
        Fail(u32, Option<u8>, u16, bool),
        Pass(u64),
        Back(u64),
        Edit(u8),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let status =
            prop_oneof![Just(401_u16), Just(402), Just(403), Just(429), Just(500), Just(0)];
        let step = prop_oneof![
            3 => (0_u32..8).prop_map(Step::Lease),
            2 => (0_u32..8).prop_map(Step::End),
            4 => (0_u32..8, proptest::option::of(0_u8..6), status, any::<bool>())
                .prop_map(|(child, key, status, dead)| Step::Fail(child, key, status, dead)),
            1 => (0_u64..4000).prop_map(Step::Pass),
            1 => (0_u64..9000).prop_map(Step::Back),
            1 => (1_u8..6).prop_map(Step::Edit),
        ];
        proptest::collection::vec(step, 1..80)
    }

    fn named(count: u8) -> PoolSpec {
        let entries = (0..count).map(|at| entry(&format!("k{at}"))).collect();
        PoolSpec { entries, ..PoolSpec::default() }
    }

    proptest! {
        /// No order of leases, failures and ends leaves a lease behind or hands out a key that is dead or
        /// rests.
        #[test]
        fn no_order_leaves_a_lease_behind_or_hands_out_a_bad_key(steps in steps()) {
            let mut pool = Pool::new(named(4));
            let (mut now, mut living) = (NOW, BTreeSet::new());
            for step in steps {
                let given = match step {
                    Step::Lease(index) => {
                        living.insert(index);
                        pool.lease(child(index), None, now)
                    }
                    Step::End(index) => {
                        living.remove(&index);
                        pool.release(child(index));
                        None
                    }
                    Step::Fail(index, key, status, dead) => {
                        living.insert(index);
                        let reason = dead.then(|| "token_revoked".to_owned());
                        let failure = KeyFailure { status: Some(status), reason, ..KeyFailure::default() };
                        let failed = key.map(|at| print(&format!("k{at}")));
                        let (rotation, _) =
                            pool.rotate((child(index), None), failed.as_ref(), &failure, (now, 7));
                        match rotation {
                            Rotation::Next(given) => Some(given),
                            Rotation::Wait(at) => {
                                prop_assert!(at > now);
                                None
                            }
                            Rotation::Nothing(_) => None,
                        }
                    }
                    Step::Pass(seconds) => {
                        now = now.after(Duration::from_secs(seconds));
                        None
                    }
                    Step::Back(seconds) => {
                        now = Moment::from_ms(now.as_ms() - seconds * 1000);
                        None
                    }
                    Step::Edit(count) => {
                        pool.replace(named(count));
                        None
                    }
                };
                if let Some(given) = given {
                    let print = Fingerprint::of(&given.api_key);
                    let record = pool.records().get(&print).cloned().unwrap_or_default();
                    prop_assert_eq!(record.state, State::Ok, "handed out");
                }
                let held: u32 = pool.leases().values().sum();
                prop_assert!(held as usize <= living.len(), "a lease per living child at most");
                // Whatever rests comes back within the longest cooldown, clock set back or not.
                if let Some(at) = pool.next_available_at(None, now) {
                    prop_assert!(at.since(now) <= COOLDOWN, "{at} is too far from {now}");
                }
            }
            for index in living {
                pool.release(child(index));
            }
            prop_assert!(pool.leases().is_empty());
        }
    }
}
