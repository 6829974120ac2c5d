//! Keys of what a whole tree of children may have and spend, for [`super`].

use super::{Id, KeyInfo, Type, U32, count};

const U63: u64 = i64::MAX as u64;

/// Most money that a limit may name, in US dollars: what is counted in billionths has room for it.
pub(crate) const MOST_MONEY: f64 = 1e9;

pub(super) const MAX_TREE_CHILDREN: KeyInfo = KeyInfo {
    id: Id::MaxTreeChildren,
    name: "max_tree_children",
    kind: count(U32, true),
    default: "null",
    also: None,
    sensitive: false,
    about: "Children of all levels that work at once; one that waits for its own does not count. null: max_concurrent_children.",
};

pub(super) const MAX_TREE_TOKENS: KeyInfo = KeyInfo {
    id: Id::MaxTreeTokens,
    name: "max_tree_tokens",
    kind: count(U63, true),
    default: "null",
    also: None,
    sensitive: false,
    about: "Tokens that a tree of children may spend, input and output. null: no limit.",
};

pub(super) const MAX_TREE_COST_USD: KeyInfo = KeyInfo {
    id: Id::MaxTreeCostUsd,
    name: "max_tree_cost_usd",
    kind: Type::Money,
    default: "null",
    also: None,
    sensitive: false,
    about: "Money that a tree of children may spend, in US dollars. null: no limit.",
};

pub(super) const CHILD_MAX_TOKENS: KeyInfo = KeyInfo {
    id: Id::ChildMaxTokens,
    name: "child_max_tokens",
    kind: count(U63, true),
    default: "null",
    also: None,
    sensitive: false,
    about: "Tokens that one child may spend; reserved for it before it starts. null: a share of what the tree has left is reserved.",
};

pub(super) const CHILD_MAX_COST_USD: KeyInfo = KeyInfo {
    id: Id::ChildMaxCostUsd,
    name: "child_max_cost_usd",
    kind: Type::Money,
    default: "null",
    also: None,
    sensitive: false,
    about: "The same in US dollars.",
};
