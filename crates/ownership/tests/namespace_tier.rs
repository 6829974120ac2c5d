//! The suites of ending, starting and dying with a pid namespace for each scope, as `subreaper_tier` has them on the
//! weakest tier. What differs is written where it is expected: `support::tier::used`. Skips loudly where there can be
//! none.

#![expect(
    clippy::duplicate_mod,
    reason = "each suite brings its own support, as when it is run by itself"
)]

#[path = "death_matrix.rs"]
mod death_matrix;
#[path = "death_matrix_guards.rs"]
mod death_matrix_guards;
#[path = "ending.rs"]
mod ending;
#[path = "leftovers.rs"]
mod leftovers;
#[path = "owner_death.rs"]
mod owner_death;
#[path = "spawn.rs"]
mod spawn;
mod support;
