//! How an end becomes the last frame. Pure, but for reading back what an agent spooled: `serve`
//! sends what comes out.

use delegate_protocol::Finish;
use delegate_protocol::message::Verdict;
use delegate_protocol::outcome::{ERROR_BYTES, NAME_BYTES};

use crate::account::{Account, LAST_TEXT};
use crate::agent::Failure;
use crate::answer::LongText;
use crate::registry::Reply;
use crate::tail::clip;

/// The largest answer that rides in the last frame; a larger one goes in parts before it.
pub(crate) const INLINE_ANSWER: u64 = 256 * 1024;

/// How a run ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The agent returned.
    Returned(Result<Reply, Failure>),
    /// It panicked: message and place.
    Panicked(String),
    /// It was asked to stop before it began.
    NotRun,
}

/// The last frame, and the answer that goes before or in it. The frame's `answer` is still empty.
pub(crate) fn conclude(end: End, mut account: Account, max_bytes: u64) -> (Finish, LongText) {
    let last_text = account.last_text.text(usize::try_from(max_bytes).unwrap_or(LAST_TEXT));
    let mut schema = None;
    let (verdict, answer, is_json, error, reason) = match end {
        End::Returned(Ok(reply)) => {
            schema = reply.schema;
            (Verdict::Completed, reply.text, reply.is_json, None, None)
        }
        End::Returned(Err(Failure::MaxIterations { partial })) => {
            (Verdict::MaxIterations, partial.into(), false, None, None)
        }
        End::Returned(Err(Failure::Failed { message, reason })) => {
            (Verdict::Failed, last_text.clone().into(), false, Some(message), reason)
        }
        End::Returned(Err(Failure::Broken { message })) => {
            (Verdict::Failed, last_text.clone().into(), false, Some(message), None)
        }
        End::Returned(Err(Failure::Interrupted)) | End::NotRun => {
            (Verdict::Interrupted, last_text.clone().into(), false, None, None)
        }
        End::Panicked(message) => {
            (Verdict::Panicked, last_text.clone().into(), false, Some(message), None)
        }
    };
    account.trace.all_done(verdict == Verdict::Completed);
    let finish = Finish {
        verdict,
        answer_bytes: answer.len(),
        answer: None,
        answer_is_json: is_json,
        empty_on_purpose: account.empty_on_purpose,
        error: error.map(|text| clip(&text, ERROR_BYTES).to_owned()),
        failure_reason: reason.map(|text| clip(&text, NAME_BYTES).to_owned()),
        api_calls: account.api_calls,
        tokens: account.tokens,
        tool_trace: account.trace.take(),
        model: account.model,
        cost_usd: account.cost_usd,
        cost_status: account.cost_status,
        schema,
    };
    if answer.len() <= max_bytes {
        return (finish, answer);
    }
    let error = format!(
        "the answer has {} bytes, the limit is {max_bytes} bytes (max_result_bytes)",
        answer.len()
    );
    (failed(finish, error, last_text.len() as u64), last_text.into())
}

/// The same end, as a failure of which `answer_bytes` of an answer are sent.
pub(crate) fn failed(mut finish: Finish, error: String, answer_bytes: u64) -> Finish {
    finish.verdict = Verdict::Failed;
    finish.error = Some(error);
    finish.answer_is_json = false;
    finish.answer_bytes = answer_bytes;
    finish
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::clock;

    fn account(last_text: &str) -> Account {
        let mut account = Account::new(clock());
        account.last_text.push(last_text.as_bytes());
        account.trace.start(None, "grep", 1, delegate_protocol::InputSummary::default());
        account
    }

    #[test]
    fn words_of_a_failure_that_are_too_long_are_cut() {
        let failure = Failure::Failed {
            message: "m".repeat(ERROR_BYTES + 1),
            reason: Some("r".repeat(NAME_BYTES + 1)),
        };
        let (finish, _) = conclude(End::Returned(Err(failure)), account(""), 100);
        assert_eq!(finish.error.unwrap().len(), ERROR_BYTES);
        assert_eq!(finish.failure_reason.unwrap().len(), NAME_BYTES);
    }

    fn completed(text: &str) -> End {
        End::Returned(Ok(Reply { text: text.to_owned().into(), is_json: true, schema: None }))
    }

    #[test]
    fn every_end_has_its_verdict_answer_and_error() {
        let failure = |message: &str| Failure::Failed {
            message: message.to_owned(),
            reason: Some("rate_limit".to_owned()),
        };
        let table = [
            (completed("3"), Verdict::Completed, "3", None),
            (
                End::Returned(Err(Failure::MaxIterations { partial: "so far".to_owned() })),
                Verdict::MaxIterations,
                "so far",
                None,
            ),
            (End::Returned(Err(failure("no"))), Verdict::Failed, "last words", Some("no")),
            (End::Returned(Err(Failure::Interrupted)), Verdict::Interrupted, "last words", None),
            (End::NotRun, Verdict::Interrupted, "last words", None),
            (End::Panicked("p".to_owned()), Verdict::Panicked, "last words", Some("p")),
        ];
        for (end, verdict, answer, error) in table {
            let shown = format!("{end:?}");
            let (finish, text) = conclude(end, account("last words"), 100);
            assert_eq!((finish.verdict, finish.error.as_deref()), (verdict, error), "{shown}");
            assert_eq!(finish.answer_bytes, answer.len() as u64, "{shown}");
            assert_eq!(text.into_text().unwrap(), answer, "{shown}");
            assert_eq!(finish.answer_is_json, verdict == Verdict::Completed);
            assert_eq!(finish.failure_reason.is_some(), verdict == Verdict::Failed);
            let open_tool = if verdict == Verdict::Completed { "ok" } else { "error" };
            assert_eq!(finish.tool_trace[0].status, open_tool);
        }
    }

    #[test]
    fn an_answer_over_the_limit_is_a_failure_that_names_both_numbers() {
        assert_eq!(conclude(completed("four"), account(""), 4).0.verdict, Verdict::Completed);
        let (finish, text) = conclude(completed("fives"), account("last words"), 4);
        let error = finish.error.unwrap();
        assert!(error.contains("5 bytes") && error.contains("4 bytes"), "{error}");
        assert_eq!((finish.verdict, finish.answer_is_json), (Verdict::Failed, false));
        assert_eq!((finish.answer_bytes, text.into_text().unwrap().as_str()), (4, "ords"));
    }
}
