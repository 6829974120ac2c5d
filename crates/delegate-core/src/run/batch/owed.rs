//! Facts that the loop waits for and that must come, whatever happens to who finds them out.

use tokio::sync::mpsc;

use super::Incoming;

/// A fact that the loop waits for. It is sent when this is dropped: where the work that was to find it
/// out panics, the one that it began with. So a bug of ours is an outcome, and not a hang.
pub(super) struct Owed {
    sender: mpsc::UnboundedSender<Incoming>,
    fact: Option<Incoming>,
}

impl Owed {
    pub(super) fn or_else(sender: &mpsc::UnboundedSender<Incoming>, fact: Incoming) -> Self {
        Self { sender: sender.clone(), fact: Some(fact) }
    }

    pub(super) fn pay(mut self, fact: Incoming) {
        self.fact = Some(fact);
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some(fact) = self.fact.take() {
            send(&self.sender, fact);
        }
    }
}

/// The loop outlives its children; what comes after its end has nobody left to care.
pub(super) fn send(sender: &mpsc::UnboundedSender<Incoming>, fact: Incoming) {
    if sender.send(fact).is_err() {
        tracing::debug!(target: "delegate::run", "a fact came after the end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_is_paid_once_and_a_panic_pays_the_worst() {
        let (sender, mut incoming) = mpsc::unbounded_channel();
        let owed = || Owed::or_else(&sender, Incoming::Recorded(7, false));
        owed().pay(Incoming::Recorded(7, true));
        assert!(matches!(incoming.try_recv(), Ok(Incoming::Recorded(7, true))));
        assert!(incoming.try_recv().is_err());
        let panicking = owed();
        let work = std::thread::spawn(move || {
            let _owed = panicking;
            std::panic::resume_unwind(Box::new("a bug"));
        });
        assert!(work.join().is_err());
        assert!(matches!(incoming.try_recv(), Ok(Incoming::Recorded(7, false))));
    }
}
