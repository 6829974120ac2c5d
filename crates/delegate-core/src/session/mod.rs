//! Sessions: one worker that takes several prompts, one after another, and is replaced when it is lost. What came of
//! each turn is in a database of the session before anybody is told.
//!
//! Each worker is a run of one task like any other (same launchers, same ownership, same limits), whose child asks for
//! its prompts over its line (`run::turns`). [`crate::delegator`] starts sessions.
//!
//! | module | does |
//! |---|---|
//! | `machine` | decides: which prompt, which worker, when it is over; pure |
//! | `outcome` | how a turn ended; pure |
//! | `database` | `session.sqlite` |
//! | `drive` | waits and acts |
//! | `handle`, `turn` | what the caller holds |
//! | `outside` | what others see of one that goes on, and its end |
//! | `list` | sessions of this and other processes |

mod database;
pub(crate) mod drive;
mod handle;
pub mod list;
pub(crate) mod machine;
pub(crate) mod outcome;
mod outside;
mod turn;

pub use self::handle::{PromptError, SessionControl, SessionEnd, SessionHandle};
pub use self::list::{SessionRecord, TurnRecord};
pub use self::machine::{WAITING, Why};
pub use self::outcome::TurnOutcome;
pub use self::turn::Turn;
