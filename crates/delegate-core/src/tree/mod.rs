//! The tree of who delegates to whom, as far as it is counted: slots, tokens and money, minted by the root
//! for all levels, taken by a guard before a launch and given back by it however the child ends.
//!
//! | module | holds |
//! |---|---|
//! | [`budget`] | one budget: spent, reserved, and whether another child may start |
//! | [`mod@line`] | who is next, fair by subtree |
//! | [`accounts`] | both together with the slots: the pure machine of a tree |
//! | [`shared`] | that machine behind a lock: [`Tree`], [`Seat`] of a batch, [`Place`] of a child |
//!
//! [`crate::run`] holds a [`Seat`] per batch and a [`Place`] per child that it has launched. Depth and role
//! are decided before, in [`crate::plan`].

pub mod accounts;
pub mod budget;
pub mod line;
pub mod shared;

pub use accounts::{Caps, Refusal, Standing};
pub use line::Subtree;
pub use shared::{Account, Place, Seat, Tree};
