//! What a tree of children costs, and what that adds to the bill of the agent that delegated. Pure.

use delegate_protocol::outcome::Subtree;
use delegate_protocol::{Outcome, Tokens};

/// What an agent has spent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Bill {
    /// US dollars.
    pub cost_usd: f64,
    /// Where the number is from; `None`: nothing was billed yet.
    pub source: Option<String>,
    /// How sure it is.
    pub status: Option<String>,
}

/// `source` of a bill that holds nothing but what children spent.
pub const SOURCE: &str = "subagent";

/// `status` of such a bill.
pub const STATUS: &str = "estimated";

/// What one child spent itself, and its own children.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Node {
    /// By its entry; a failed one counts as well.
    pub own: Spending,
    /// Those that it delegated to.
    pub children: Vec<Node>,
}

/// Calls, tokens and money.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Spending {
    /// Model calls.
    pub api_calls: u64,
    /// Tokens.
    pub tokens: Tokens,
    /// US dollars; `None` is not known, and adds nothing.
    pub cost_usd: Option<f64>,
}

impl Spending {
    /// What an entry says.
    #[must_use]
    pub const fn of(entry: &Outcome) -> Self {
        Self { api_calls: entry.api_calls, tokens: entry.tokens, cost_usd: entry.cost_usd }
    }

    /// What a child's entry says of those below it.
    #[must_use]
    pub const fn below(below: &Subtree) -> Self {
        Self { api_calls: below.api_calls, tokens: below.tokens, cost_usd: below.cost_usd }
    }

    /// Both together. Numbers that are no money (not finite, below zero) add nothing.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            api_calls: self.api_calls.saturating_add(other.api_calls),
            tokens: Tokens {
                input: self.tokens.input.saturating_add(other.tokens.input),
                output: self.tokens.output.saturating_add(other.tokens.output),
            },
            cost_usd: match (money(self.cost_usd), money(other.cost_usd)) {
                (Some(left), Some(right)) => Some(left + right),
                (left, right) => left.or(right),
            },
        }
    }
}

fn money(cost: Option<f64>) -> Option<f64> {
    cost.filter(|cost| cost.is_finite() && *cost >= 0.0)
}

impl Node {
    /// What it and everything below it spent, layer by layer. Not recursive: a tree that somebody else
    /// made may be deep.
    #[must_use]
    pub fn total(&self) -> Spending {
        let (mut total, mut left) = (Spending::default(), vec![self]);
        while let Some(node) = left.pop() {
            total = total.and(node.own);
            left.extend(&node.children);
        }
        total
    }
}

/// The bill of an agent after its children: their sum is added. Zero changes nothing, and labels are set
/// only where there were none.
#[must_use]
pub fn roll_up(mut bill: Bill, children: &[Node]) -> Bill {
    let spent = children.iter().map(Node::total).fold(Spending::default(), Spending::and);
    let cost = spent.cost_usd.unwrap_or_default();
    if cost > 0.0 {
        bill.cost_usd += cost;
        bill.source.get_or_insert_with(|| SOURCE.to_owned());
        bill.status.get_or_insert_with(|| STATUS.to_owned());
    }
    bill
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(cost_usd: Option<f64>, children: Vec<Node>) -> Node {
        let tokens = Tokens { input: 10, output: 1 };
        Node { own: Spending { api_calls: 1, tokens, cost_usd }, children }
    }

    fn near(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-9
    }

    #[test]
    fn m054_a_childs_cost_is_added_to_what_its_parent_spent() {
        let before = Bill { cost_usd: 0.10, ..Bill::default() };
        assert!(near(roll_up(before, &[node(Some(0.42), vec![])]).cost_usd, 0.52));
    }

    #[test]
    fn m055_a_batch_is_added_up_and_labels_an_empty_bill() {
        let batch = [0.15, 0.27, 0.03].map(|cost| node(Some(cost), vec![]));
        let after = roll_up(Bill::default(), &batch);
        assert!(near(after.cost_usd, 0.45));
        assert_eq!(
            (after.source.as_deref(), after.status.as_deref()),
            (Some(SOURCE), Some(STATUS))
        );
    }

    #[test]
    fn m056_no_cost_changes_nothing() {
        let batch = [node(Some(0.0), vec![]), node(Some(0.0), vec![])];
        assert_eq!(roll_up(Bill::default(), &batch), Bill::default());
    }

    #[test]
    fn m057_a_bill_that_has_labels_keeps_them() {
        let words = |word: &str| Some(word.to_owned());
        let before = Bill { cost_usd: 1.0, source: words("provider"), status: words("exact") };
        let after = roll_up(before, &[node(Some(0.5), vec![])]);
        assert!(near(after.cost_usd, 1.5));
        assert_eq!((after.source, after.status), (words("provider"), words("exact")));
    }

    #[test]
    fn m058_entries_without_a_cost_and_numbers_that_are_none_add_nothing() {
        let bad = [None, Some(f64::NAN), Some(f64::INFINITY), Some(-3.0)];
        let batch = bad.map(|cost| node(cost, vec![]));
        assert_eq!(roll_up(Bill::default(), &batch), Bill::default());
    }

    #[test]
    fn a_nested_tree_counts_every_layer_once_however_deep_it_is() {
        let below = |below, _| node(None, vec![below]);
        let deep = (0..100_000).fold(node(Some(0.25), vec![]), below);
        let tree = node(Some(0.5), vec![deep, node(Some(1.0), vec![])]);
        let total = tree.total();
        assert_eq!(total.api_calls, 100_003);
        assert_eq!(total.tokens, Tokens { input: 1_000_030, output: 100_003 });
        assert!(near(total.cost_usd.unwrap(), 1.75));
        drop_flat(tree);
    }

    /// The derived drop of a deep tree would use up the stack of this test.
    fn drop_flat(tree: Node) {
        let mut left = vec![tree];
        while let Some(mut node) = left.pop() {
            left.append(&mut node.children);
        }
    }
}
