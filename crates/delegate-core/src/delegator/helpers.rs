//! The shared helpers of a delegator ([`crate::helper`]): their socket listens from the first plan on.

use std::path::PathBuf;
use std::sync::PoisonError;

use super::Inner;
use crate::helper::Hub;
use crate::launch::program;
use crate::plan::StartError;

impl Inner {
    /// Where they are reached; `None` when there are none.
    pub(super) fn helpers(&self) -> Result<Option<PathBuf>, StartError> {
        let (inner, helpers) = (self, &self.settings.shared_helpers);
        if helpers.is_empty() {
            return Ok(None);
        }
        let mut hub = inner.hub.lock().unwrap_or_else(PoisonError::into_inner);
        let hub = match &mut *hub {
            Some(hub) => hub,
            none => {
                let owner = match &inner.worker {
                    Some(worker) => Some(worker.owner.clone()),
                    None => program::owner().map(|owner| inner.records.kept_by(owner)),
                };
                let what = "the socket of the shared helpers";
                let started = {
                    let hidden = inner.keys.variables().iter().cloned().collect();
                    Hub::start(helpers.clone(), owner, hidden, inner.control_dir.as_deref())
                };
                none.insert(started.map_err(|source| StartError::System { what, source })?)
            }
        };
        Ok(Some(hub.address().to_owned()))
    }
}
