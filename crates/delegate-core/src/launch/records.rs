//! Where what this process starts is written down: the ledger of the state directory, and what earlier
//! processes left there. Guards write their journal beside it. Nothing here fails a batch.

#[cfg(target_os = "linux")]
pub(crate) use self::linux::Records;
#[cfg(not(target_os = "linux"))]
pub(crate) use self::none::Records;

#[cfg(target_os = "linux")]
mod linux {
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex, PoisonError, Weak};
    use std::thread;
    use std::time::Duration;

    use ownership::{Ledger, Owner};

    use crate::store::{Store, Trouble};

    const NAME: &str = "ledger.sqlite";

    /// How long the end of a delegator waits for its last rows.
    const CLOSING: Duration = Duration::from_secs(2);

    /// Leftovers that are named; of more the first ones and their count say enough.
    const MAX_NAMED: usize = 16;

    /// Ledgers that are open in this process. One process writes one file through one ledger.
    static OPEN: Mutex<Vec<(PathBuf, Weak<Ledger>)>> = Mutex::new(Vec::new());

    /// The ledger of one state directory, if it has one. Cheap to clone.
    #[derive(Debug, Clone)]
    pub(crate) struct Records {
        ledger: Option<Arc<Ledger>>,
        found: Arc<Found>,
    }

    /// What the look at earlier owners has led to.
    #[derive(Debug, Default)]
    struct Found {
        leftovers: Mutex<Option<String>>,
        pending: AtomicBool,
    }

    impl Records {
        /// Those of the store's state directory; none where the store keeps nothing on disk either. Waits for
        /// nothing: the file is opened, and what earlier owners left is looked through, in the background.
        pub(crate) fn open(store: &Store) -> Self {
            let records = Self { ledger: None, found: Arc::default() };
            let Some(dir) = store.kept_in().and_then(|dir| std::path::absolute(dir).ok()) else {
                return records;
            };
            let (ledger, is_new) = ledger_in(&dir);
            if is_new {
                records.review(&ledger, dir);
            }
            Self { ledger: Some(ledger), ..records }
        }

        fn review(&self, ledger: &Arc<Ledger>, dir: PathBuf) {
            let (ledger, found) = (Arc::clone(ledger), Arc::clone(&self.found));
            found.pending.store(true, Ordering::Release);
            let look = move || {
                found.look(&ledger, &dir);
                found.pending.store(false, Ordering::Release);
            };
            let thread = thread::Builder::new().name("delegate-review".to_owned());
            if let Err(error) = thread.spawn(look) {
                self.found.pending.store(false, Ordering::Release);
                tracing::warn!(target: "delegate::records", %error, "not reviewed");
            }
        }

        /// Whether all is written, or known not to be, and the look at earlier owners is done.
        pub(crate) fn is_settled(&self) -> bool {
            let Some(ledger) = &self.ledger else { return true };
            let written = ledger.trouble().is_some() || ledger.flush(Duration::ZERO);
            written && !self.found.pending.load(Ordering::Acquire)
        }

        /// The same owner, which writes down here what it starts. The first one is also the owner of
        /// [`ownership::spawn_owned`].
        pub(crate) fn kept_by(&self, owner: Owner) -> Owner {
            let owner = match &self.ledger {
                Some(ledger) => owner.with_ledger(Arc::clone(ledger)),
                None => owner,
            };
            ownership::owner::set_default(owner.clone());
            owner
        }

        /// Gives to the store's warnings what people should know. All of it is in the log already.
        pub(crate) fn warn(&self, store: &Store) {
            let found = self.found.leftovers.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(text) = found {
                store.warn(Trouble::Leftovers, text);
            }
            let Some(ledger) = &self.ledger else { return };
            let remarks = ledger.remarks();
            if !remarks.is_empty() {
                store.warn(Trouble::LedgerMoved, format!("ledger: {}", remarks.join("; ")));
            }
            if !ledger.flush(Duration::ZERO) {
                let why = ledger.trouble().unwrap_or_else(|| "it is busy".to_owned());
                let text = format!("not all that was started is written down in the ledger: {why}");
                store.warn(Trouble::Ledger, text);
            }
        }

        /// Waits until all is written, unless the ledger is known to fail.
        pub(crate) fn finish(&self) {
            const STEP: Duration = Duration::from_millis(20);
            let Some(ledger) = &self.ledger else { return };
            let steps = CLOSING.as_millis() / STEP.as_millis();
            let _written = (0..steps).any(|_| ledger.flush(STEP) || ledger.trouble().is_some());
        }
    }

    impl Found {
        fn look(&self, ledger: &Ledger, dir: &Path) {
            match ledger.review(dir) {
                Ok(review) => {
                    let (folded, settled) = (review.folded, review.settled);
                    tracing::debug!(target: "delegate::records", folded, settled, "reviewed");
                    if let Some(text) = said(&review.leftovers) {
                        tracing::warn!(target: "delegate::records", "{text}");
                        let mut leftovers =
                            self.leftovers.lock().unwrap_or_else(PoisonError::into_inner);
                        *leftovers = Some(text);
                    }
                }
                Err(error) => tracing::warn!(target: "delegate::records", %error, "not reviewed"),
            }
        }
    }

    /// The one ledger of this process in `dir`, and whether it was opened just now.
    fn ledger_in(dir: &Path) -> (Arc<Ledger>, bool) {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, ledger)| ledger.strong_count() > 0);
        let path = dir.join(NAME);
        // One of before a fork has no writer here.
        let ours = |ledger: &Arc<Ledger>| ledger.owner().pid == std::process::id();
        let known = open.iter().filter(|(known, _)| *known == path);
        if let Some(ledger) = known.filter_map(|(_, ledger)| ledger.upgrade()).find(ours) {
            return (ledger, false);
        }
        let ledger = Arc::new(Ledger::begin(&path));
        open.push((path, Arc::downgrade(&ledger)));
        (ledger, true)
    }

    fn said(leftovers: &[ownership::ledger::Leftover]) -> Option<String> {
        let named: Vec<_> = leftovers.iter().take(MAX_NAMED).map(ToString::to_string).collect();
        let rest = leftovers.len().saturating_sub(MAX_NAMED);
        let rest = if rest > 0 { format!(", and {rest} more") } else { String::new() };
        let count = leftovers.len();
        (count > 0).then(|| {
            format!(
                "{count} processes of owners that are dead, guards and all, still run, and nothing was done about \
                 them: {}{rest}",
                named.join(", ")
            )
        })
    }
}

#[cfg(not(target_os = "linux"))]
mod none {
    use ownership::Owner;

    use crate::store::Store;

    /// Nothing is written down where nothing can be owned.
    #[derive(Debug, Clone)]
    pub(crate) struct Records;

    impl Records {
        pub(crate) fn open(_store: &Store) -> Self {
            Self
        }

        pub(crate) fn kept_by(&self, owner: Owner) -> Owner {
            owner
        }

        pub(crate) fn is_settled(&self) -> bool {
            true
        }

        pub(crate) fn warn(&self, _store: &Store) {}

        pub(crate) fn finish(&self) {}
    }
}
