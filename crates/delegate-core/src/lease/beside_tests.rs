//! Tests of [`super`]: two parents, edits, broken files, and that no key is written.

use super::*;
use crate::config::CallLimits;
use crate::lease::gate::{Gate, Opens};
use crate::lease::gates::Permit;
use crate::lease::pool::{Entry, PoolSpec, Rotation};
use crate::lease::status::Cause;
use delegate_protocol::{ApiKey, KeyFailure, SubagentId};

const NOW: Moment = Moment::from_ms(1_800_000_000_000);

struct Parent {
    beside: Beside,
    known: Mine,
}

struct Mine {
    pools: BTreeMap<String, Pool>,
    gates: Gates,
    /// Somebody waits for a call.
    waits: bool,
}

impl Shared for Mine {
    fn pools(&mut self) -> &mut BTreeMap<String, Pool> {
        &mut self.pools
    }

    fn gates(&mut self) -> &mut Gates {
        &mut self.gates
    }

    fn held(&mut self, now: Moment) -> BTreeMap<String, Held> {
        self.gates.held(|_| self.waits, now)
    }
}

fn key(name: &str) -> ApiKey {
    ApiKey::new(format!("sk-canary-{name}"))
}

fn print(name: &str) -> Fingerprint {
    Fingerprint::of(&key(name))
}

impl Parent {
    fn new(dir: &Path, names: &[&str]) -> Self {
        let entries = names.iter().map(|name| Entry::new(*name, key(name))).collect();
        let pool = Pool::new(PoolSpec { entries, ..PoolSpec::default() });
        let limits = CallLimits { max_concurrent_calls: Some(2), requests_per_minute: Some(3) };
        let mut gates = Gates::new([("p".to_owned(), limits)].into());
        gates.of("p");
        let known = Mine { pools: [("p".to_owned(), pool)].into(), gates, waits: false };
        Self { beside: Beside::new(dir), known }
    }

    fn act<T>(&mut self, now: Moment, act: impl FnOnce(&mut Pool) -> T) -> T {
        let mut result = None;
        self.beside.shared(&mut self.known, now, |known| {
            result = Some(act(known.pools.get_mut("p").unwrap()));
        });
        result.unwrap()
    }

    fn at_gate<T>(&mut self, now: Moment, act: impl FnOnce(&mut Gate<Permit>) -> T) -> T {
        let mut result = None;
        self.beside.shared(&mut self.known, now, |known| result = Some(act(known.gates.of("p"))));
        result.unwrap()
    }

    fn lease(&mut self, index: u32) -> Option<Fingerprint> {
        let child = SubagentId::new(index, 0);
        let given = self.act(NOW, |pool| pool.lease(child, None, NOW));
        given.map(|given| Fingerprint::of(&given.api_key))
    }

    fn fail(&mut self, name: &str, status: u16) -> Rotation {
        let child = SubagentId::new(0, 0);
        let failure = KeyFailure::status(status).message("sk-canary-a is over");
        self.act(NOW, |pool| pool.rotate((child, None), Some(&print(name)), &failure, (NOW, 0)).0)
    }

    fn state(&mut self, name: &str, now: Moment) -> State {
        self.act(now, |pool| {
            pool.look(now);
            pool.records().get(&print(name)).map_or(State::Ok, |record| record.state)
        })
    }
}

fn status(dir: &Path) -> String {
    fs::read_to_string(dir.join("keys/status.json")).unwrap()
}

#[test]
fn what_one_parent_learns_the_other_knows() {
    let dir = tempfile::tempdir().unwrap();
    let (mut one, mut two) =
        (Parent::new(dir.path(), &["a", "b"]), Parent::new(dir.path(), &["a", "b"]));
    one.lease(0);
    one.fail("a", 429);
    assert_eq!(two.state("a", NOW), State::Exhausted);
    assert_eq!(two.lease(7), Some(print("b")));
    // Its own report of the same failure is the same failure.
    two.fail("a", 429);
    assert_eq!(one.act(NOW, |pool| pool.records()[&print("a")].marked), 1);
    // A third one, later: it is over.
    let mut three = Parent::new(dir.path(), &["a", "b"]);
    assert_eq!(three.state("a", NOW.after(Duration::from_secs(3600))), State::Ok);
}

/// Two parents at once take different keys (12.1, 12); when one is gone its leases are, too.
#[test]
fn leases_of_two_parents_spread_and_go_with_their_parent() {
    let dir = tempfile::tempdir().unwrap();
    let (mut one, mut two) =
        (Parent::new(dir.path(), &["a", "b"]), Parent::new(dir.path(), &["a", "b"]));
    let taken: Vec<_> = (0..4)
        .map(|index| if index % 2 == 0 { one.lease(index) } else { two.lease(index) })
        .collect();
    assert_eq!(taken, [Some(print("a")), Some(print("b")), Some(print("a")), Some(print("b"))]);
    let mut three = Parent::new(dir.path(), &["a", "b"]);
    let loads = |three: &mut Parent| {
        three.act(NOW, |pool| pool.entries().map(|(.., load)| load).collect::<Vec<_>>())
    };
    assert_eq!(loads(&mut three), [2, 2]);
    // As if it were killed: its file stays, its lock does not.
    let (left, file) = one.beside.own.take().unwrap();
    drop(file);
    assert!(left.exists());
    assert_eq!(loads(&mut three), [0, 2]);
    assert!(!left.exists());
    drop(two);
    assert_eq!(loads(&mut three), [0, 0]);
}

#[test]
fn no_key_is_written_and_nobody_else_can_read_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let mut parent = Parent::new(dir.path(), &["a", "b"]);
    parent.lease(0);
    parent.fail("a", 402);
    let folder = dir.path().join("keys");
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    let mut files = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("canary"), "{}: {text}", path.display());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        files += 1;
    }
    assert_eq!(files, 3, "statuses, lock, leases");
    assert!(status(dir.path()).contains(print("a").as_str()));
}

#[test]
fn what_people_write_into_it_stays_and_counts() {
    let dir = tempfile::tempdir().unwrap();
    let mut parent = Parent::new(dir.path(), &["a", "b"]);
    parent.lease(0);
    parent.fail("a", 429);
    let mut root: Value = serde_json::from_str(&status(dir.path())).unwrap();
    root["note"] = Value::from("mine");
    root["pools"]["p"]["keys"][print("a").as_str()]["who"] = Value::from("team a");
    root["pools"]["other"] = serde_json::json!({ "keys": { "x": 5 } });
    // Somebody knows that b is dead.
    root["pools"]["p"]["keys"][print("b").as_str()] = serde_json::json!({ "state": "dead" });
    fs::write(dir.path().join("keys/status.json"), root.to_string()).unwrap();
    assert_eq!(parent.lease(1), None);
    parent.fail("a", 402);
    let kept: Value = serde_json::from_str(&status(dir.path())).unwrap();
    assert_eq!(kept["note"], "mine");
    assert_eq!(kept["pools"]["p"]["keys"][print("a").as_str()]["who"], "team a");
    assert_eq!(kept["pools"]["other"], root["pools"]["other"]);
    assert_eq!(kept["pools"]["p"]["keys"][print("b").as_str()]["state"], "dead");
    let record = parent.act(NOW, |pool| pool.records()[&print("a")].clone());
    assert_eq!(record.cause, Some(Cause::Billing));
}

#[test]
fn a_broken_file_is_moved_aside_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let mut parent = Parent::new(dir.path(), &["a", "b"]);
    parent.lease(0);
    parent.fail("a", 429);
    for broken in ["{\"pools\": ", "[]", ""] {
        fs::write(dir.path().join("keys/status.json"), broken).unwrap();
        assert!(parent.lease(1).is_some());
        let aside = fs::read_dir(dir.path().join("keys")).unwrap();
        let aside = aside.map(|entry| entry.unwrap().path());
        let aside: Vec<_> =
            aside.filter(|path| path.to_str().unwrap().contains("broken")).collect();
        assert_eq!(aside.len(), 1, "{aside:?}");
        assert_eq!(fs::read_to_string(&aside[0]).unwrap(), broken);
        fs::remove_file(&aside[0]).unwrap();
        parent.fail("b", 429);
        assert!(status(dir.path()).contains(print("b").as_str()));
    }
}

#[test]
fn a_directory_that_cannot_be_used_stops_nobody_and_is_told_later() {
    let dir = tempfile::tempdir().unwrap();
    let blocked = dir.path().join("keys");
    fs::write(&blocked, "a file").unwrap();
    let mut parent = Parent::new(dir.path(), &["a", "b"]);
    parent.lease(0);
    parent.fail("a", 429);
    assert_eq!(parent.state("a", NOW), State::Exhausted);
    fs::remove_file(&blocked).unwrap();
    // Somebody else has learned something meanwhile.
    let mut other = Parent::new(dir.path(), &["a", "b"]);
    other.lease(0);
    other.fail("b", 402);
    assert_eq!(
        (parent.state("a", NOW), parent.state("b", NOW)),
        (State::Exhausted, State::Exhausted)
    );
    assert_eq!(other.state("a", NOW), State::Exhausted, "and now it is told");
}

#[test]
fn while_another_holds_the_lock_nobody_waits_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let mut parent = Parent::new(dir.path(), &["a", "b"]);
    parent.lease(0);
    let holder = File::open(dir.path().join("keys/status.lock")).unwrap();
    holder.lock().unwrap();
    parent.fail("a", 429);
    assert!(!status_exists(dir.path()) || !status(dir.path()).contains("exhausted"));
    holder.unlock().unwrap();
    parent.lease(1);
    assert!(status(dir.path()).contains("exhausted"));
}

fn status_exists(dir: &Path) -> bool {
    dir.join("keys/status.json").exists()
}

#[test]
fn a_clock_that_is_set_back_prolongs_nothing_for_anybody() {
    let dir = tempfile::tempdir().unwrap();
    let mut parent = Parent::new(dir.path(), &["a", "b"]);
    parent.lease(0);
    parent.fail("a", 401);
    let earlier = Moment::from_ms(NOW.as_ms() - 86_400_000);
    let mut other = Parent::new(dir.path(), &["a", "b"]);
    assert_eq!(other.state("a", earlier), State::Exhausted);
    assert_eq!(other.state("a", earlier.after(Duration::from_secs(300))), State::Ok);
}

#[test]
fn what_is_known_of_keys_that_are_gone_is_forgotten_after_a_day() {
    let dir = tempfile::tempdir().unwrap();
    let mut parent = Parent::new(dir.path(), &["a", "b"]);
    parent.lease(0);
    parent.fail("a", 402);
    let mut changed = Parent::new(dir.path(), &["b", "c"]);
    changed.lease(0);
    changed.fail("b", 402);
    assert!(status(dir.path()).contains(print("a").as_str()));
    let child = SubagentId::new(0, 0);
    let later = NOW.after(FORGET + Duration::from_secs(1));
    let failure = KeyFailure::status(402);
    changed
        .act(later, |pool| pool.rotate((child, None), Some(&print("c")), &failure, (later, 0)).0);
    assert!(!status(dir.path()).contains(print("a").as_str()));
}

#[test]
fn one_key_or_all_can_be_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut parent = Parent::new(dir.path(), &["a", "b", "c"]);
    parent.lease(0);
    ["a", "b", "c"].iter().for_each(|name| drop(parent.fail(name, 402)));
    let mut hand = Beside::new(dir.path());
    assert_eq!(hand.forget(Some(print("b").as_str()), NOW).unwrap(), 1);
    assert_eq!((parent.state("a", NOW), parent.state("b", NOW)), (State::Exhausted, State::Ok));
    assert_eq!(hand.forget(None, NOW).unwrap(), 2);
    assert_eq!(parent.state("a", NOW), State::Ok);
    let mut looked = Parent::new(dir.path(), &["a"]);
    looked.beside.look(&mut looked.known.pools).unwrap();
}

const fn permit(number: u64) -> Permit {
    (SubagentId::new(0, 0), number)
}

#[test]
fn calls_of_two_parents_add_up_and_those_of_a_dead_one_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (mut one, mut two) = (Parent::new(dir.path(), &["a"]), Parent::new(dir.path(), &["a"]));
    assert!(one.at_gate(NOW, |gate| gate.take(permit(1), NOW)));
    assert!(two.at_gate(NOW, |gate| gate.take(permit(1), NOW)));
    for parent in [&mut one, &mut two] {
        assert_eq!(parent.at_gate(NOW, |gate| gate.opens(NOW)), Opens::AfterOthers);
    }
    // As after kill -9: its file stays, and the lock on it is gone.
    let (path, file) = one.beside.own.take().unwrap();
    drop(file);
    assert!(path.exists());
    assert!(two.at_gate(NOW, |gate| gate.take(permit(2), NOW)));
    assert!(!path.exists(), "it is cleared away");
    // The calls that it began count for their minute.
    two.at_gate(NOW, |gate| gate.give_back(permit(1)));
    let minute = NOW.after(Duration::from_secs(60));
    assert_eq!(two.at_gate(NOW, |gate| gate.opens(NOW)), Opens::At(minute));
    let mut three = Parent::new(dir.path(), &["a"]);
    assert_eq!(three.at_gate(NOW, |gate| gate.opens(NOW)), Opens::At(minute));
    assert!(three.at_gate(minute, |gate| gate.take(permit(1), minute)));
}

#[test]
fn a_refusal_of_the_provider_holds_for_all_parents_and_survives_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = Parent::new(dir.path(), &["a"]);
    let later = NOW.after(Duration::from_secs(30));
    one.at_gate(NOW, |gate| {
        assert!(gate.take(permit(1), NOW));
        gate.refused(permit(1), Some(later), NOW);
    });
    drop(one);
    let mut two = Parent::new(dir.path(), &["a"]);
    // A gate that is named for the first time knows it as well, and takes nothing from what is known.
    two.known.gates = Gates::new(BTreeMap::new());
    assert_eq!(two.at_gate(NOW, |gate| gate.opens(NOW)), Opens::At(later));
    assert_eq!(two.at_gate(NOW, |gate| gate.opens(NOW)), Opens::At(later));
    fs::write(dir.path().join("keys/calls.json"), "{").unwrap();
    assert_eq!(two.at_gate(NOW, |gate| gate.opens(NOW)), Opens::Now, "nothing is known then");
    let aside = fs::read_dir(dir.path().join("keys")).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().contains("calls.json.broken")
    });
    assert_eq!(aside.count(), 1, "it is kept aside");
}

#[test]
fn one_that_waits_says_that_it_still_looks_and_is_passed_over_when_it_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let (mut one, mut two) = (Parent::new(dir.path(), &["a"]), Parent::new(dir.path(), &["a"]));
    assert!(two.at_gate(NOW, |gate| gate.take(permit(9), NOW)));
    assert!(one.at_gate(NOW, |gate| gate.take(permit(1), NOW)));
    two.known.waits = true;
    two.at_gate(NOW, |_| ());
    one.at_gate(NOW, |gate| gate.give_back(permit(1)));
    assert_eq!(one.at_gate(NOW, |gate| gate.opens(NOW)), Opens::AfterOthers, "it is their turn");
    let soon = NOW.after(LOOKS);
    two.at_gate(soon, |_| ());
    let later = NOW.after(LOOKED);
    assert_eq!(one.at_gate(later, |gate| gate.opens(later)), Opens::AfterOthers);
    let late = soon.after(LOOKED);
    assert_eq!(one.at_gate(late, |gate| gate.opens(late)), Opens::Now, "they stand still");
}

/// As a process has it that was forked meanwhile and has not come to its exec.
#[test]
fn a_copy_of_the_locks_descriptor_keeps_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let beside = Beside::new(dir.path());
    let held = beside.lock().unwrap().unwrap();
    let copy = held.0.try_clone().unwrap();
    assert!(beside.lock().unwrap().is_none(), "it is held");
    let mut parent = Parent::new(dir.path(), &["a"]);
    assert_eq!(parent.lease(0), Some(print("a")));
    assert!(parent.beside.is_behind(), "nobody was told of the lease");
    drop(held);
    parent.state("a", NOW);
    assert!(!parent.beside.is_behind());
    assert!(beside.lock().unwrap().is_some());
    drop(copy);
}
