//! The turns of a child that takes several prompts, between its agent and its parent: the next prompt, the word
//! that a turn is over, what was before. `registry` runs them; the parent keeps them.

use std::sync::{Arc, Weak};

use delegate_protocol::turn::TurnEnd;
use delegate_protocol::{Answer, ChildEvent, Note, PastTurn, Question, TurnAnswer, TurnQuestion};

use crate::account::{Account, LAST_TEXT};
use crate::agent::AskError;
use crate::asks::{Until, Waited};
use crate::mail::Mailbox;
use crate::session::Session;
use crate::tail::Tail;

/// Rings for an agent between two turns ([`Session::bell`]). Without effect once the session is over.
#[derive(Debug, Clone)]
pub struct Bell(Weak<Mailbox>);

impl Bell {
    /// Has the agent look.
    pub fn ring(&self) {
        if let Some(mail) = self.0.upgrade() {
            mail.asks.call();
        }
    }
}

/// What comes between two turns.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Prompt(u64, String),
    NoMore,
    /// Somebody rang.
    Called,
}

/// What was spent before a turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    api_calls: u64,
    tokens: delegate_protocol::Tokens,
    cost_usd: Option<f64>,
}

impl Session {
    /// The turn that runs, counted from 1 over all workers of the session; `None` outside of one.
    #[must_use]
    pub fn turn(&self) -> Option<u64> {
        self.desk.token.turn()
    }

    /// The turns of this session that have ended, oldest first, those of earlier workers too. Read from the session's
    /// database by the parent; may be long, so it is asked for in pieces.
    ///
    /// # Errors
    /// [`AskError`]: the child is to stop, or this is no session.
    pub fn history(&self) -> Result<Vec<PastTurn>, AskError> {
        let mut all: Vec<PastTurn> = Vec::new();
        loop {
            let after = all.last().map_or(0, |turn| turn.number);
            let question = Question::Turn(TurnQuestion::History { after });
            let answer = self.ask(question, Until::Interrupt)?;
            let Answer::Turn(TurnAnswer::History(turns)) = answer else {
                return Err(AskError::of(answer));
            };
            // A parent that repeats itself is not asked for ever.
            match turns.first() {
                Some(turn) if turn.number > after => all.extend(turns),
                Some(_) | None => return Ok(all),
            }
        }
    }

    /// A bell for another thread of the agent: it has [`crate::Agent::between_turns`] called, at once or when the turn
    /// that runs is over.
    #[must_use]
    pub fn bell(&self) -> Bell {
        Bell(Arc::downgrade(&self.desk.mail))
    }

    /// Asks for the next prompt. Everything that was said before it is on its way. From now on silence says nothing.
    /// Before somebody who rang was heard, nothing is asked for.
    pub(crate) fn ask_for_prompt(&self) -> Result<Option<u64>, AskError> {
        self.put(ChildEvent::Note(Note::Channel { reports: false }));
        self.desk.outbox.wait_empty(&self.desk.token);
        if self.was_called() {
            return Ok(None);
        }
        let question = Question::Turn(TurnQuestion::Next);
        let asked = self.desk.mail.asks.ask(question, &self.desk.token, Until::Interrupt);
        let number = asked.ok_or(AskError::Interrupted)?;
        self.desk.outbox.poke();
        Ok(Some(number))
    }

    /// Whether somebody rang and was not heard yet.
    pub(crate) fn was_called(&self) -> bool {
        self.desk.mail.asks.take_call()
    }

    /// Waits for the prompt that was asked for so.
    pub(crate) fn next_prompt(&self, number: u64) -> Result<Next, AskError> {
        match self.desk.wait_or_call(number, Until::Interrupt) {
            Waited::Called => Ok(Next::Called),
            Waited::Over => Err(AskError::Interrupted),
            Waited::Answered(Answer::Turn(TurnAnswer::Prompt { number, text })) => {
                Ok(Next::Prompt(number, text))
            }
            Waited::Answered(Answer::Turn(TurnAnswer::NoMore)) => Ok(Next::NoMore),
            Waited::Answered(other) => Err(AskError::of(other)),
        }
    }

    /// Says how a turn ended, behind everything that was said in it; comes back when that is stored. An agent that
    /// unwinds says it, too.
    pub(crate) fn turn_over(&self, end: TurnEnd) -> Result<(), AskError> {
        let question = TurnQuestion::Over(Box::new(end));
        let answer = self.in_order(question, Until::ParentGone)?;
        if answer == Answer::Turn(TurnAnswer::Noted) { Ok(()) } else { Err(AskError::of(answer)) }
    }

    /// A question overtakes events, so these go first.
    fn in_order(&self, question: TurnQuestion, until: Until) -> Result<Answer, AskError> {
        self.desk.outbox.wait_empty(&self.desk.token);
        self.ask(Question::Turn(question), until)
    }

    /// The turn begins: what it says and spends is counted from here.
    pub(crate) fn begin_turn(&mut self, number: u64) -> Before {
        let mut account = self.desk.account();
        account.last_text = Tail::new(LAST_TEXT);
        account.empty_on_purpose = false;
        let Account { api_calls, tokens, cost_usd, .. } = *account;
        drop(account);
        self.desk.token.begin_turn(number);
        // Content first: the silence before it must not count.
        self.put(ChildEvent::Note(Note::Turn { number }));
        self.put(ChildEvent::Note(Note::Channel { reports: true }));
        self.content("a turn begins");
        Before { api_calls, tokens, cost_usd }
    }

    /// The turn is over; gives what it spent, with its last words, and whether it was stopped.
    pub(crate) fn end_turn(&mut self, before: Before, completed: bool) -> (TurnEnd, bool) {
        let number = self.turn().unwrap_or_default();
        let stopped = self.desk.token.end_turn();
        let mut account = self.desk.account();
        let Before { api_calls, tokens, cost_usd } = before;
        let spent = delegate_protocol::Tokens {
            input: account.tokens.input.saturating_sub(tokens.input),
            output: account.tokens.output.saturating_sub(tokens.output),
        };
        account.trace.all_done(completed);
        let end = TurnEnd {
            number,
            exit_reason: delegate_protocol::ExitReason::Completed,
            answer: account.last_text.text(LAST_TEXT),
            answer_is_json: false,
            empty_on_purpose: account.empty_on_purpose,
            error: None,
            failure_reason: None,
            schema: None,
            api_calls: account.api_calls.saturating_sub(api_calls),
            tokens: spent,
            cost_usd: match (cost_usd, account.cost_usd) {
                (before, Some(now)) => Some(now - before.unwrap_or_default()),
                (_, None) => None,
            },
        };
        (end, stopped)
    }
}
