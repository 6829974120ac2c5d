//! Faults of multi-process runtimes, recreated: deaths of the owner, of a child and of the
//! supervisor in every state, interrupts and limits under stress. Tests carry the id of their row.
//!
//! | module | about |
//! |---|---|
//! | `child_kill` | a child is killed in every state |
//! | `crash_points` | a worker is killed before and after each message and each request |
//! | `owner_kill` | the owner ends in every way and every state |
//! | `owner_points` | the owner is killed at each point of its loop, and at random moments |
//! | `shared_state` | what parents and children share, and what they do not |
//! | `startup` | the owner is killed at random moments of its start, in a pid namespace |
//! | `supervisor_kill` | the supervisor is killed or stopped |
//! | `jobs` | the owner is killed while its children have jobs |
//! | `host` | threads, floods and zombies on the side of the owner |
//! | `limits` | deadlines |
//! | `rations` | what a child may use of the machine |
//! | `stops` | interrupts, pauses, handles that are dropped |
//! | `verdicts` | every kind of failure has its own words |
//! | `trees` | children that delegate, when the root or one of them is killed |
//! | `sessions` | sessions, when their owner is killed |
//! | `starts` | starts that fail, isolation that cannot be had, secrets |
//!
//! What is killed belongs to an owner program of its own (`program`), so that the supervisor of this
//! test binary is never hurt.
#![expect(clippy::disallowed_methods, reason = "tests start programs, wait and read the clock")]
#![expect(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "a failure is a panic")]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test tells its seed and its skips"
)]

#[path = "../support/step.rs"]
mod step;
#[path = "../support/mod.rs"]
mod support;

mod child_kill;
mod crash_points;
mod host;
mod jobs;
mod limits;
mod owner_kill;
mod owner_points;
mod program;
mod rations;
mod sessions;
mod shared_state;
mod starts;
mod startup;
mod stops;
mod supervisor_kill;
mod trees;
mod verdicts;

delegate_runtime::test_support!(|| step::Stepper);
