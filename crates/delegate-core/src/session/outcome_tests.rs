//! Every end of a turn, by its worker's word and by its worker's end.

use super::*;

fn begun() -> Begun {
    Begun {
        session: RunId::from_u128(1),
        turn: 3,
        run: RunId::from_u128(2),
        lasted: Duration::from_millis(1500),
        limit: Some(Duration::from_secs(2)),
    }
}

fn end(exit_reason: ExitReason, answer: &str) -> TurnEnd {
    TurnEnd {
        number: 3,
        exit_reason,
        answer: answer.to_owned(),
        answer_is_json: false,
        empty_on_purpose: false,
        error: None,
        failure_reason: None,
        schema: None,
        api_calls: 2,
        tokens: Tokens { input: 1, output: 2 },
        cost_usd: Some(0.5),
    }
}

#[test]
fn every_word_of_a_worker_has_its_status() {
    use ExitReason::{Completed, Error, Interrupted, MaxIterations};
    let (asked, timeout) = (Some(Stop::Asked), Some(Stop::Timeout));
    for (word, answer, stop, status, reason, error) in [
        (Completed, "a", None, Status::Completed, Completed, None),
        (Completed, "a", timeout, Status::Completed, Completed, None),
        (MaxIterations, "a", None, Status::Completed, MaxIterations, None),
        (Completed, "", None, Status::Failed, Completed, Some("it gave no answer")),
        (Completed, " (empty) ", None, Status::Failed, Completed, Some("it gave no answer")),
        (Interrupted, "so far", asked, Status::Interrupted, Interrupted, Some("it was stopped")),
        (
            Interrupted,
            "so far",
            timeout,
            Status::Timeout,
            ExitReason::Timeout,
            Some("its limit of 2 s ran out"),
        ),
        // It unwinds though nobody asked it to.
        (Interrupted, "", None, Status::Interrupted, Interrupted, Some("it was stopped")),
        (Error, "", None, Status::Failed, Error, Some("it failed and gave no reason")),
    ] {
        let outcome = told(begun(), stop, end(word, answer));
        let shown = format!("{word:?} {answer:?} {stop:?}");
        assert_eq!((outcome.status, outcome.exit_reason), (status, reason), "{shown}");
        assert_eq!(outcome.error.as_deref(), error, "{shown}");
        assert_eq!((outcome.answer.as_str(), outcome.api_calls), (answer, 2), "{shown}");
        assert_eq!((outcome.run_id, outcome.duration_seconds), (Some(begun().run), 1.5));
    }
    let on_purpose = TurnEnd { empty_on_purpose: true, ..end(Completed, "") };
    assert_eq!(told(begun(), None, on_purpose).status, Status::Completed);
}

#[test]
fn a_turn_that_ended_with_its_worker_says_why() {
    let (asked, timeout) = (Some(Stop::Asked), Some(Stop::Timeout));
    for (stop, status, text) in [
        (None, Status::Error, "its worker was lost: it left without a word"),
        (asked, Status::Interrupted, "it was stopped, and its worker with it"),
        (timeout, Status::Timeout, "its limit of 2 s ran out; it did not unwind"),
    ] {
        let outcome = lost(begun(), stop, None);
        assert_eq!(outcome.status, status);
        assert!(outcome.error.unwrap().starts_with(text), "{stop:?}");
    }
}

#[test]
fn one_that_was_never_begun_has_no_run_and_is_short() {
    let outcome = refused(RunId::from_u128(1), 4, "a b\n\n c".to_owned());
    assert!(!outcome.was_begun() && outcome.status == Status::Interrupted);
    assert_eq!(outcome.in_short().preview, "a b c");
    let long = TurnOutcome { answer: "é ".repeat(1000), ..outcome };
    assert_eq!(long.in_short().preview.chars().count(), PREVIEW);
    let json = serde_json::to_string(&long).unwrap();
    assert_eq!(serde_json::from_str::<TurnOutcome>(&json).unwrap(), long);
}
