//! Tests of [`super`]: who is answered what, and that nothing is left behind.

use std::time::Duration;

use delegate_protocol::Fingerprint;
use proptest::prelude::*;

use super::*;
use crate::lease::pool::Entry;
use crate::lease::status::State;

const START: Moment = Moment::from_ms(1_800_000_000_000);

fn at(seconds: u64) -> Now {
    Now { time: START.after(Duration::from_secs(seconds)), dice: 3 }
}

fn child(index: u32) -> SubagentId {
    SubagentId::new(index, 0)
}

fn key(name: &str) -> ApiKey {
    ApiKey::new(format!("sk-{name}"))
}

fn spec(names: &[&str]) -> PoolSpec {
    let entries = names.iter().map(|name| Entry::new(*name, key(name))).collect();
    PoolSpec { entries, ..PoolSpec::default() }
}

fn authority(keys: &[&str], limits: CallLimits) -> Authority<u32> {
    let limits = [("p".to_owned(), limits)].into();
    let mut authority = Authority::new(BTreeMap::new(), limits);
    authority.set_pools([("p".to_owned(), spec(keys))].into());
    authority
}

fn admission(index: u32, branch: u32) -> Admission {
    Admission {
        child: child(index),
        branch: child(branch),
        pool: Some("p".to_owned()),
        provider: Some("p".to_owned()),
        endpoint: None,
    }
}

fn admit(authority: &mut Authority<u32>, index: u32) -> Option<Given> {
    authority.admit(admission(index, index), at(0))
}

fn rotate(name: &str, failure: KeyFailure) -> KeyQuestion {
    KeyQuestion::Rotate { fingerprint: Some(Fingerprint::of(&key(name))), failure }
}

/// The kinds of answers, by reply.
fn kinds(answers: Answers<u32>) -> Vec<(u32, String)> {
    let kind = |answer| match answer {
        KeyAnswer::Key(given) => given.api_key.reveal().to_owned(),
        KeyAnswer::Wait { ms } => format!("wait {ms}"),
        KeyAnswer::NoKey { .. } => "no key".to_owned(),
        KeyAnswer::Permit { key: None, .. } => "permit".to_owned(),
        KeyAnswer::Permit { key: Some(given), .. } => format!("permit {}", given.api_key.reveal()),
        KeyAnswer::Noted => "noted".to_owned(),
    };
    answers.into_iter().map(|(reply, answer)| (reply, kind(answer))).collect()
}

fn said(list: &[(u32, &str)]) -> Vec<(u32, String)> {
    list.iter().map(|(reply, kind)| (*reply, (*kind).to_owned())).collect()
}

const TWO: CallLimits = CallLimits { max_concurrent_calls: Some(2), requests_per_minute: None };

#[test]
fn those_who_wait_for_a_key_get_one_when_it_is_back_in_turn_by_branch() {
    let mut all = authority(&["a", "b"], CallLimits::default());
    // Children 1 to 4 hang below branch 1, child 10 is one of its own.
    for index in 1..=4 {
        all.admit(admission(index, 1), at(0));
    }
    admit(&mut all, 10);
    all.ask(child(1), rotate("a", KeyFailure::status(429).reset("30")), 0, at(0));
    let last = all.ask(child(1), rotate("b", KeyFailure::status(429).reset("40")), 0, at(0));
    assert_eq!(kinds(last), said(&[(0, "wait 30000")]));
    for index in [1, 2, 3, 4, 10] {
        assert!(all.ask(child(index), KeyQuestion::Await, index, at(1)).is_empty(), "it waits");
    }
    assert_eq!(all.next_deadline(at(1)), Some(at(30).time));
    assert!(all.serve(at(29)).is_empty());
    let served: Vec<u32> = kinds(all.serve(at(30))).into_iter().map(|(reply, _)| reply).collect();
    assert_eq!(served, [1, 10, 2, 3, 4], "the single one does not wait for all of the others");
    assert!(!all.is_waited_for());
    assert_eq!(all.pools()["p"].leases().values().sum::<u32>(), 5);
}

#[test]
fn those_who_wait_are_told_when_no_key_will_come() {
    let mut all = authority(&["a"], CallLimits::default());
    (0..2).for_each(|index| drop(admit(&mut all, index)));
    all.ask(child(0), rotate("a", KeyFailure::status(429)), 0, at(0));
    assert!(all.ask(child(0), KeyQuestion::Await, 1, at(0)).is_empty());
    assert!(all.ask(child(0), KeyQuestion::Permit, 2, at(0)).is_empty());
    let dead = KeyFailure::status(401).reason("token_revoked");
    let answers = kinds(all.ask(child(1), rotate("a", dead), 3, at(1)));
    assert_eq!(answers, said(&[(3, "no key"), (1, "no key"), (2, "no key")]));
}

#[test]
fn a_permit_waits_for_room_and_brings_a_key_when_the_own_one_failed_elsewhere() {
    let mut all = authority(&["a", "b"], TWO);
    for index in 0..4 {
        admit(&mut all, index);
    }
    // 0 and 2 hold a, 1 and 3 hold b.
    assert_eq!(kinds(all.ask(child(0), KeyQuestion::Permit, 0, at(0))), said(&[(0, "permit")]));
    assert_eq!(kinds(all.ask(child(1), KeyQuestion::Permit, 1, at(0))), said(&[(1, "permit")]));
    assert!(all.ask(child(2), KeyQuestion::Permit, 2, at(0)).is_empty());
    all.ask(child(0), rotate("a", KeyFailure::status(429)), 9, at(0));
    let back = KeyQuestion::GiveBack { permit: 1, refused: None };
    let answers = kinds(all.ask(child(0), back.clone(), 10, at(0)));
    assert_eq!(answers, said(&[(10, "noted"), (2, "permit sk-b")]));
    // Somebody else's permit, or one that was given back, moves nothing.
    assert!(all.ask(child(3), KeyQuestion::Permit, 3, at(0)).is_empty());
    assert_eq!(kinds(all.ask(child(0), back.clone(), 11, at(0))), said(&[(11, "noted")]));
    let foreign = KeyQuestion::GiveBack { permit: 2, refused: None };
    assert_eq!(kinds(all.ask(child(0), foreign, 12, at(0))), said(&[(12, "noted")]));
    assert_eq!(all.calls("p"), 2);
}

#[test]
fn a_child_that_is_gone_gives_everything_back() {
    let mut all = authority(&["a"], TWO);
    for index in 0..4 {
        admit(&mut all, index);
    }
    for reply in 0..2 {
        all.ask(child(0), KeyQuestion::Permit, reply, at(0));
    }
    assert!(all.ask(child(1), KeyQuestion::Permit, 2, at(0)).is_empty());
    assert!(all.ask(child(2), KeyQuestion::Permit, 3, at(0)).is_empty());
    assert!(all.leave(child(1), at(0)).is_empty(), "it has nothing and waits for nothing any more");
    assert_eq!(kinds(all.leave(child(0), at(0))), said(&[(3, "permit")]));
    all.leave(child(0), at(0));
    assert_eq!((all.calls("p"), all.pools()["p"].leases().values().sum()), (1, 2_u32));
    let late = all.ask(child(0), KeyQuestion::Permit, 8, at(0));
    assert_eq!(kinds(late), said(&[(8, "no key")]));
}

#[test]
fn while_every_key_rests_nobody_calls() {
    let mut all = authority(&["a"], CallLimits::default());
    (0..30).for_each(|index| drop(admit(&mut all, index)));
    all.ask(child(0), rotate("a", KeyFailure::status(429).reset("20")), 99, at(0));
    for index in 0..30 {
        assert!(all.ask(child(index), KeyQuestion::Permit, index, at(0)).is_empty());
    }
    assert_eq!(all.next_deadline(at(0)), Some(at(20).time));
    assert_eq!(all.serve(at(20)).len(), 30);
}

#[test]
fn no_child_can_make_the_parent_keep_permits_without_end() {
    let mut all = authority(&["a"], CallLimits::default());
    admit(&mut all, 0);
    for reply in 0..u32::try_from(PERMITS).unwrap() {
        assert_eq!(
            kinds(all.ask(child(0), KeyQuestion::Permit, reply, at(0))),
            said(&[(reply, "permit")])
        );
    }
    let more = all.ask(child(0), KeyQuestion::Permit, 999, at(0));
    assert_eq!(kinds(more), said(&[(999, "no key")]));
}

#[test]
fn what_a_provider_says_is_kept_without_the_key() {
    let mut all = authority(&["a"], CallLimits::default());
    admit(&mut all, 0);
    for reason in ["sk-a", "bad key sk-a", "two words"] {
        let failure = KeyFailure::status(429).reason(reason).message("your key sk-a is over");
        all.ask(child(0), rotate("a", failure), 0, at(0));
        let kept = format!("{:?}", all.pools()["p"].records());
        assert!(!kept.contains("sk-a") && kept.contains("reason: None"), "{kept}");
    }
}

#[test]
fn a_child_without_a_pool_is_told_so_and_may_call() {
    let mut all = authority(&["a"], CallLimits::default());
    all.admit(Admission { pool: None, ..admission(0, 0) }, at(0));
    let failed = all.ask(child(0), rotate("a", KeyFailure::status(429)), 0, at(0));
    assert_eq!(kinds(failed), said(&[(0, "no key")]));
    assert_eq!(kinds(all.ask(child(0), KeyQuestion::Await, 1, at(0))), said(&[(1, "no key")]));
    assert_eq!(kinds(all.ask(child(0), KeyQuestion::Permit, 2, at(0))), said(&[(2, "permit")]));
    assert!(all.pools()["p"].records().is_empty(), "nobody else's key is marked");
}

/// RB-30: whatever happens in whatever order, all is free at the end.
#[test]
fn rb_30_a_hundred_thousand_ends_leave_no_lease_and_no_permit() {
    let mut all = authority(&["a", "b", "c"], TWO);
    let mut dice = 1_u64;
    let mut roll = |most: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % most
    };
    for index in 0..100_000_u32 {
        let now = at(u64::from(index));
        all.admit(admission(index, index % 7), now);
        for _ in 0..roll(4) {
            let question = match roll(4) {
                0 => rotate(
                    ["a", "b", "c", "x"][usize::try_from(roll(4)).unwrap()],
                    KeyFailure::status(429).reset("2"),
                ),
                1 => KeyQuestion::Await,
                2 => KeyQuestion::Permit,
                _ => KeyQuestion::GiveBack { permit: roll(u64::from(index) + 1), refused: None },
            };
            all.ask(child(index), question, 0, now);
        }
        // It ends before the next begins, or a while later.
        if index >= 5 {
            all.leave(child(index - u32::try_from(roll(6)).unwrap()), now);
        }
        if index % 6 == 5 {
            (0..=index.min(11)).for_each(|back| drop(all.leave(child(index - back), now)));
        }
    }
    for index in 99_900..100_000 {
        all.leave(child(index), at(200_000));
    }
    assert!(all.pools()["p"].leases().is_empty());
    assert_eq!((all.calls("p"), all.is_waited_for(), all.children.len()), (0, false, 0));
}

proptest! {
    /// Every question is answered once, or dropped with its child; nobody gets a key that is not ok.
    #[test]
    fn every_question_is_answered_once_and_with_a_good_key(
        steps in proptest::collection::vec((0_u8..6, 0_u32..6, 0_u8..4, 0_u64..50), 1..120),
    ) {
        let mut all = authority(&["a", "b", "c"], TWO);
        let (mut now, mut asked, mut open) = (0, 0_u32, BTreeMap::new());
        let mut permits: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (what, index, which, wait) in steps {
            now += wait;
            let who = child(index);
            asked += 1;
            let question = match what {
                0 => {
                    all.admit(admission(index, index % 3), at(now));
                    None
                }
                1 => Some(KeyQuestion::Await),
                2 => Some(KeyQuestion::Permit),
                3 => {
                    let permit = permits.get_mut(&index).and_then(Vec::pop).unwrap_or(9999);
                    let refused = (which == 0).then(|| "3".to_owned());
                    Some(KeyQuestion::GiveBack { permit, refused })
                }
                4 => {
                    let name = ["a", "b", "c", "x"][usize::from(which)];
                    Some(rotate(name, KeyFailure::status(if which == 1 { 402 } else { 429 }).reset("9")))
                }
                _ => None,
            };
            let answers = match question {
                Some(question) => {
                    open.insert(asked, index);
                    all.ask(who, question, asked, at(now))
                }
                None if what == 5 => {
                    open.retain(|_, of| *of != index);
                    permits.remove(&index);
                    all.leave(who, at(now))
                }
                None => all.serve(at(now)),
            };
            for (reply, answer) in answers {
                let of = open.remove(&reply);
                prop_assert!(of.is_some(), "{reply} is answered twice");
                let given = match answer {
                    KeyAnswer::Permit { permit, key } => {
                        permits.entry(of.unwrap()).or_default().push(permit);
                        key
                    }
                    KeyAnswer::Key(given) => Some(given),
                    KeyAnswer::Wait { .. } | KeyAnswer::NoKey { .. } | KeyAnswer::Noted => None,
                };
                if let Some(given) = given {
                    let record = all.pools()["p"].records().get(&Fingerprint::of(&given.api_key)).cloned();
                    prop_assert_eq!(record.unwrap_or_default().state, State::Ok);
                }
            }
            prop_assert!(all.calls("p") <= 2);
        }
        for index in 0..6 {
            all.leave(child(index), at(now));
        }
        prop_assert!(all.pools()["p"].leases().is_empty());
        prop_assert_eq!((all.calls("p"), all.is_waited_for()), (0, false));
    }
}
