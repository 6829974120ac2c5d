//! From an [`crate::Owner`] to its ledger: intent before a start is asked for, identity when it is known, end when it is
//! told. Built without the `ledger` feature, `recorder_off.rs` stands in its place and does nothing.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::exit::ChildEvent;
use crate::ledger::{End, EndedBy, Intent, Ledger, PATIENCE};
use crate::spawn::Spawn;

/// The ledger of an owner, if it has one.
#[derive(Debug, Clone)]
pub(crate) struct Recorder(Option<Arc<Ledger>>);

/// The row of one child. Cheap to clone; all clones are one row.
#[derive(Debug, Clone, Default)]
pub(crate) struct Entry(Option<Arc<Known>>);

#[derive(Debug)]
struct Known {
    ledger: Arc<Ledger>,
    spawn: u64,
    /// What the reader told before the asking thread had the child's handle; `None` once it has.
    early: Mutex<Option<Vec<ChildEvent>>>,
}

impl Recorder {
    pub(crate) fn off() -> Self {
        Self(None)
    }

    pub(crate) fn new(ledger: Arc<Ledger>) -> Self {
        Self(Some(ledger))
    }

    pub(crate) fn ledger(&self) -> Option<&Arc<Ledger>> {
        self.0.as_ref()
    }

    /// Says what is to be started under this number, does `meanwhile`, and waits until it is on disk; 2 s at most.
    pub(crate) fn intent(&self, number: u64, spawn: &Spawn, meanwhile: impl FnOnce()) -> Entry {
        let Some(ledger) = &self.0 else { return Entry::default() };
        let argv0 = spawn.program.argv0();
        let argv: Vec<OsString> =
            [argv0.to_owned()].into_iter().chain(spawn.args.iter().cloned()).collect();
        let intent = Intent::new(number, Path::new(&argv[0]), &argv).purpose(&spawn.purpose);
        let intent = match &spawn.dir {
            Some(dir) => intent.dir(dir),
            None => intent,
        };
        let intent = match &spawn.release {
            Some((command, _)) => intent.release(command.clone()),
            None => intent,
        };
        let ticket = ledger.intent(intent);
        meanwhile();
        if !ticket.wait(PATIENCE) {
            tracing::debug!(number, "started before its intent is on disk");
        }
        let early = Mutex::new(Some(Vec::new()));
        Entry(Some(Arc::new(Known { ledger: Arc::clone(ledger), spawn: number, early })))
    }
}

impl Recorder {
    /// The rows of children that the program before had started: number, pid and handle, and arguments as they are
    /// now. `None` for one whose row has ended.
    pub(crate) fn resume<'a>(
        &self,
        children: impl Iterator<Item = ((u64, u32, Arc<OwnedFd>), &'a [OsString])>,
    ) -> Vec<Option<Entry>> {
        let Some(ledger) = &self.0 else { return children.map(|_| None).collect() };
        let mut rows = ledger.rows_of_this_process();
        let resumed = children.map(|((spawn, pid, pidfd), argv)| {
            // One that has ended, and has no row that waits for it, has had its end.
            let row = rows.remove(&spawn);
            if row.is_none() && argv.is_empty() {
                return None;
            }
            ledger.resume(row, spawn, pid, pidfd, argv);
            let early = Mutex::new(None);
            Some(Entry(Some(Arc::new(Known { ledger: Arc::clone(ledger), spawn, early }))))
        });
        resumed.collect()
    }
}

impl Entry {
    /// It was started.
    pub(crate) fn started(&self, pid: u32, pidfd: &Arc<OwnedFd>) {
        let Some(known) = &self.0 else { return };
        let mut early = known.early.lock().unwrap_or_else(PoisonError::into_inner);
        known.ledger.started(known.spawn, pid, Arc::clone(pidfd));
        early.take().into_iter().flatten().for_each(|event| known.write(&event));
    }

    /// It was not.
    pub(crate) fn failed(&self, why: &dyn std::fmt::Display) {
        let Some(Known { ledger, spawn, .. }) = self.0.as_deref() else { return };
        ledger.ended(*spawn, Some(End::NotStarted), EndedBy::Itself, &why.to_string());
    }

    /// Its owner ends it.
    pub(crate) fn ending(&self, why: &str) {
        let Some(Known { ledger, spawn, .. }) = self.0.as_deref() else { return };
        ledger.ending(*spawn, EndedBy::Owner, why);
    }

    /// Something happened to it.
    pub(crate) fn event(&self, event: &ChildEvent) {
        let Some(known) = &self.0 else { return };
        let mut early = known.early.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *early {
            Some(early) => early.push(event.clone()),
            None => known.write(event),
        }
    }
}

impl Known {
    fn write(&self, event: &ChildEvent) {
        match event {
            ChildEvent::Stopped(_) => {}
            ChildEvent::Exited(exit) => self.ledger.exited(self.spawn, exit.status),
            // Its row goes on while something of its scope lives; when that is gone it is told again.
            ChildEvent::Emptied(emptied) if emptied.kept > 0 => {}
            ChildEvent::Emptied(emptied) => {
                let left = u32::try_from(emptied.left.len()).unwrap_or(u32::MAX);
                let end = (left > 0).then_some(End::Left(left));
                self.ledger.emptied(self.spawn, end, emptied.release);
            }
            ChildEvent::Lost => {
                let why = "its guards were gone";
                self.ledger.ended(self.spawn, Some(End::Lost), EndedBy::Owner, why);
            }
        }
    }
}
