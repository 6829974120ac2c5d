//! Batches below batches: what a loop needs to start one for a child that delegates ([`Nest`]), and where
//! every batch hangs ([`Kin`]). The delegator implements it; `batch::nested` uses it.

use std::fmt;
use std::sync::Arc;

use delegate_protocol::delegation::Work;
use delegate_protocol::{Isolation, RunId, SubagentId};
use tokio::sync::oneshot;

use super::batch::Batch;
use super::control::ControlState;
use super::hooks::Listener;
use super::outlet::Outlet;
use crate::plan::{Parent, Plan, StartError};
use crate::report::Report;
use crate::tree::{Subtree, Tree};

/// Makes batches of what children ask for.
pub(crate) trait Nest: fmt::Debug + Send + Sync {
    /// Decides about it, as for a program. May block: not for the thread of the loop.
    fn plan(&self, work: Work, parent: &Parent, isolation: Isolation) -> Result<Plan, StartError>;

    /// A batch that is ready to run. May block as well.
    fn assemble(&self, plan: Plan, nested: Nested) -> Result<Assembled, StartError>;
}

/// Where a batch hangs in the tree.
#[derive(Debug, Clone)]
pub(crate) struct Kin {
    /// Its accounts.
    pub(crate) tree: Tree,
    /// The part of it that takes turns; `None` for a batch of the root.
    pub(crate) subtree: Option<Subtree>,
    /// The child whose batch it is; `None` for one of the root.
    pub(crate) above: Option<Above>,
}

/// A child that delegates, as its batches know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Above {
    /// Its run.
    pub(crate) run: RunId,
    /// Itself.
    pub(crate) child: SubagentId,
}

impl Kin {
    /// That of a batch of one of its children.
    pub(crate) fn below(&self, above: Above) -> Self {
        let subtree = self.subtree.unwrap_or(Subtree::Below(above.child));
        Self { tree: self.tree.clone(), subtree: Some(subtree), above: Some(above) }
    }

    /// The first ancestor below the root of its children; `None` where they are children of the root.
    pub(crate) const fn branch(&self) -> Option<SubagentId> {
        match self.subtree {
            Some(Subtree::Below(child)) => Some(child),
            Some(Subtree::Root(_)) | None => None,
        }
    }
}

/// What a child's batch takes along from above.
pub(crate) struct Nested {
    pub(crate) nest: Arc<dyn Nest>,
    pub(crate) kin: Kin,
    pub(crate) outlet: Outlet,
    pub(crate) listener: Option<Arc<dyn Listener>>,
    /// The conversation that the root belongs to.
    pub(crate) session: Option<String>,
}

/// A batch that was not run yet.
pub(crate) struct Assembled {
    pub(crate) batch: Batch,
    pub(crate) control: Arc<ControlState>,
    pub(crate) report: oneshot::Sender<Report>,
    pub(crate) reported: oneshot::Receiver<Report>,
}
