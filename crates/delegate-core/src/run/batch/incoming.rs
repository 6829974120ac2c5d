//! What reaches the loop of a batch ([`super`]): facts of its children's processes, lines and batches.

use std::path::PathBuf;

use delegate_protocol::RunId;
use delegate_protocol::delegation::Told as Delegated;
use ownership::ChildEvent as SystemEvent;

use super::nested;
use crate::collect::Said;
use crate::launch::{Launched, StartFailure};
use crate::report::Report;
use crate::run::child_io::Told;
use crate::run::reply::Reply;

/// Something that reached the loop. Each kind comes, or waits, a bounded number of times per child, so its
/// channel needs no bound.
pub(super) enum Incoming {
    Launched(u32, Result<Launched, StartFailure>),
    System(u32, SystemEvent),
    Told(u32, Told),
    /// Nothing more can be read from it.
    Over(u32, Box<Said>),
    Recorded(u32, bool),
    /// What it was doing is in this file, or could not be written down.
    Diagnosed(u32, Option<PathBuf>),
    /// What it wants to delegate, as it was decided, whether it wants the events, and whom to answer.
    Planned(u32, Option<Box<nested::Planned>>),
    /// A batch of it has ended.
    DelegationOver(u32, RunId, Option<Box<Report>>),
    /// What it is to be told of one.
    Followed(u32, RunId, Option<(Delegated, Reply)>),
}

impl Incoming {
    /// For tests: what it is.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Launched(_, Ok(_)) => "launched",
            Self::Launched(_, Err(_)) => "launch-failed",
            Self::System(_, SystemEvent::Exited(_)) => "exited",
            Self::System(_, SystemEvent::Emptied(_)) => "emptied",
            Self::System(..) => "other-system",
            Self::Told(_, Told::Hello) => "hello",
            Self::Told(_, Told::Violation(_)) => "violation",
            Self::Told(_, Told::Asked(..)) => "asked",
            Self::Told(_, Told::Finish(_)) => "finish",
            Self::Told(_, Told::LineClosed) => "line-closed",
            Self::Over(..) => "over",
            Self::Recorded(..) => "recorded",
            Self::Diagnosed(..) => "diagnosed",
            Self::Told(_, Told::OverBudget(_)) => "over-budget",
            Self::Planned(..) => "planned",
            Self::DelegationOver(..) => "delegation-over",
            Self::Followed(..) => "followed",
        }
    }
}
