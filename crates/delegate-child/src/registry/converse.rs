//! The turns of one worker of a session: asks for a prompt, has the agent answer it, says how that ended, until there
//! are no more. What a turn fails with is its own end and not the worker's; a panic is the worker's.

use delegate_protocol::outcome::{ERROR_BYTES, NAME_BYTES};
use delegate_protocol::turn::{BETWEEN_TURNS, NO_TURNS, TURN_ANSWER_BYTES};
use delegate_protocol::{ExitReason, TaskSpec, TurnEnd};

use super::{Reply, Runner, met};
use crate::agent::Failure;
use crate::session::Session;
use crate::tail::clip;
use crate::turns::Next;

/// For an agent that does not take several prompts.
pub(super) fn refused(agent: &str) -> Failure {
    Failure::Failed {
        message: format!(
            "agent `{agent}` takes no turns, so it has no sessions: give it `Agent::turn` and \
             `TAKES_TURNS`, or delegate a task to it"
        ),
        reason: Some(NO_TURNS.to_owned()),
    }
}

/// Carries turns until there are no more; the answer says how many there were.
pub(super) fn carry(
    runner: &mut dyn Runner,
    spec: &TaskSpec,
    session: &mut Session,
) -> Result<Reply, Failure> {
    runner.open(&spec.params, session)?;
    let mut turns = 0_u64;
    while let Some((number, prompt)) = next(runner, session)? {
        let before = session.begin_turn(number);
        let result = runner.turn(&prompt, session);
        if let Err(Failure::Broken { message }) = result {
            // The turn ends with this worker.
            return Err(Failure::Broken { message });
        }
        let result = result.map(|reply| met(runner, spec, reply, session));
        let (end, stopped) = session.end_turn(before, result.is_ok());
        session.turn_over(ended(end, result, stopped))?;
        turns += 1;
        session.checkpoint()?;
    }
    let text = format!("{turns} {}", if turns == 1 { "turn" } else { "turns" });
    session.allow_empty_answer();
    Ok(Reply { text: text.into(), is_json: false, schema: None })
}

/// The next prompt; `None` when there is none any more. An agent that finds itself of no use meanwhile leaves, which costs no
/// prompt: not the one that it has not asked for yet, and not one that it was given and has not seen.
fn next(runner: &mut dyn Runner, session: &mut Session) -> Result<Option<(u64, String)>, Failure> {
    loop {
        let Some(asked) = session.ask_for_prompt()? else {
            runner.between_turns(session).map_err(left)?;
            continue;
        };
        loop {
            match session.next_prompt(asked)? {
                Next::Prompt(number, text) => {
                    if session.was_called() {
                        runner.between_turns(session).map_err(left)?;
                    }
                    return Ok(Some((number, text)));
                }
                Next::NoMore => return Ok(None),
                Next::Called => runner.between_turns(session).map_err(left)?,
            }
        }
    }
}

/// The word by which its parent knows that no turn was begun.
fn left(failure: Failure) -> Failure {
    match failure {
        Failure::Broken { message } | Failure::Failed { message, .. } => Failure::Failed {
            message: format!("between two turns: {message}"),
            reason: Some(BETWEEN_TURNS.to_owned()),
        },
        other @ (Failure::Interrupted | Failure::MaxIterations { .. }) => other,
    }
}

/// How it ended: `end` has what was spent, and its last words for an answer that is not there.
fn ended(mut end: TurnEnd, result: Result<Reply, Failure>, stopped: bool) -> TurnEnd {
    match result {
        Ok(Reply { text, is_json, schema }) => {
            let bytes = text.len();
            if bytes > TURN_ANSWER_BYTES as u64 {
                end.exit_reason = ExitReason::Error;
                end.error = Some(format!(
                    "the answer has {bytes} bytes, a turn's has {TURN_ANSWER_BYTES} at most: \
                     write it into a file and answer with its path"
                ));
                return end;
            }
            match text.into_text() {
                Ok(text) => {
                    end.answer = text;
                    end.answer_is_json = is_json;
                    end.schema = schema;
                }
                Err(error) => {
                    end.exit_reason = ExitReason::Error;
                    end.error = Some(format!("the answer could not be read back: {error}"));
                }
            }
        }
        Err(Failure::MaxIterations { partial }) => {
            end.exit_reason = ExitReason::MaxIterations;
            clip(&partial, TURN_ANSWER_BYTES).clone_into(&mut end.answer);
        }
        Err(Failure::Interrupted) => end.exit_reason = ExitReason::Interrupted,
        // What breaks because it is stopped is stopped.
        Err(Failure::Failed { .. } | Failure::Broken { .. }) if stopped => {
            end.exit_reason = ExitReason::Interrupted;
        }
        Err(Failure::Broken { message }) => {
            end.exit_reason = ExitReason::Error;
            end.error = Some(clip(&message, ERROR_BYTES).to_owned());
        }
        Err(Failure::Failed { message, reason }) => {
            end.exit_reason = ExitReason::Error;
            end.error = Some(clip(&message, ERROR_BYTES).to_owned());
            end.failure_reason = reason.map(|text| clip(&text, NAME_BYTES).to_owned());
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end() -> TurnEnd {
        TurnEnd {
            number: 1,
            exit_reason: ExitReason::Completed,
            answer: "last words".to_owned(),
            answer_is_json: false,
            empty_on_purpose: false,
            error: None,
            failure_reason: None,
            schema: None,
            api_calls: 0,
            tokens: delegate_protocol::Tokens::default(),
            cost_usd: None,
        }
    }

    fn reply(text: String) -> Result<Reply, Failure> {
        Ok(Reply { text: text.into(), is_json: true, schema: None })
    }

    #[test]
    fn every_end_of_a_turn_has_its_reason_answer_and_error() {
        let failed = |message: &str| {
            Err(Failure::Failed { message: message.to_owned(), reason: Some("busy".to_owned()) })
        };
        let partial = Err(Failure::MaxIterations { partial: "so far".to_owned() });
        let long = "x".repeat(TURN_ANSWER_BYTES + 1);
        for (result, stopped, reason, answer, error) in [
            (reply("3".to_owned()), false, ExitReason::Completed, "3", None),
            // It was done before it heard of the stop.
            (reply("3".to_owned()), true, ExitReason::Completed, "3", None),
            (partial, false, ExitReason::MaxIterations, "so far", None),
            (Err(Failure::Interrupted), true, ExitReason::Interrupted, "last words", None),
            (failed("no"), true, ExitReason::Interrupted, "last words", None),
            (failed("no"), false, ExitReason::Error, "last words", Some("no")),
            (reply(long), false, ExitReason::Error, "last words", Some("write it into a file")),
        ] {
            let shown = format!("{reason:?} {error:?}");
            let end = ended(end(), result, stopped);
            assert_eq!((end.exit_reason, end.answer.as_str()), (reason, answer), "{shown}");
            assert_eq!(end.error.is_some(), error.is_some(), "{shown}");
            assert!(end.error.unwrap_or_default().contains(error.unwrap_or_default()), "{shown}");
            assert_eq!(end.failure_reason.is_some(), error == Some("no"), "{shown}");
        }
    }
}
