//! Batch files that are wrong: each is told with its place and a remedy, and nothing is started.

use std::process::Stdio;

use crate::rig::{Rig, Said};

/// Text of a file, code of its fault, place, and what must be said.
const BAD: [(&str, &str, &str, &str); 19] = [
    ("", "empty_file", "1:1", "it needs `tasks:`"),
    ("# only a remark\n", "empty_file", "1:1", "it needs `tasks:`"),
    ("tasks: [\n", "not_yaml", "1:8", "not valid YAML"),
    ("a\tb: {\n", "not_yaml", "", "not valid YAML"),
    ("task:\n  - goal: x\n", "unknown_field", "1:1", "did you mean `tasks`?"),
    ("tasks: []\n", "no_tasks", "1:1", "`tasks` is empty"),
    ("tasks: x\n", "wrong_type", "1:8", "must be a list"),
    ("defaults: {}\n", "no_tasks", "1:1", "there is no `tasks:`"),
    ("tasks:\n  - agent: command\n", "no_goal", "2:5", "task 0 has no `goal`"),
    ("tasks:\n  - goal: ' '\n", "blank_goal", "2:11", "the goal is blank"),
    ("tasks:\n  - goal: 7\n", "wrong_type", "2:11", "put it in quotes"),
    ("tasks:\n  - goal: [a]\n", "wrong_type", "2:11", "`goal` must be text"),
    ("tasks:\n  - {goal: a, parms: 1}\n", "unknown_field", "2:15", "did you mean `params`?"),
    ("tasks:\n  - goal: a\n    goal: b\n", "duplicate_key", "3:5", "set twice"),
    ("tasks:\n  - {goal: a, timeout: 5}\n", "wrong_type", "2:24", "a duration such as"),
    ("tasks:\n  - {goal: a, timeout: 900ms}\n", "out_of_range", "2:24", "from 1s"),
    ("tasks:\n  - {goal: a, timeout_seconds: 0.5}\n", "out_of_range", "2:32", "from 1s"),
    (
        "tasks:\n  - goal: a\n  - {goal: b, agent: comand}\n",
        "unknown_agent",
        "3:5",
        "known: command",
    ),
    ("tasks:\n  - goal: a\n  - {goal: b, params: [.nan]}\n", "cannot_cross", "3:5", "NaN"),
];

#[test]
fn each_names_its_place_and_a_remedy_and_starts_nothing() {
    let rig = Rig::new();
    for (text, code, place, said) in BAD {
        rig.file("b.yaml", text);
        let human = rig.run(["run", "b.yaml"]);
        human.expect(2).says("nothing was started").is_plain();
        assert_eq!(human.out, "", "{text}");
        assert!(human.err.contains(said) && human.err.starts_with("error: "), "{}", human.err);
        assert!(human.err.contains(&format!(" --> b.yaml:{place}")), "{text}\n{}", human.err);

        let machine = rig.run(["run", "b.yaml", "--json"]);
        let error = &machine.expect(2).json()["error"];
        assert_eq!((error["code"].as_str(), error["file"].as_str()), (Some(code), Some("b.yaml")));
        if let Some((line, column)) = place.split_once(':') {
            assert_eq!(
                (error["line"].to_string(), error["column"].to_string()),
                (line.into(), column.into())
            );
        }
        assert_eq!(machine.err, "");
    }
    assert!(rig.runs().is_empty() && rig.processes().is_empty());
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let rig = Rig::new();
    rig.file("latin.yaml", b"tasks:\n  - goal: caf\xe9\n");
    for (file, code) in
        [("nowhere.yaml", "missing_file"), (".", "unreadable_file"), ("latin.yaml", "not_text")]
    {
        let said = rig.run(["run", file]);
        said.expect(2).says(&format!(" --> {file}")).says("nothing was started");
        assert_eq!(rig.run(["run", file, "--json"]).expect(2).json()["error"]["code"], code);
    }
}

#[test]
fn standard_input_is_told_apart_from_files() {
    let rig = Rig::new();
    rig.file("b.yaml", "tasks:\n  - goals: x\n");
    let mut command = rig.command(["run", "-"]);
    command.stdin(std::fs::File::open(rig.path("b.yaml")).unwrap());
    Said::of(command.output().unwrap()).expect(2).says(" --> -:2:5").says("did you mean `goal`?");
    let mut command = rig.command(["run", "-"]);
    Said::of(command.stdin(Stdio::null()).output().unwrap()).expect(2).says("is empty");
}

#[test]
fn a_batch_without_an_end_is_refused_and_not_read_for_ever() {
    let rig = Rig::new();
    let no_end = "a device, which may have no end";
    for (file, stdin, why) in
        [("-", "/dev/zero", "larger than 64 MiB"), ("/dev/zero", "/dev/null", no_end)]
    {
        let mut command = rig.command(["run", file]);
        command.stdin(std::fs::File::open(stdin).unwrap());
        let said = Said::of(command.output().unwrap());
        said.expect(2).says(why).says(&format!(" --> {file}"));
        said.says("nothing was started");
    }
    // A writer that never closes is not waited for either.
    let mut endless = rig.program("sh");
    endless.args(["-c", &format!("yes | '{}' run - --json", crate::rig::DELEGATE)]);
    let error = Said::of(endless.output().unwrap()).expect(2).json()["error"].clone();
    assert_eq!(error["code"], "too_large");
}

#[test]
fn zero_is_no_limit_and_the_hint_says_how_to_have_none() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo fine"]);
    for zero in ["0", "0s", "0ms"] {
        let said = rig.run(["run", "b.yaml", "--timeout", zero]);
        said.expect(2).says("hint: write `null` for no limit");
    }
    rig.run(["run", "b.yaml", "--set", "child_timeout_seconds=0"]).expect(2).says("write `null`");
    rig.run(["run", "b.yaml", "--timeout", "null"]).expect(0).says("1 completed");
    // A grace may be 0, and is written with its unit.
    rig.run(["run", "b.yaml", "--set", "interrupt_grace=0"]).expect(2).says("write `0s`");
    rig.run(["run", "b.yaml", "--set", "interrupt_grace=0s"]).expect(0);
    let negative = rig.run(["run", "b.yaml", "--timeout=-1"]);
    assert!(!negative.expect(2).err.contains("write `-1s`"), "{}", negative.err);
    for field in ["timeout: 0", "timeout: 0s", "timeout_seconds: 0"] {
        rig.file("z.yaml", format!("tasks: [{{goal: a, params: {{argv: ['true']}}, {field}}}]"));
        rig.run(["run", "z.yaml"]).expect(2).says("leave it out for no limit of its own");
    }
}

#[test]
fn parameters_that_do_not_fit_fail_their_task_alone_and_name_the_field() {
    let rig = Rig::new();
    rig.file(
        "b.yaml",
        "tasks:\n  - {goal: a, params: {argv: sh}}\n  - {goal: b, params: {argv: ['true']}}\n  - goal: c\n",
    );
    let said = rig.run(["run", "b.yaml"]);
    said.expect(1).says("params.argv must be a list of texts").says("params.argv is empty");
    assert!(
        said.out.contains("1 completed, 2 failed") && !said.out.contains("frame"),
        "{}",
        said.out
    );
}

#[test]
fn a_bad_command_line_is_an_error_of_its_own() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["touch ran"]);
    for args in [
        &["run"][..],
        &["run", "b.yaml", "--nonsense"],
        &["run", "b.yaml", "-j", "0"],
        &["run", "b.yaml", "--isolation", "fork"],
        &["run", "b.yaml", "--timeout", "soon"],
        &["run", "b.yaml", "--timeout", "10ms"],
        &["run", "b.yaml", "--set", "max_iteration=3"],
        &["run", "b.yaml", "b.yaml"],
        &["run", "--agent", "comand", "goal"],
        &["run", "--agent", "command", " "],
        &["rnu", "b.yaml"],
    ] {
        let said = rig.run(args);
        said.expect(2);
        assert!(said.out.is_empty() && said.err.starts_with("error: "), "{args:?} {}", said.err);
        let json = [args, &["--json"]].concat();
        if !args.contains(&"--json") {
            let error = &rig.run(&json).expect(2).json()["error"];
            assert!(error["code"].is_string() && error["message"].is_string(), "{error}");
        }
    }
    assert!(!rig.path("ran").exists() && rig.runs().is_empty());
}
