//! Ends an owner whose loop is wedged, so that whatever supervises it can start it again; its children end by ownership.
//! Off unless somebody starts it.
//!
//! `decide` is the pure judgement over what two witnesses say, `witness` reads what the kernel says of the loop's thread. This
//! file has the thread that looks and, in the end, acts. Why it is so: `docs/watchdog.md`.

mod decide;
mod witness;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

pub use self::decide::Manner;
use self::decide::{Look, Machine, Verdict};

/// Looks in a limit.
const LOOKS: u32 = 20;
/// How long the last words may take: the log may be what the loop hangs on.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The loop's own counter of its turns. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// The loop has turned, or has answered that it is there. One atomic addition.
    pub fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// When a loop counts as wedged, and what is done then.
#[derive(Debug, Clone)]
pub struct Settings {
    limit: Duration,
    abort: bool,
    dying: Duration,
    #[cfg(feature = "ledger")]
    ledger: Option<std::path::PathBuf>,
}

impl Settings {
    /// A loop that has not turned for so long (1 s at least) is wedged, if the second witness agrees. It must be more than
    /// the loop ever needs for one turn.
    #[must_use]
    pub fn after(limit: Duration) -> Self {
        Self {
            limit: limit.max(Duration::from_secs(1)),
            abort: true,
            dying: Duration::from_secs(10),
            #[cfg(feature = "ledger")]
            ledger: None,
        }
    }

    /// KILL at once, instead of ABRT first, which leaves a core where the system writes some.
    #[must_use]
    pub fn without_abort(self) -> Self {
        Self { abort: false, ..self }
    }

    /// Time between ABRT and KILL: what a core may take. 10 s if nothing else is said.
    #[must_use]
    pub fn kill_after(self, dying: Duration) -> Self {
        Self { dying, ..self }
    }

    /// Writes what the witnesses saw into the ledger at this path too.
    #[cfg(feature = "ledger")]
    #[must_use]
    pub fn told_in(self, ledger: impl Into<std::path::PathBuf>) -> Self {
        Self { ledger: Some(ledger.into()), ..self }
    }
}

/// A watch over the loop of one thread. It ends when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it ends the watch"]
pub struct Watchdog {
    over: Arc<AtomicBool>,
    thread: std::thread::Thread,
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

impl Watchdog {
    /// Watches the loop of the calling thread, which beats `pulse` at each turn. A loop that waits for events may not turn
    /// for long and be well: after half of the limit `ask` is called, on the watchdog's thread. It must not block, and must
    /// make the loop turn, by sending it a message or an event.
    ///
    /// # Errors
    /// When no thread can be started, or `/proc` does not tell of this one.
    pub fn start(
        settings: Settings,
        pulse: &Pulse,
        ask: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        let watched = rustix::thread::gettid().as_raw_nonzero().get();
        if witness::thread(watched).is_none() {
            let text = "the second witness is missing: /proc does not tell of this thread";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let over = Arc::new(AtomicBool::new(false));
        let watch = Watch { settings, pulse: pulse.clone(), watched, over: Arc::clone(&over) };
        let thread = std::thread::Builder::new().name("ownership-watch".into());
        let thread = thread.spawn(move || watch.run(ask))?;
        Ok(Self { over, thread: thread.thread().clone() })
    }
}

struct Watch {
    settings: Settings,
    pulse: Pulse,
    watched: i32,
    over: Arc<AtomicBool>,
}

impl Watch {
    fn run(self, mut ask: impl FnMut()) {
        let interval = self.settings.limit / LOOKS;
        let mut machine = Machine::new(interval, LOOKS);
        loop {
            std::thread::park_timeout(interval);
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            let (awake, total) = witness::clocks();
            let thread = witness::thread(self.watched);
            let turns = self.pulse.0.load(Ordering::Relaxed);
            match machine.look(Look { turns, thread, awake, total }) {
                Verdict::Fine => {}
                Verdict::Ask => ask(),
                Verdict::Wedged(manner) => self.end(manner),
            }
        }
    }

    /// Says why, and ends this process. Does not return.
    fn end(&self, manner: Manner) {
        let limit = self.settings.limit;
        let text =
            format!("the loop has not turned for {limit:?} and did not answer; {}", manner.words());
        let words = self.last_words(text);
        // It may wait for the very lock that the loop holds.
        let said = std::thread::Builder::new().name("ownership-last".into()).spawn(words);
        if let Ok(said) = said {
            let step = Duration::from_millis(10);
            let mut waited = Duration::ZERO;
            while !said.is_finished() && waited < LAST_WORDS {
                std::thread::park_timeout(step);
                waited += step;
            }
        }
        if self.settings.abort {
            // Fails for nobody: it is this process.
            let _sent = kill_process(getpid(), Signal::ABORT);
            let step = Duration::from_millis(20);
            let mut waited = Duration::ZERO;
            while waited < self.settings.dying {
                std::thread::park_timeout(step);
                waited += step;
            }
        }
        loop {
            let _sent = kill_process(getpid(), Signal::KILL);
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    fn last_words(&self, text: String) -> impl FnOnce() + Send + 'static {
        #[cfg(feature = "ledger")]
        let (ledger, self_end) = {
            let what = if self.settings.abort { "sent ABRT" } else { "sent KILL" };
            (self.settings.ledger.clone(), what)
        };
        move || {
            #[cfg(feature = "ledger")]
            if let Some(path) = ledger {
                use crate::ledger::{Deed, say};
                let owner = Some(crate::identity::Identity::own());
                let pid = std::process::id();
                let detail = text.clone();
                let deed = Deed { owner, spawn: None, pid, what: self_end, detail };
                if let Err(error) = say(&path, "watchdog", &[deed]) {
                    tracing::warn!(%error, "the end of this process is not in the ledger");
                }
            }
            tracing::error!("{text}: this process is ended, so that it can be started again");
        }
    }
}
