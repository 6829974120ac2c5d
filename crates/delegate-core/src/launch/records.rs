//! Where what this process starts is written down: the ledger of the state directory, and what earlier
//! processes left there, which [`ownership::janitor`] ends where that is proved. Guards write their journal beside it.
//! Nothing here fails a batch.

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

    use ownership::janitor::{Fate, Grade, Janitor};
    use ownership::ledger::Leftover;
    use ownership::{Ledger, Owner, file_size};

    use crate::config::{AtStart, Settings};
    use crate::store::{Store, Trouble};

    const NAME: &str = "ledger.sqlite";

    /// Its folder of exempt jobs.
    const JOBS: &str = "exempt";

    /// How long the end of a delegator waits for its last rows.
    const CLOSING: Duration = Duration::from_secs(2);

    /// The end of a batch waits for what is left over to be ended, and not for ever.
    const LONGEST_GRACE: Duration = Duration::from_secs(10);

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
        /// Somebody is being ended.
        cleaning: AtomicBool,
    }

    impl Records {
        /// Those of the store's state directory; none where the store keeps nothing on disk either. Waits for
        /// nothing: the file is opened, and what earlier owners left is looked through and ended, in the background.
        pub(crate) fn open(store: &Store, settings: &Settings) -> Self {
            let records = Self { ledger: None, found: Arc::default() };
            let Some(dir) = store.kept_in().and_then(|dir| std::path::absolute(dir).ok()) else {
                return records;
            };
            let (ledger, is_new) = ledger_in(&dir);
            if is_new {
                let policy =
                    Policy { at_start: settings.janitor_at_start, grace: settings.terminate_grace };
                records.review(&ledger, dir, policy);
            }
            Self { ledger: Some(ledger), ..records }
        }

        fn review(&self, ledger: &Arc<Ledger>, dir: PathBuf, policy: Policy) {
            let (ledger, found) = (Arc::clone(ledger), Arc::clone(&self.found));
            found.pending.store(true, Ordering::Release);
            let look = move || {
                file_size::limit_is_an_error();
                found.look(&ledger, &dir, policy);
                // Not before what was ended can be said.
                found.cleaning.store(false, Ordering::Release);
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

        /// Has what waits for company written now, and waits for it, `limit` at most; not where it is known not to be.
        pub(crate) fn flush(&self, limit: Duration) {
            if let Some(ledger) = self.ledger.as_ref().filter(|ledger| ledger.trouble().is_none()) {
                let _written = ledger.flush(limit);
            }
        }

        /// Whether somebody is being ended who was left over: soon over, and not to be left half done.
        pub(crate) fn is_cleaning(&self) -> bool {
            self.found.cleaning.load(Ordering::Acquire)
        }

        /// The same owner, which writes down here what it starts. The first one is also the owner of
        /// [`ownership::spawn_owned`].
        pub(crate) fn kept_by(&self, owner: Owner) -> Owner {
            let owner = match &self.ledger {
                // What is in cgroups of dead owners is the janitor's here, which says so and asks the settings.
                Some(ledger) => owner.with_ledger(Arc::clone(ledger)).leaving_stale(),
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

    /// What is to be done about what earlier owners left.
    #[derive(Debug, Clone, Copy)]
    struct Policy {
        at_start: AtStart,
        grace: Duration,
    }

    impl Found {
        fn look(&self, ledger: &Ledger, dir: &Path, policy: Policy) {
            // Opens the ledger too, without which nothing is proved.
            let mut review = ledger.review(dir);
            let ended = match policy.at_start {
                AtStart::End if review.is_ok() => self.end(ledger, dir, policy.grace),
                AtStart::End | AtStart::Report | AtStart::Ignore => Vec::new(),
            };
            if !ended.is_empty() {
                review = ledger.review(dir);
            }
            match review {
                Ok(review) => {
                    let (folded, settled) = (review.folded, review.settled);
                    tracing::debug!(target: "delegate::records", folded, settled, "reviewed");
                    let left = match policy.at_start {
                        AtStart::Ignore => &[],
                        AtStart::End | AtStart::Report => &review.leftovers[..],
                    };
                    if let Some(text) = said(&ended, left) {
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

    impl Found {
        /// Ends what is proved to be left over; each as people shall read it.
        fn end(&self, ledger: &Ledger, dir: &Path, grace: Duration) -> Vec<String> {
            let janitor = Janitor::of(ledger.path()).with_jobs(dir.join(JOBS));
            let finding = janitor.look_at_rows();
            if finding.found.iter().all(|found| found.grade != Grade::Proved) {
                return Vec::new();
            }
            self.cleaning.store(true, Ordering::Release);
            let cleaned = janitor.end_proved(&finding, grace.min(LONGEST_GRACE));
            if let Some(why) = &cleaned.unwritten {
                tracing::warn!(target: "delegate::records", why, "not all that is left over was ended");
            }
            let ended = cleaned.fates.iter().filter(|(_, fate)| *fate == Fate::Ended);
            ended.map(|(process, _)| format!("{} (pid {})", process.name, process.pid)).collect()
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

    fn said(ended: &[String], left: &[Leftover]) -> Option<String> {
        let left: Vec<_> = left.iter().map(ToString::to_string).collect();
        let parts = [
            (ended, "of owners that are dead, guards and all, were ended"),
            (
                &left[..],
                "of owners that are dead, guards and all, still run, and nothing was done about them (see `delegate \
                 janitor`)",
            ),
        ];
        let parts = parts.into_iter().filter(|(whom, _)| !whom.is_empty());
        let parts: Vec<_> = parts
            .map(|(whom, what)| format!("{} processes {what}: {}", whom.len(), named(whom)))
            .collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    fn named(whom: &[String]) -> String {
        let rest = whom.len().saturating_sub(MAX_NAMED);
        let rest = if rest > 0 { format!(", and {rest} more") } else { String::new() };
        format!("{}{rest}", whom.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join(", "))
    }
}

#[cfg(not(target_os = "linux"))]
mod none {
    use ownership::Owner;

    use crate::config::Settings;
    use crate::store::Store;

    /// Nothing is written down where nothing can be owned.
    #[derive(Debug, Clone)]
    pub(crate) struct Records;

    impl Records {
        pub(crate) fn open(_store: &Store, _settings: &Settings) -> Self {
            Self
        }

        pub(crate) fn kept_by(&self, owner: Owner) -> Owner {
            owner
        }

        pub(crate) fn is_settled(&self) -> bool {
            true
        }

        pub(crate) fn flush(&self, _limit: std::time::Duration) {}

        pub(crate) fn is_cleaning(&self) -> bool {
            false
        }

        pub(crate) fn warn(&self, _store: &Store) {}

        pub(crate) fn finish(&self) {}
    }
}
