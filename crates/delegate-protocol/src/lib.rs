//! What crosses the line between a delegating parent and one child: ids, the task spec, events,
//! outcomes, frames and the version handshake.
//!
//! This crate starts no process, opens no socket and reads no clock. `delegate-child` speaks one
//! end of it, `delegate-core` the other; both import the same types, so a field that only one
//! side knows does not compile.
//!
//! | module | holds |
//! |---|---|
//! | [`id`] | run ids and subagent ids |
//! | [`value`] | [`Value`], the one dynamic type (`params`, `metadata`, tool arguments) |
//! | [`spec`], [`routing`] | what a child is asked to do, and with which model, endpoint and key |
//! | [`event`] | what a child says while it works, and what a consumer sees of it |
//! | [`lease`] | what is said about keys and calls |
//! | [`outcome`] | how a child ended |
//! | [`envelope`] | who an event is about |
//! | [`spelling`] | what agent loops call the same things |
//! | [`tool_text`] | what a tool gave, and whether that tells of a failure |
//! | [`trace`] | calls of tools in their order, and how each ended |
//! | [`ask`] | what a child asks, and what it is answered |
//! | [`delegation`] | what a child delegates, and what it is told of it |
//! | [`mod@file`] | what agents of one tree tell of files |
//! | [`job`] | background programs of a child |
//! | [`message`] | the messages of each direction, and the typed ends that may send them |
//! | [`codec`] | values as MessagePack |
//! | [`frame`] | length-prefixed MessagePack, with a cap that is part of the type |
//! | [`version`] | the handshake |

pub mod ask;
pub mod codec;
pub mod delegation;
pub mod envelope;
pub mod event;
pub mod file;
pub mod frame;
pub mod id;
pub mod job;
pub mod lease;
pub mod message;
pub mod outcome;
pub mod page;
pub mod routing;
pub mod spec;
pub mod spelling;
pub mod tool_text;
pub mod trace;
pub mod turn;
pub mod value;
pub mod version;

pub use ask::{Answer, Question};
pub use delegation::Order;
pub use event::{ChildEvent, Class, Event, Limit, Note};
pub use frame::{FRAME_CAP, FrameError};
pub use id::{RunId, SubagentId};
pub use lease::{Fingerprint, KeyAnswer, KeyFailure, KeyQuestion};
pub use message::{Beat, ChildEnd, ChildMessage, Finish, Hello, ParentEnd, ParentMessage};
pub use outcome::{Cause, ExitReason, InputSummary, Isolation, Outcome, Status, Tokens, ToolCall};
pub use routing::{ApiKey, Fallback, Routing};
pub use spec::{Role, TaskSpec};
pub use turn::{PastTurn, TurnAnswer, TurnEnd, TurnOver, TurnQuestion};
pub use value::Value;
