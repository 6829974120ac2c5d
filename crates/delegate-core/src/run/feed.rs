//! Events of a run for whoever watches it from outside: the lines of events.jsonl as they are
//! written. A watcher never holds the run up. Filled by `journal`, read over the control socket.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use delegate_protocol::Class;
use tokio::sync::Notify;

/// Bytes that wait for one watcher. Beyond half of them progress is left out and counted; where a lifecycle
/// event finds no room the watcher is let go: a list with a hole would be worse than none.
pub(crate) const FEED_BYTES: usize = 4 * 1024 * 1024;

/// Lines that wait for one watcher; the same halves.
pub(crate) const FEED_LINES: usize = 8 * 1024;

/// All watchers of a run.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    watchers: Mutex<Vec<Weak<Watcher>>>,
    /// Whether there may be any: most runs have none.
    any: AtomicBool,
    /// The feed of the run that this one hangs below.
    above: OnceLock<Arc<Feed>>,
}

/// One of them.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    state: Mutex<Waiting>,
    readable: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Arc<[u8]>>,
    bytes: usize,
    lost: u64,
    end: Option<End>,
}

/// Why no more lines come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The run has ended.
    Ended,
    /// It did not read fast enough.
    TooSlow,
}

/// What a watcher finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A line of events.jsonl, with its newline.
    Line(Arc<[u8]>),
    /// So many progress events were left out here.
    Lost(u64),
    /// Nothing more comes.
    End(End),
}

impl Feed {
    /// A watcher from now on; dropping it ends it.
    pub(crate) fn watch(&self) -> Arc<Watcher> {
        let watcher = Arc::new(Watcher::default());
        self.watchers().push(Arc::downgrade(&watcher));
        self.any.store(true, Ordering::Release);
        watcher
    }

    /// What happens here is seen there as well; once.
    pub(crate) fn also(&self, above: &Arc<Self>) {
        self.above.get_or_init(|| Arc::clone(above));
    }

    /// Hands a line on.
    pub(crate) fn line(&self, class: Class, line: &[u8]) {
        if let Some(above) = self.above.get() {
            above.line(class, line);
        }
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let shared: Arc<[u8]> = line.into();
        self.each(|watcher| watcher.push(class, &shared));
    }

    /// The run has ended.
    pub(crate) fn end(&self) {
        self.each(|watcher| watcher.end(End::Ended));
    }

    fn each(&self, act: impl Fn(&Watcher)) {
        self.watchers().retain(|watcher| {
            let watcher = watcher.upgrade();
            watcher.as_deref().map(&act).is_some()
        });
    }

    fn watchers(&self) -> MutexGuard<'_, Vec<Weak<Watcher>>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    fn push(&self, class: Class, line: &Arc<[u8]>) {
        let mut state = self.state();
        if state.end.is_some() {
            return;
        }
        let part = if class == Class::Progress { 2 } else { 1 };
        if state.lines.len() < FEED_LINES / part && state.bytes < FEED_BYTES / part {
            state.bytes += line.len();
            state.lines.push_back(Arc::clone(line));
        } else if class == Class::Progress {
            state.lost += 1;
        } else {
            state.end = Some(End::TooSlow);
        }
        drop(state);
        self.readable.notify_one();
    }

    /// No more lines come.
    pub(crate) fn end(&self, why: End) {
        self.state().end.get_or_insert(why);
        self.readable.notify_one();
    }

    /// The next thing.
    pub(crate) async fn next(&self) -> Seen {
        loop {
            if let Some(seen) = self.try_next() {
                return seen;
            }
            self.readable.notified().await;
        }
    }

    fn try_next(&self) -> Option<Seen> {
        let mut state = self.state();
        if let Some(line) = state.lines.pop_front() {
            state.bytes -= line.len();
            return Some(Seen::Line(line));
        }
        match std::mem::take(&mut state.lost) {
            0 => state.end.map(Seen::End),
            lost => Some(Seen::Lost(lost)),
        }
    }

    fn state(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_that_does_not_read_is_bounded_told_of_the_loss_and_let_go() {
        let feed = Feed::default();
        feed.line(Class::Lifecycle, b"nobody looks");
        let watcher = feed.watch();
        let large = vec![b'x'; FEED_BYTES / 4];
        for _ in 0..6 {
            feed.line(Class::Progress, &large);
        }
        let lines = std::iter::from_fn(|| watcher.try_next());
        let seen: Vec<_> = lines.collect();
        assert_eq!((seen.len(), &seen[2]), (3, &Seen::Lost(4)));

        for _ in 0..5 {
            feed.line(Class::Lifecycle, &large);
        }
        feed.line(Class::Lifecycle, b"later");
        feed.end();
        let seen: Vec<_> = std::iter::from_fn(|| watcher.try_next()).take(6).collect();
        assert_eq!((&seen[4], &seen[5]), (&Seen::End(End::TooSlow), &Seen::End(End::TooSlow)));
        drop(watcher);
        feed.line(Class::Lifecycle, b"gone");
        assert!(feed.watchers().is_empty());
    }
}
