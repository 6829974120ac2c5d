//! The child side from outside: over both lines, as a real worker process, and with real programs.

#![expect(clippy::unwrap_used, reason = "helpers of tests may give up")]
#![expect(clippy::disallowed_methods, reason = "tests wait with deadlines and start real programs")]

mod command;
mod common;
mod lines;
mod worker;
