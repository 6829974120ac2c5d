//! [`Turns`]: the way of a child's questions about its turns to the session that it works for. The loop of its batch
//! asks, [`crate::session`] answers; what there is to tell everybody goes between the two.

use std::future::Future;

use delegate_protocol::{TurnAnswer, TurnEnd, TurnOver, TurnQuestion};
use tokio::sync::{mpsc, oneshot};

/// An answer, and the event that everybody is told before the child: the turn, and how it ended.
pub(crate) type Told = (TurnAnswer, Option<(u64, Option<Box<TurnOver>>)>);

/// What a child asks. Dropping the sender refuses.
#[derive(Debug)]
pub(crate) enum Asked {
    Next(oneshot::Sender<Told>),
    Over(Box<TurnEnd>, oneshot::Sender<Told>),
    History(u64, oneshot::Sender<Told>),
}

/// The way of the questions of one worker. A child has a bounded number of questions open, so it needs no bound.
#[derive(Debug, Clone)]
pub(crate) struct Turns {
    /// Which worker of the session, from 1.
    pub(crate) worker: u64,
    pub(crate) sender: mpsc::UnboundedSender<(u64, Asked)>,
}

impl Turns {
    /// Asks at once; the answer comes when it can. `None`: it is refused.
    pub(super) fn ask(
        &self,
        question: TurnQuestion,
    ) -> impl Future<Output = Option<Told>> + 'static {
        let (told, answer) = oneshot::channel();
        let asked = match question {
            TurnQuestion::Next => Asked::Next(told),
            TurnQuestion::Over(end) => Asked::Over(end, told),
            TurnQuestion::History { after } => Asked::History(after, told),
        };
        // A session that is over has dropped its end, and with it the answer.
        drop(self.sender.send((self.worker, asked)));
        async move { answer.await.ok() }
    }
}
