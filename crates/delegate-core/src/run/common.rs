//! [`Common`]: what a batch shares with the rest of its tree, and who it belongs to there.

use std::sync::Arc;

use super::turns::Turns;
use crate::file_state::FileState;
use crate::file_state::registry::Who;
use crate::jobs::Jobs;
use crate::worktree::Trees;

/// See the module.
#[derive(Debug)]
pub(crate) struct Common {
    /// Who read and changed which file.
    pub(crate) files: FileState,
    /// Background programs.
    pub(crate) jobs: Jobs,
    /// Who delegates.
    pub(crate) caller: Who,
    /// Worktrees of this batch; `None`: no child has one.
    pub(crate) trees: Option<Arc<Trees>>,
    /// Who gives its child prompts, one after another; `None`: each task is one goal.
    pub(crate) turns: Option<Turns>,
}
