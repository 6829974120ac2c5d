//! Delegate tasks to subagents, each in an OS process of its own that cannot outlive its owner.

pub use delegate_child::{Agent, Failure, Interrupted, Registry, Session};
pub use delegate_core::config;

pub use delegate_core::plan::{Isolation, StartError, Task};
pub use delegate_core::report::{Outcome, Report};

pub use delegate_core::store;
pub use delegate_protocol::{Event, RunId, Status, SubagentId, Value};
