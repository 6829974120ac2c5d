//! Help, manual pages, completion: they speak of what there is, and of nothing else.

use std::collections::BTreeSet;

use crate::rig::{DELEGATE, Rig, Said};

/// Verbs that people see.
const VERBS: [&str; 19] = [
    "resume",
    "rerun",
    "run",
    "runs",
    "session",
    "sessions",
    "show",
    "logs",
    "ps",
    "log",
    "janitor",
    "doctor",
    "keys",
    "trust",
    "own",
    "shim",
    "config",
    "completion",
    "man",
];

/// Verbs that are planned, and must not be named before they exist.
const PLANNED: [&str; 5] = ["report", "mcp", "serve", "init", "attach"];

#[test]
fn every_verb_has_a_help_with_examples_that_parse() {
    let rig = Rig::new();
    let whole = rig.run(["--help"]);
    whole.expect(0).is_plain().says("Exit codes:").says("Examples:");
    for verb in VERBS {
        assert!(whole.out.lines().any(|line| line.trim_start().starts_with(verb)), "{verb}");
        let help = rig.run([verb, "--help"]);
        help.expect(0).is_plain().says("Examples:").says("--state-dir");
        assert_eq!(rig.run(["help", verb]).expect(0).out, help.out);
    }
    rig.run(["--version"]).expect(0).says(env!("CARGO_PKG_VERSION"));
}

#[test]
fn nothing_names_a_verb_that_does_not_exist() {
    let rig = Rig::new();
    rig.batch("bad.yaml", &["exit 3"]);
    rig.batch("good.yaml", &["true"]);
    let mut texts: Vec<Said> = vec![rig.run(["--help"]), rig.run(["man"]), rig.run(["exec", "x"])];
    for verb in VERBS {
        texts.extend([rig.run([verb, "--help"]), rig.run(["man", verb])]);
    }
    for args in [
        &["run", "bad.yaml"][..],
        &["run", "good.yaml"],
        &["run", "none.yaml"],
        &["run", "good.yaml", "--explain"],
        &["runs"],
        &["show", "latest"],
        &["show", "nosuch"],
        &["logs", "latest"],
        &["frobnicate"],
    ] {
        texts.push(rig.run(args));
    }
    for said in texts {
        let text = format!("{}\n{}", said.out, said.err);
        let words: BTreeSet<&str> = text
            .split(|c: char| !c.is_alphanumeric() && !"-_$<>".contains(c))
            .collect::<Vec<_>>()
            .windows(2)
            .filter(|pair| pair[0] == "delegate")
            .map(|pair| pair[1])
            .collect();
        for planned in PLANNED {
            assert!(!words.contains(planned), "`delegate {planned}` is named in:\n{text}");
        }
    }
}

#[test]
fn exec_is_answered_with_the_right_word() {
    let rig = Rig::new();
    let said = rig.run(["exec", "touch", "ran", "--json-like"]);
    said.expect(2).says("there is no verb `exec`").says("did you mean `own` or `run`?");
    assert!(!rig.path("ran").exists());
    rig.run(["rnu", "b.yaml"]).expect(2).says("run");
}

#[test]
fn there_is_a_manual_page_for_the_whole_and_for_each_verb() {
    let rig = Rig::new();
    for (args, title) in [(&["man"][..], ".TH delegate 1"), (&["man", "run"], ".TH delegate-run 1")]
    {
        rig.run(args).expect(0).says(title).says(".SH");
    }
    for verb in VERBS {
        rig.run(["man", verb]).expect(0);
    }
    rig.run(["man", "serve"]).expect(2).says("there is no verb `serve`");
}

#[test]
fn every_shell_has_a_completion_script_that_it_takes() {
    let rig = Rig::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = rig.run(["completion", shell]).expect(0).out.clone();
        assert!(script.contains("delegate"), "{script}");
        rig.file(shell, script);
        // A shell that is not installed (127) is not tried; bash always is.
        let output = rig.program(shell).args(["-n", shell]).output().unwrap();
        if shell == "bash" || output.status.code() != Some(127) {
            Said::of(output).expect(0);
        }
    }
    rig.run(["completion", "tcsh"]).expect(2);
}

/// What bash would offer for the last of these words.
fn offers(rig: &Rig, words: &[&str]) -> Vec<String> {
    let script = r#"source <("$0" completion bash)
        complete -p delegate >/dev/null || exit 9
        function=$(complete -p delegate | sed 's/.*-F \([^ ]*\).*/\1/')
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
        COMP_TYPE=9; COMP_KEY=9
        "$function" delegate "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}" 2>/dev/null
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut bash = rig.program("bash");
    bash.args(["-c", script, DELEGATE]).args(words);
    // The script calls the command by its name.
    let folder = std::path::Path::new(DELEGATE).parent().unwrap().display().to_string();
    bash.env("PATH", format!("{folder}:{}", std::env::var("PATH").unwrap()));
    let said = Said::of(bash.output().unwrap());
    said.expect(0).out.lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn completion_knows_verbs_and_run_ids() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["true"]);
    let id = rig.run(["run", "b.yaml", "--json"]).json()["run_id"].as_str().unwrap().to_owned();
    let verbs = offers(&rig, &["delegate", "ru"]);
    assert!(verbs.contains(&"run".to_owned()) && verbs.contains(&"runs".to_owned()), "{verbs:?}");
    let ids = offers(&rig, &["delegate", "show", ""]);
    assert!(ids.contains(&"latest".to_owned()), "{ids:?}");
    assert!(
        ids.iter().any(|offered| offered.len() >= 4 && id.starts_with(offered.as_str())),
        "{ids:?}"
    );
    assert!(
        offers(&rig, &["delegate", "logs", &id[..2]])
            .iter()
            .any(|offered| id.starts_with(offered.as_str()))
    );
}
