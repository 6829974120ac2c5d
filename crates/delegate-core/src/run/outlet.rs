//! [`Outlet`]: where the events of a batch go. Those of a batch of the root go to its consumer; those of a
//! child's batch go there too, and to that child where it wants to see them. Used by the loop and `child_io`.

use std::sync::Arc;

use delegate_protocol::Event;
use tokio::sync::Notify;

use super::delivery::Delivery;

/// The consumers of one batch.
#[derive(Debug, Clone)]
pub(crate) struct Outlet {
    /// The consumer of the root first, then those of the children between it and this batch.
    all: Vec<Arc<Delivery>>,
    /// Whether the last of them hears of this batch, and what is below it, and of nothing else.
    owns_last: bool,
    /// Told when one of them has made room.
    eased: Arc<Notify>,
}

impl Outlet {
    /// That of a batch of the root.
    pub(crate) fn root(consumer: Arc<Delivery>) -> Self {
        Self::of(vec![consumer], true)
    }

    /// That of a batch of a child of this one, which may want its events as well.
    pub(crate) fn below(&self, child: Option<Arc<Delivery>>) -> Self {
        let owns_last = child.is_some();
        Self::of(self.all.iter().cloned().chain(child).collect(), owns_last)
    }

    fn of(all: Vec<Arc<Delivery>>, owns_last: bool) -> Self {
        let eased = Arc::<Notify>::default();
        all.iter().for_each(|consumer| consumer.tell_of_room(&eased));
        Self { all, owns_last, eased }
    }

    /// Whether all of them keep up.
    pub(crate) fn has_room(&self) -> bool {
        self.all.iter().all(|consumer| consumer.has_room())
    }

    /// Told when there may be room again; for the one loop of the batch.
    pub(crate) fn eased(&self) -> Arc<Notify> {
        Arc::clone(&self.eased)
    }

    /// As [`Delivery::send`], to each.
    pub(crate) async fn send(&self, events: Vec<Event>) {
        if let Some((last, others)) = self.all.split_last() {
            for consumer in others {
                consumer.send(events.clone()).await;
            }
            last.send(events).await;
        }
    }

    /// As [`Delivery::push`], to each.
    pub(crate) fn push(&self, event: Event) {
        if let Some((last, others)) = self.all.split_last() {
            others.iter().for_each(|consumer| consumer.push(event.clone()));
            last.push(event);
        }
    }

    /// As [`Delivery::offer`] and [`Delivery::tell`], to each.
    pub(crate) fn offer(&self, event: &Event) {
        for consumer in &self.all {
            consumer.offer(event.clone());
            consumer.tell();
        }
    }

    /// As [`Delivery::tell`], to each.
    pub(crate) fn tell(&self) {
        self.all.iter().for_each(|consumer| consumer.tell());
    }

    /// Nothing more comes of this batch: ends the consumer that hears of nothing else.
    pub(crate) fn complete(&self) {
        if let Some(last) = self.all.last().filter(|_| self.owns_last) {
            last.complete();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delegate_protocol::SubagentId;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn next(delivery: &Delivery) -> Poll<Option<Event>> {
        pin!(delivery.next()).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn what_a_grandchild_does_reaches_all_above_and_ends_only_its_own_consumer() {
        let [root, child] = [(); 2].map(|()| Arc::<Delivery>::default());
        let top = Outlet::root(Arc::clone(&root));
        let below = top.below(Some(Arc::clone(&child)));
        let silent = below.below(None);
        let event = Event::Text { child: SubagentId::new(0, 1), text: "t".to_owned() };
        silent.push(event.clone());
        silent.complete();
        for consumer in [&root, &child] {
            assert_eq!(next(consumer), Poll::Ready(Some(event.clone())));
            assert!(next(consumer).is_pending());
        }
        below.complete();
        assert_eq!(next(&child), Poll::Ready(None));
        assert!(next(&root).is_pending());
        top.complete();
        assert_eq!(next(&root), Poll::Ready(None));
    }
}
