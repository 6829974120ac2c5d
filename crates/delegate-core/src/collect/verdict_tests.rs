//! Every combination of what a child said, why it was stopped and how it ended, against the rules of the
//! contract (3.2) as a list, first match wins.

use std::time::Duration;

use delegate_protocol::{Isolation, Tokens};
use ownership::Reached;

use super::*;
use crate::collect::Answer;
use crate::launch::StartFailure;

const VERDICTS: [Option<Verdict>; 6] = [
    None,
    Some(Verdict::Completed),
    Some(Verdict::MaxIterations),
    Some(Verdict::Interrupted),
    Some(Verdict::Failed),
    Some(Verdict::Panicked),
];
const CANCELS: [Option<CancelReason>; 5] = [
    None,
    Some(CancelReason::Interrupt),
    Some(CancelReason::Stale),
    Some(CancelReason::Timeout),
    Some(CancelReason::Kill),
];
const ANSWERS: [&str; 3] = ["", "(empty)", "text"];
const EXITS: [Option<ExitStatus>; 4] = [
    None,
    Some(ExitStatus::Code(0)),
    Some(ExitStatus::Code(3)),
    Some(ExitStatus::Signal { signal: 9, core_dumped: false }),
];

/// One combination.
#[derive(Debug, Clone, Copy)]
struct Case {
    start_failed: bool,
    verdict: Option<Verdict>,
    cancel: Option<CancelReason>,
    answer: &'static str,
    on_purpose: bool,
    fault: bool,
    short: bool,
    told: bool,
    start_timeout: bool,
    violation: bool,
    exit: Option<ExitStatus>,
}

fn cases() -> impl Iterator<Item = Case> {
    let flags = 0_u8..1 << 7;
    let all = flags.flat_map(|flags| VERDICTS.map(|verdict| (flags, verdict)));
    let all = all.flat_map(|(flags, verdict)| CANCELS.map(|cancel| (flags, verdict, cancel)));
    let all = all.flat_map(|(f, v, c)| ANSWERS.map(|answer| (f, v, c, answer)));
    all.flat_map(|(flags, verdict, cancel, answer)| {
        EXITS.map(|exit| Case {
            start_failed: flags & 1 != 0,
            verdict,
            cancel,
            answer,
            on_purpose: flags & 2 != 0,
            fault: flags & 4 != 0,
            short: flags & 8 != 0,
            told: flags & 16 != 0,
            start_timeout: flags & 32 != 0,
            violation: flags & 64 != 0,
            exit,
        })
    })
}

fn judged(case: Case) -> Judgement {
    judged_with(case, Reached::default())
}

fn judged_with(case: Case, reached: Reached) -> Judgement {
    let Case { verdict, cancel, answer, .. } = case;
    let failure = StartFailure {
        phase: "exec".to_owned(),
        errno: Some(2),
        path: None,
        detail: "no such file".to_owned(),
    };
    let subject = Subject {
        task_index: 0,
        isolation: Isolation::Process,
        launcher: Some("exec"),
        limit: Some(Duration::from_secs(5)),
        limit_place: None,
        start_limit: Duration::from_secs(60),
        logs: None,
        start_failure: case.start_failed.then_some(failure),
        diagnostic: None,
        live_transcript: None,
        missed: Vec::new(),
        subtree: None,
        over_budget: None,
        reached,
        ration: ownership::Ration::default(),
    };
    let facts = Facts {
        cancel,
        launched_at: Some(Duration::ZERO),
        start_timeout: case.start_timeout,
        violation: case.violation.then(|| "garbage".to_owned()),
        exit: case.exit,
        ..Facts::default()
    };
    let finish = verdict.map(|verdict| Finish {
        verdict,
        answer_bytes: answer.len() as u64 + u64::from(case.short),
        answer: None,
        answer_is_json: false,
        empty_on_purpose: case.on_purpose,
        error: case.told.then(|| "told".to_owned()),
        failure_reason: None,
        api_calls: 0,
        tokens: Tokens::default(),
        model: None,
        cost_usd: None,
        cost_status: None,
        schema: None,
        tool_trace: Vec::new(),
    });
    let answer = Answer {
        text: answer.to_owned(),
        bytes: answer.len() as u64,
        fault: case.fault.then(|| "too large".to_owned()),
        ..Answer::default()
    };
    judge(&subject, &facts, &Said { finish, answer, ..Said::default() })
}

type Rule = (fn(&Case) -> bool, Status, ExitReason);

/// The contract, written down a second time: whoever changes one must change the other.
const RULES: [Rule; 13] = [
    (|c| c.start_failed, Status::Error, ExitReason::Error),
    (
        |c| c.verdict == Some(Verdict::Interrupted) && limited(c),
        Status::Timeout,
        ExitReason::Timeout,
    ),
    (|c| c.verdict == Some(Verdict::Interrupted), Status::Interrupted, ExitReason::Interrupted),
    (|c| c.verdict == Some(Verdict::Failed), Status::Failed, ExitReason::Error),
    (|c| c.verdict == Some(Verdict::Panicked), Status::Error, ExitReason::Error),
    (|c| c.verdict.is_some() && c.fault, Status::Failed, ExitReason::Error),
    (|c| c.verdict.is_some() && c.short, Status::Error, ExitReason::Error),
    (
        |c| c.verdict == Some(Verdict::Completed) && no_answer(c),
        Status::Failed,
        ExitReason::Completed,
    ),
    (|c| c.verdict.is_some() && no_answer(c), Status::Failed, ExitReason::MaxIterations),
    (|c| c.verdict == Some(Verdict::Completed), Status::Completed, ExitReason::Completed),
    (|c| c.verdict.is_some(), Status::Completed, ExitReason::MaxIterations),
    (limited, Status::Timeout, ExitReason::Timeout),
    (|c| c.cancel.is_some(), Status::Interrupted, ExitReason::Interrupted),
];

fn limited(case: &Case) -> bool {
    matches!(case.cancel, Some(CancelReason::Timeout | CancelReason::Stale))
}

fn no_answer(case: &Case) -> bool {
    matches!(case.answer, "" | "(empty)") && !case.on_purpose
}

#[test]
fn every_combination_has_the_status_and_reason_of_the_first_rule_that_fits() {
    let mut used = [0_u32; RULES.len() + 1];
    for case in cases() {
        let rule = RULES.iter().position(|(fits, ..)| fits(&case));
        let (status, reason) =
            rule.map_or((Status::Error, ExitReason::Error), |rule| (RULES[rule].1, RULES[rule].2));
        used[rule.unwrap_or(RULES.len())] += 1;
        let judgement = judged(case);
        assert_eq!((judgement.status, judgement.exit_reason), (status, reason), "{case:?}");
        // What did not complete says why; what did, does not.
        assert_eq!(judgement.error.is_some(), status != Status::Completed, "{case:?}");
        assert!(judgement.error.is_none_or(|error| !error.is_empty()), "{case:?}");
    }
    // A rule that no combination reaches would test nothing.
    assert!(used.iter().all(|cases| *cases > 0), "{used:?}");
}

/// The negative control: rules in another order are told from these.
#[test]
fn the_order_of_the_rules_is_seen() {
    let differs = |left: usize, right: usize| {
        cases().any(|case| {
            let (fits, ..) = RULES[left];
            let (other, status, reason) = RULES[right];
            let judgement = judged(case);
            fits(&case)
                && other(&case)
                && RULES[..left].iter().all(|(earlier, ..)| !earlier(&case))
                && (judgement.status, judgement.exit_reason) != (status, reason)
        })
    };
    // A start that failed before everything; a limit before the plain interrupt; an answer that is
    // faulty before an empty one; the last word before what stopped the child.
    for (left, right) in [(0, 9), (1, 2), (5, 7), (6, 9), (9, 11)] {
        assert!(differs(left, right), "{left} and {right} may be swapped");
    }
}

/// A limit that was met makes no success, is why a silent child ended that nobody stopped, and changes nothing else.
#[test]
fn a_limit_that_was_met_is_no_success_and_explains_a_silent_end() {
    let met = [
        Reached { memory: 1, ..Reached::default() },
        Reached { processes: 1, ..Reached::default() },
        Reached { cpu: true, ..Reached::default() },
    ];
    let mut changed = [0_u32; 2];
    for (case, reached) in cases().flat_map(|case| met.map(|reached| (case, reached))) {
        let (before, after) = (judged(case), judged_with(case, reached));
        let status = (after.status, after.exit_reason);
        let named = after.error.as_deref().is_some_and(|error| {
            ["out of memory", "as many processes", "processor time"]
                .iter()
                .any(|w| error.contains(w))
        });
        let silent = !case.start_failed && case.verdict.is_none() && case.cancel.is_none();
        if before.status == Status::Completed {
            assert_eq!((status, named), ((Status::Failed, ExitReason::Error), true), "{case:?}");
            changed[0] += 1;
        } else if silent {
            assert_eq!((status, named), ((Status::Error, ExitReason::Error), true), "{case:?}");
            changed[1] += 1;
        } else {
            assert_eq!(status, (before.status, before.exit_reason), "{case:?}");
            assert_eq!(after.error, before.error, "{case:?}");
        }
    }
    assert!(changed.iter().all(|cases| *cases > 0), "{changed:?}");
}
