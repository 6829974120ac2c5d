//! Worktrees of a batch ([`crate::worktree`]): what they are made from is found before anything starts, and what
//! owners that are gone have left is looked at once.

use std::sync::Arc;
use std::thread;

use delegate_protocol::RunId;

use super::Inner;
use crate::launch::program;
use crate::plan::{Plan, StartError};
use crate::worktree::{Trees, Worktrees};

impl Inner {
    /// Finds what the worktrees of a batch are made from; `None` where no task has one.
    pub(super) fn trees(
        &self,
        run: RunId,
        again: bool,
        plan: &mut Plan,
    ) -> Result<Option<Arc<Trees>>, StartError> {
        let Some(dirs) = plan.isolated_dirs() else { return Ok(None) };
        let first = || dirs.iter().enumerate().find_map(|(task, dir)| Some((task, dir.clone()?)));
        let none = |why: &str| {
            let (task, dir) = first().unwrap_or_default();
            StartError::NoWorktree { task, dir, why: why.to_owned() }
        };
        let inner = self;
        let state_dir = inner.store.kept_in().and_then(|dir| std::path::absolute(dir).ok());
        let state_dir =
            state_dir.ok_or_else(|| none("nothing can be kept in the state directory"))?;
        let owner = program::owner().map(|owner| inner.records.kept_by(owner));
        let owner =
            owner.ok_or_else(|| none("this program cannot own processes, git among them"))?;
        let worktrees = Worktrees::of(&state_dir, owner);
        self.sweep_once(&worktrees);
        let trees = worktrees
            .find(run, again, &dirs)
            .map_err(|(task, dir, why)| StartError::NoWorktree { task, dir, why: why.why })?;
        plan.work_in((0..dirs.len()).map(|index| trees.cwd(index)).collect());
        Ok(Some(Arc::new(trees)))
    }

    /// In the background: what owners that are gone have left of worktrees.
    fn sweep_once(&self, worktrees: &Worktrees) {
        self.swept.call_once(|| {
            let worktrees = worktrees.clone();
            let sweep = move || {
                for tree in worktrees.sweep() {
                    let (path, note) =
                        (tree.path.display(), tree.note.as_deref().unwrap_or("removed"));
                    tracing::info!(target: "delegate::worktree", %path, note, "of a dead owner");
                }
            };
            let thread = thread::Builder::new().name("delegate-worktrees".to_owned());
            if let Err(error) = thread.spawn(sweep) {
                tracing::warn!(target: "delegate::worktree", %error, "not cleaned up");
            }
        });
    }
}
