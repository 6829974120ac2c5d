//! The conformance suite: what a delegated batch must do, every case over both executors where a
//! thread can have it. Lines of the contract's matrix carry their number (`m138_...`), rows of the
//! list of known faults theirs (`rb_02_...`).
//!
//! What measures this process (memory, descriptors, limits) runs in a process of its own: see `alone`.
#![expect(clippy::disallowed_methods, reason = "a test suite: it waits, and starts itself again")]
#![expect(unreachable_pub, reason = "modules of a binary")]
#![expect(clippy::unwrap_used, reason = "a test panics")]
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for some events among all")]

#[path = "../support/mod.rs"]
mod support;

mod agents;
mod alone;
mod background;
mod call_order;
mod command;
mod command_bytes;
mod command_family;
mod control;
mod control_socket;
mod coverage;
mod descriptors;
mod events;
mod files;
mod helpers;
mod jobs;
mod keys;
mod keys_shared;
mod killed;
mod launchers;
mod liveness;
mod matrix_isolation;
mod matrix_limits;
mod matrix_lines;
mod matrix_roles;
mod matrix_routing;
mod matrix_validation;
mod order;
mod page;
mod parity;
mod parity_random;
mod result_size;
mod results;
mod reuse;
mod routing_parity;
mod rows;
mod seen;
mod sessions;
mod sessions_lost;
mod spec;
mod status;
mod submit;
mod trees;
mod wire;
mod wire_flood;
mod wire_start;
mod worktrees;

use agents::{Descriptors, Noisy, Scripted, Sized, Spec, Swallow};

delegate_runtime::test_support!(
    || Scripted,
    || Sized,
    || Spec,
    || Descriptors,
    || Noisy,
    || { Swallow },
    || trees::Knots,
    || files::Filer,
    || jobs::Jobber,
    || routing_parity::Probe,
    || keys::Keyed,
    || page::Paged,
    reuse::Reused::default,
    reuse::Single::default,
    || killed::Counted,
    sessions::Talker::default,
    results::Pupil::default,
    launchers::Ready::default
);
