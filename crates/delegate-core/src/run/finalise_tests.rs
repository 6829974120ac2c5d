//! Every way in which an answer can meet or miss its schema and its budget, over real files.

use super::*;
use crate::report::unreadable;

fn entry(status: Status, summary: &str) -> Outcome {
    Outcome { summary: Some(summary.to_owned()), ..unreadable(0, status, "") }
}

fn finalise(schema: Option<&str>, cap: Option<u64>, folder: &Path) -> Finalise {
    let schema = schema.map(|schema| serde_json::from_str(schema).unwrap());
    Finalise { schema, cap, folder: Some(folder.to_owned()), ..Finalise::default() }
}

const INTEGER: &str = r#"{"type":"integer"}"#;

#[test]
fn c47_the_parent_believes_its_own_check_and_not_the_childs_word() {
    let folder = tempfile::tempdir().unwrap();
    let mut finalise = finalise(Some(INTEGER), None, folder.path());
    for (answer, said, valid) in [("1", false, true), ("1", true, true), ("x", true, false)] {
        let mut outcome = entry(Status::Completed, answer);
        outcome.schema_valid = Some(said);
        outcome.schema_retries = Some(7);
        outcome.schema_errors = vec!["said".to_owned()];
        finalise.apply(&mut outcome);
        assert_eq!((outcome.schema_valid, outcome.schema_retries), (Some(valid), Some(1)));
        assert_eq!(outcome.status, Status::Completed, "a miss is no failure");
        assert_eq!(outcome.summary.as_deref(), Some(answer), "the raw text stays");
        assert_eq!(outcome.schema_errors.is_empty(), valid, "{:?}", outcome.schema_errors);
        assert_eq!(outcome.schema_note.is_none(), valid, "{:?}", outcome.schema_note);
        assert!(!outcome.schema_errors.contains(&"said".to_owned()));
    }
}

#[test]
fn c47_without_an_answer_there_is_nothing_to_check_and_the_note_says_so() {
    let folder = tempfile::tempdir().unwrap();
    for status in [Status::Failed, Status::Error, Status::Timeout, Status::Interrupted] {
        let mut outcome = entry(status, "1");
        finalise(Some(INTEGER), None, folder.path()).apply(&mut outcome);
        assert_eq!((outcome.schema_valid, outcome.schema_retries), (None, Some(0)));
        assert!(outcome.schema_note.unwrap().ends_with(status.word()));
    }
    // Nobody asked: what a child says of a schema is not passed on.
    let mut outcome = entry(Status::Completed, "1");
    (outcome.schema_valid, outcome.schema_retries) = (Some(true), Some(1));
    finalise(None, None, folder.path()).apply(&mut outcome);
    assert_eq!(
        (outcome.schema_valid, outcome.schema_retries, outcome.schema_note),
        (None, None, None)
    );
}

fn lines(count: usize) -> String {
    (1..=count).map(|line| format!("line number {line:04}\n")).collect()
}

#[test]
fn c48_an_answer_over_its_budget_is_head_tail_and_a_file_with_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("3");
    let mut outcome = entry(Status::Completed, &lines(100));
    outcome.summary = Some(lines(100));
    finalise(None, Some(400), &inner).apply(&mut outcome);
    let path = outcome.summary_full_path.clone().unwrap();
    assert_eq!((outcome.summary_truncated, path.as_path()), (true, &*inner.join(FILE)));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), lines(100));
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let summary = outcome.summary.as_ref().unwrap();
    assert!(summary.starts_with("line number 0001\n") && summary.contains("line number 0100\n"));
    assert!(!summary.contains("0018"), "{summary}");
    let footer =
        format!("[The whole answer is in {}; what is left out begins in line 18.]", path.display());
    assert!(summary.ends_with(&footer), "{summary}");
    // A typed answer is read from the file.
    let mut typed = entry(Status::Completed, "");
    typed.summary = Some(format!("[{}1]", "1,".repeat(1000)));
    typed.answer_is_json = true;
    finalise(None, Some(100), &folder.path().join("4")).apply(&mut typed);
    assert!(typed.summary_truncated);
    assert_eq!(typed.parse_answer::<Vec<u8>>().unwrap(), vec![1; 1001]);
}

#[test]
fn c48_an_answer_within_its_budget_and_one_without_touch_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for cap in [None, Some(1_700)] {
        let mut outcome = entry(Status::Completed, &lines(100));
        finalise(None, cap, folder.path()).apply(&mut outcome);
        assert_eq!(outcome, entry(Status::Completed, &lines(100)));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Somebody else's file, and a link to one, are neither written nor followed; the answer stays whole.
#[test]
fn c48_a_file_or_a_link_in_the_way_is_left_alone() {
    for link in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        let place = folder.path().join(FILE);
        if link {
            std::os::unix::fs::symlink(&victim, &place).unwrap();
        } else {
            std::fs::hard_link(&victim, &place).unwrap();
        }
        let mut outcome = entry(Status::Completed, &lines(100));
        finalise(None, Some(400), folder.path()).apply(&mut outcome);
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        // The trap is live: a plain write goes through it.
        std::fs::write(&place, "sprung").unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "sprung");
        assert_eq!(outcome.summary, Some(lines(100)));
        assert_eq!((outcome.summary_truncated, &outcome.summary_full_path), (false, &None));
        assert!(outcome.notes.iter().any(|note| note.contains("max_summary_chars")));
    }
    let mut nowhere = entry(Status::Completed, &lines(100));
    Finalise { cap: Some(400), ..Finalise::default() }.apply(&mut nowhere);
    assert_eq!(nowhere.summary, Some(lines(100)));
}

#[test]
fn c48_of_a_spilled_answer_the_tail_is_that_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let result = folder.path().join("result");
    std::fs::write(&result, lines(1000)).unwrap();
    let mut outcome = entry(Status::Completed, &lines(500));
    outcome.result_path = Some(result.clone());
    outcome.result_bytes = Some(17_000);
    finalise(None, Some(400), folder.path()).apply(&mut outcome);
    let summary = outcome.summary.unwrap();
    assert!(summary.contains("line number 1000\n") && !summary.contains("0500"), "{summary}");
    assert_eq!(outcome.summary_full_path, Some(result));
    assert!(!folder.path().join(FILE).exists());
}

#[test]
fn an_answer_that_is_too_large_is_not_checked_and_the_note_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut outcome = entry(Status::Completed, "1");
    outcome.result_path = Some(folder.path().join("result"));
    outcome.result_bytes = Some(MAX_CHECKED_BYTES + 1);
    finalise(Some(INTEGER), None, folder.path()).apply(&mut outcome);
    assert_eq!(outcome.schema_valid, None);
    assert!(outcome.schema_note.unwrap().contains("not checked"));
}

#[test]
fn a_reminder_names_eight_paths_and_stands_behind_what_was_cut() {
    let folder = tempfile::tempdir().unwrap();
    let paths = |count: usize| (0..count).map(|n| format!("/f{n}")).collect::<Vec<_>>();
    let remind = |outcome: &mut Outcome, count| {
        Finalise { stale: paths(count), ..finalise(None, Some(400), folder.path()) }.apply(outcome);
    };
    let mut outcome = crate::report::unreadable(0, Status::Completed, "");
    outcome.summary = Some("x".repeat(1000));
    remind(&mut outcome, 9);
    let summary = outcome.summary.unwrap();
    assert!(summary.ends_with("/f0, /f1, /f2, /f3, /f4, /f5, /f6, /f7, and 1 more]"), "{summary}");
    assert!(outcome.summary_truncated && outcome.stale_paths.is_empty());
    let mut untouched = crate::report::unreadable(0, Status::Completed, "");
    untouched.summary = Some("done".to_owned());
    remind(&mut untouched, 0);
    assert_eq!(untouched.summary.as_deref(), Some("done"));
    remind(&mut untouched, 8);
    assert!(untouched.summary.unwrap().ends_with("/f7]"));
    // Nothing that could say it, or JSON that a sentence would break.
    for (summary, answer_is_json) in [(None, false), (Some("{}".to_owned()), true)] {
        let mut outcome = crate::report::unreadable(0, Status::Completed, "");
        (outcome.summary, outcome.answer_is_json) = (summary.clone(), answer_is_json);
        remind(&mut outcome, 9);
        assert_eq!((outcome.summary, outcome.stale_paths), (summary, paths(9)));
    }
}
