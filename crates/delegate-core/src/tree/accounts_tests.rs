//! Tests of the accounts of a tree: lending, budgets, and every order of facts.

use super::*;
use delegate_protocol::SubagentId;
use proptest::prelude::*;

const fn below(child: u32) -> Option<Subtree> {
    Some(Subtree::Below(SubagentId::new(child, 0)))
}

fn slots(children: u32) -> Caps {
    Caps { children, tokens: None, money: None, child_tokens: None, child_money: None }
}

fn take(accounts: &mut Accounts, batch: BatchId, launches: u32) -> Vec<PlaceId> {
    let _woken = accounts.ask(batch, launches);
    accounts.collect(batch)
}

#[test]
fn a_full_tree_of_orchestrators_that_wait_for_one_child_each_goes_on() {
    for cap in [1, 2, 5] {
        let mut accounts = Accounts::new(slots(cap));
        let root = accounts.join(None);
        let parents = take(&mut accounts, root, cap);
        assert_eq!(parents.len(), cap as usize);
        let batches: Vec<_> = (0..cap).map(|child| accounts.join(below(child))).collect();
        for batch in &batches {
            assert_eq!(take(&mut accounts, *batch, 1), [], "the tree is full");
        }
        for (at, place) in parents.iter().enumerate() {
            let woken = accounts.lend(*place);
            assert_eq!(woken, [batches[at]], "in turn");
        }
        let children: Vec<_> = batches.iter().map(|batch| accounts.collect(*batch)).collect();
        assert!(children.iter().all(|places| places.len() == 1));
        for (place, child) in parents.into_iter().zip(children) {
            let _woken = accounts.end(child[0]);
            accounts.back(place);
            assert!(accounts.in_use <= cap);
            let _woken = accounts.end(place);
        }
        assert_eq!(accounts.standing().working, 0);
    }
}

#[test]
fn without_lending_that_tree_stands_still() {
    let mut accounts = Accounts::new(slots(2));
    let root = accounts.join(None);
    let parents = take(&mut accounts, root, 2);
    let child = accounts.join(below(0));
    assert_eq!(take(&mut accounts, child, 1), []);
    assert_eq!(accounts.position(child), Some(1));
    let _woken = accounts.lend(parents[0]);
    assert_eq!(accounts.collect(child).len(), 1);
}

#[test]
fn a_spent_budget_refuses_with_both_numbers_and_the_key_once_nothing_can_come_back() {
    let caps = Caps { tokens: Some(100), child_tokens: Some(60), ..slots(9) };
    let mut accounts = Accounts::new(caps);
    let root = accounts.join(None);
    let first = take(&mut accounts, root, 3);
    assert_eq!(first.len(), 1, "60 are reserved, 40 are left");
    assert_eq!(accounts.refusal(), None, "it may give back");
    let own = accounts.spend(first[0], 60, 0).unwrap();
    assert_eq!(own.to_string(), "this child has spent 60 tokens, child_max_tokens is 60");
    let tree = accounts.spend(first[0], 45, 0).unwrap();
    assert_eq!(tree.to_string(), "the tree has spent 105 tokens, max_tree_tokens is 100");
    let woken = accounts.end(first[0]);
    assert_eq!(woken, [root], "who waits learns that it waits in vain");
    let refusal = accounts.refusal().unwrap();
    assert_eq!((refusal.key, accounts.collect(root)), ("max_tree_tokens", vec![]));
}

#[test]
fn money_is_counted_in_billionths_and_named_in_dollars() {
    let caps = Caps { money: Some(nanos(0.3)), ..slots(9) };
    let mut accounts = Accounts::new(caps);
    let root = accounts.join(None);
    let place = take(&mut accounts, root, 1)[0];
    assert_eq!(accounts.spend(place, 0, nanos(0.1)), None);
    assert_eq!(accounts.spend(place, 0, nanos(0.1)), None);
    let reached = accounts.spend(place, 0, nanos(0.1)).unwrap();
    assert_eq!(reached.to_string(), "the tree has spent $0.3, max_tree_cost_usd is $0.3");
    assert_eq!([f64::NAN, f64::INFINITY, -1.0].map(nanos), [0; 3]);
}

#[test]
fn the_last_word_of_a_child_counts_where_it_is_more_than_was_told() {
    let mut accounts = Accounts::new(Caps { tokens: Some(1000), ..slots(2) });
    let root = accounts.join(None);
    let places = take(&mut accounts, root, 2);
    assert!(accounts.spend(places[0], 70, 0).is_none());
    for (place, said) in [(places[0], 50), (places[0], 90), (places[1], 5)] {
        assert!(accounts.settle(place, said, 0).is_none());
    }
    assert_eq!(accounts.standing().tokens, 95);
}

#[test]
fn what_a_batch_does_not_collect_or_no_longer_wants_goes_to_the_next() {
    let mut accounts = Accounts::new(slots(2));
    let [one, two] = [0, 1].map(|child| accounts.join(below(child)));
    assert_eq!(accounts.ask(one, 2), [one, one]);
    assert_eq!(accounts.ask(two, 2), []);
    assert_eq!(accounts.ask(one, 1), [two]);
    assert_eq!(accounts.leave(one), [two]);
    assert_eq!(accounts.collect(two).len(), 2);
    assert_eq!(accounts.ask(one, 1), [], "it is gone");
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Ask(usize, u32),
    Collect(usize),
    Leave(usize),
    Lend(usize),
    Back(usize),
    Spend(usize, u64),
    End(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let place = 0_usize..12;
    prop_oneof![
        (0_usize..4, 0_u32..6).prop_map(|(batch, launches)| Step::Ask(batch, launches)),
        (0_usize..4).prop_map(Step::Collect),
        (0_usize..4).prop_map(Step::Leave),
        place.clone().prop_map(Step::Lend),
        place.clone().prop_map(Step::Back),
        (place.clone(), 0_u64..40).prop_map(|(place, tokens)| Step::Spend(place, tokens)),
        place.prop_map(Step::End),
    ]
}

proptest! {
    /// In no order of facts is a slot granted over the cap or lost, and nobody stands in line beside a free
    /// slot that a budget does not hold back.
    #[test]
    fn no_order_of_facts_loses_a_slot_or_grants_one_too_many(
        cap in 1_u32..5,
        tokens in proptest::option::of(1_u64..300),
        steps in proptest::collection::vec(step(), 0..300),
    ) {
        let mut accounts = Accounts::new(Caps { tokens, ..slots(cap) });
        let batches: Vec<_> = (0..4).map(|batch| accounts.join(below(batch / 2))).collect();
        let mut held: Vec<PlaceId> = Vec::new();
        for step in steps {
            let before = accounts.in_use;
            match step {
                Step::Ask(batch, launches) => drop(accounts.ask(batches[batch], launches)),
                Step::Collect(batch) => held.extend(accounts.collect(batches[batch])),
                Step::Leave(batch) => drop(accounts.leave(batches[batch])),
                Step::Lend(at) => held.get(at).into_iter().for_each(|p| drop(accounts.lend(*p))),
                Step::Back(at) => held.get(at).into_iter().for_each(|place| accounts.back(*place)),
                Step::Spend(at, tokens) => {
                    let _reached = held.get(at).map(|place| accounts.spend(*place, tokens, 0));
                }
                Step::End(at) => if at < held.len() {
                    drop(accounts.end(held.swap_remove(at)));
                }
            }
            let working = accounts.places.values().filter(|place| !place.lent).count();
            prop_assert_eq!(working, accounts.in_use as usize);
            let lender = matches!(step, Step::Back(_));
            prop_assert!(lender || accounts.in_use <= cap.max(before), "granted over the cap");
            let free = accounts.in_use < cap && !accounts.line.is_empty();
            let admits = matches!(accounts.tokens.admission(cap - accounts.in_use.min(cap)), Admission::Now(_));
            // Coming back may leave an admission that the next fact uses.
            prop_assert!(lender || !(free && admits) || matches!(step, Step::Spend(..)));
        }
        for place in held {
            drop(accounts.end(place));
        }
        for batch in batches {
            drop(accounts.leave(batch));
        }
        prop_assert_eq!((accounts.in_use, accounts.tokens.reserved(), accounts.places.len()), (0, 0, 0));
    }
}
