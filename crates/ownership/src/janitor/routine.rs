//! The janitor of an owner: at its start and on its timer, on a thread of its own that ends with the owner's ledger.
//! Nothing of it runs unless [`crate::Owner::with_janitor`] asks for it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Fate, Finding, Grade, Janitor};
use crate::file_size;
use crate::ledger::Ledger;

/// When an owner looks for what dead owners have left, and what it does about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    at_start: bool,
    every: Option<Duration>,
    grace: Option<Duration>,
}

impl Schedule {
    /// Once, at the start: no more than a look at the ledger where none of its rows is about anybody who is left over.
    #[must_use]
    pub fn at_start() -> Self {
        Self { at_start: true, every: None, grace: None }
    }

    /// On a timer, not more often than each second; not at the start.
    #[must_use]
    pub fn every(time: Duration) -> Self {
        Self { at_start: false, every: Some(time.max(Duration::from_secs(1))), grace: None }
    }

    /// Both.
    #[must_use]
    pub fn and_every(self, time: Duration) -> Self {
        Self { every: Self::every(time).every, ..self }
    }

    /// Ends what is proved (TERM, this grace, KILL). Without this it is only said in the log.
    #[must_use]
    pub fn ending(self, grace: Duration) -> Self {
        Self { grace: Some(grace), ..self }
    }
}

/// How long the thread may outlive its ledger.
const STEP: Duration = Duration::from_millis(200);

/// Begins the rounds. They end when nobody has the ledger any more.
pub(crate) fn begin(ledger: &Arc<Ledger>, schedule: Schedule) {
    let (ledger, janitor) = (Arc::downgrade(ledger), Janitor::of(ledger.path()));
    let thread = std::thread::Builder::new().name("ownership-janitor".into());
    if let Err(error) = thread.spawn(move || {
        file_size::limit_is_an_error();
        rounds(&ledger, &janitor, schedule);
    }) {
        tracing::warn!(%error, "no thread for the janitor");
    }
}

fn rounds(ledger: &Weak<Ledger>, janitor: &Janitor, schedule: Schedule) {
    if schedule.at_start {
        round(janitor, schedule);
    }
    let Some(every) = schedule.every else { return };
    loop {
        let mut waited = Duration::ZERO;
        while waited < every {
            if ledger.strong_count() == 0 {
                return;
            }
            std::thread::park_timeout(STEP);
            waited += STEP;
        }
        round(janitor, schedule);
    }
}

fn round(janitor: &Janitor, schedule: Schedule) {
    let finding = janitor.look_at_rows();
    say(&finding);
    let Some(grace) = schedule.grace else { return };
    let cleaned = janitor.end_proved(&finding, grace);
    for (process, fate) in &cleaned.fates {
        match fate {
            Fate::Ended => {
                tracing::info!(pid = process.pid, name = process.name, "left over, ended")
            }
            Fate::Gone | Fate::NotNow => {}
            Fate::Left(why) => {
                tracing::warn!(pid = process.pid, name = process.name, why, "left over, and stays");
            }
        }
    }
    if let Some(why) = cleaned.unwritten {
        tracing::warn!(why, "what was left over is not all written down");
    }
}

fn say(finding: &Finding) {
    if let Some(why) = &finding.trouble {
        tracing::warn!(why, "nothing can be said about what is left over");
    }
    for found in finding.found.iter().filter(|found| found.grade == Grade::Proved) {
        let (pid, owner, name) = (found.identity.pid, found.owner.pid, &found.name);
        tracing::warn!(pid, name, owner, "left over by an owner that is dead");
    }
}
