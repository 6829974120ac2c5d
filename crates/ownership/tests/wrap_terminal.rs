//! `own` at a terminal: a person at a shell sees the same with and without it, step by step, and a window that is
//! closed leaves nothing.

#![expect(clippy::disallowed_methods, reason = "a test starts what is tested")]

mod support;
#[path = "support/terminal.rs"]
mod terminal;

use std::panic::catch_unwind;
use std::path::Path;
use std::process::{Child, Command};

use support::matrix::{Bystanders, Case, run};
use support::{Identity, no_hooks, recorded, undisturbed, wait_for, wait_for_nobody};
use terminal::Step::{Exists, Key, Line, See, Size, Stands};
use terminal::{CTRL_BACKSLASH, CTRL_C, CTRL_D, CTRL_Z, PROMPT, Step, Terminal};

const OWN: &str = env!("CARGO_BIN_EXE_own");

/// After the shell's prompt, that of the next line.
const SCENARIOS: [(&str, &[Step]); 29] = [
    ("exit code", &[Line("$W sh -c 'exit 3'; echo rc=$?"), See("rc=3\n"), See(PROMPT)]),
    (
        "killed by TERM",
        &[Line("$W sh -c 'kill -TERM $$'; echo rc=$?"), See("rc=143\n"), See(PROMPT)],
    ),
    (
        "killed by KILL",
        &[Line("$W sh -c 'kill -KILL $$'; echo rc=$?"), See("rc=137\n"), See(PROMPT)],
    ),
    ("a fault", &[Line("$W sh -c 'kill -SEGV $$'; echo rc=$?"), See("rc=139\n"), See(PROMPT)]),
    (
        "Ctrl-C",
        &[
            Line("$W sh -c 'echo ready; exec sleep 600'"),
            See("ready\n"),
            Key(CTRL_C),
            See(PROMPT),
            Line("echo rc=$?"),
            See("rc=130\n"),
            See(PROMPT),
        ],
    ),
    (
        "Ctrl-C ends a loop of the shell",
        &[
            Line("for i in 1 2 3; do $W sh -c 'echo ready; exec sleep 600'; done"),
            See("ready\n"),
            Key(CTRL_C),
            See(PROMPT),
            Line("echo rc=$?"),
            See("rc=130\n"),
            See(PROMPT),
        ],
    ),
    (
        "a handler of Ctrl-C is called once",
        &[
            Line(
                "$W perl -e '$| = 1; $SIG{INT} = sub { print \"caught\\n\"; $n++ }; print \"ready\\n\"; select undef, undef, undef, 0.02 until $n; exit 7'; echo rc=$?",
            ),
            See("ready\n"),
            Key(CTRL_C),
            See("caught\n"),
            See("rc=7\n"),
            See(PROMPT),
        ],
    ),
    (
        "Ctrl-\\",
        &[
            Line("$W sh -c 'echo ready; exec sleep 600'"),
            See("ready\n"),
            Key(CTRL_BACKSLASH),
            See(PROMPT),
            Line("echo rc=$?"),
            See("rc=131\n"),
            See(PROMPT),
        ],
    ),
    (
        "Ctrl-Z, jobs, fg",
        &[
            Line("$W sh -c 'echo ready; read x; echo got $x'"),
            See("ready\n"),
            Key(CTRL_Z),
            See("Stopped"),
            See(PROMPT),
            Line("echo rc=$?"),
            See("rc=148\n"),
            See(PROMPT),
            Line("jobs"),
            See("Stopped"),
            See(PROMPT),
            Line("fg"),
            See("read x"),
            Stands("read x", false),
            Line("hello"),
            See("got hello\n"),
            See(PROMPT),
        ],
    ),
    (
        "Ctrl-Z at once",
        &[
            Line("$W perl -e 'print \"got \" . <STDIN>'"),
            Exists("STDIN"),
            Key(CTRL_Z),
            See("Stopped"),
            See(PROMPT),
            Line("fg"),
            See("STDIN>'\n"),
            Stands("STDIN", false),
            Line("hello"),
            See("got hello\n"),
            See(PROMPT),
        ],
    ),
    (
        "Ctrl-Z, bg",
        &[
            Line(
                "$W perl -e '$| = 1; print \"ready\\n\"; select undef, undef, undef, 0.02 until -e \"go\"; print \"done\\n\"'",
            ),
            See("ready\n"),
            Key(CTRL_Z),
            See("Stopped"),
            See(PROMPT),
            Line("bg"),
            See("&"),
            See(PROMPT),
            Line("touch go; wait; echo rc=$?"),
            See("done\n"),
            See("rc=0\n"),
            See(PROMPT),
        ],
    ),
    (
        "a catcher of Ctrl-Z, twice",
        &[
            Line(
                "$W perl -e '$| = 1; $SIG{TSTP} = sub { print \"tidy\\n\"; kill STOP => $$; print \"back\\n\" }; print \"ready\\n\"; select undef, undef, undef, 0.02 until -e \"go\"'",
            ),
            See("ready\n"),
            Key(CTRL_Z),
            See("tidy\n"),
            See("Stopped"),
            See(PROMPT),
            Line("fg"),
            See("back\n"),
            Key(CTRL_Z),
            See("tidy\n"),
            See("Stopped"),
            See(PROMPT),
            Line("touch go; fg"),
            See("back\n"),
            See(PROMPT),
        ],
    ),
    (
        "it stops itself",
        &[
            Line("$W sh -c 'kill -STOP $$; echo on; exit 4'"),
            See("Stopped"),
            See(PROMPT),
            Line("fg; echo rc=$?"),
            See("on\n"),
            See("rc=4\n"),
            See(PROMPT),
        ],
    ),
    (
        "Ctrl-Z, kill -CONT of the job",
        &[
            Line(
                "$W perl -e '$| = 1; print \"ready\\n\"; select undef, undef, undef, 0.02 until -e \"go\"; print \"done\\n\"'",
            ),
            See("ready\n"),
            Key(CTRL_Z),
            See("Stopped"),
            See(PROMPT),
            Line("touch go; kill -CONT %1; wait; echo rc=$?"),
            See("done\n"),
            See("rc=0\n"),
            See(PROMPT),
        ],
    ),
    (
        "the window's size",
        &[
            Line(
                "$W bash -c 'trap \"stty size; exit 0\" WINCH; echo ready; while :; do sleep 0.02; done'",
            ),
            See("ready\n"),
            Size(33, 177),
            See("33 177\n"),
            See(PROMPT),
        ],
    ),
    (
        "reads the keyboard",
        &[
            Line("$W cat; echo rc=$?"),
            Stands("cat", false),
            Line("some words"),
            See("some words\nsome words\n"),
            Key(CTRL_D),
            See("rc=0\n"),
            See(PROMPT),
        ],
    ),
    (
        "a background reader is stopped",
        &[
            Line("$W cat & until [ \"$(jobs -s)\" ]; do sleep 0.01; done"),
            See("Stopped"),
            See(PROMPT),
            Line("fg"),
            See("cat\n"),
            Stands("cat", false),
            Line("some words"),
            See("some words\nsome words\n"),
            Key(CTRL_D),
            See(PROMPT),
        ],
    ),
    (
        "a background writer is stopped",
        &[
            Line(
                "stty tostop; $W sh -c 'echo words' & until [ \"$(jobs -s)\" ]; do sleep 0.01; done",
            ),
            See("Stopped"),
            See(PROMPT),
            Line("fg"),
            See("words'\nwords\n"),
            See(PROMPT),
            Line("stty -tostop"),
            See(PROMPT),
        ],
    ),
    (
        "kill %1",
        &[
            Line("$W sh -c 'exec sleep 600' & true"),
            See(PROMPT),
            Stands("sleep 600", false),
            Line("kill %1; until [ -z \"$(jobs -r)\" ]; do sleep 0.01; done"),
            See("Terminated"),
            See(PROMPT),
        ],
    ),
    (
        "kill -STOP %1, bg, kill -INT %1",
        &[
            Line("$W sleep 600 & true"),
            See(PROMPT),
            Stands("sleep 600", false),
            Line("kill -STOP %1; until [ \"$(jobs -s)\" ]; do sleep 0.01; done"),
            See("Stopped"),
            See(PROMPT),
            Line("jobs -s"),
            See("Stopped"),
            See(PROMPT),
            Line("bg"),
            See("&\n"),
            See(PROMPT),
            Line("kill -INT %1; until [ -z \"$(jobs -r)\" ]; do sleep 0.01; done"),
            See("Interrupt"),
            See(PROMPT),
        ],
    ),
    (
        "pipes",
        &[
            Line("$W echo abc | $W tr a-c x-z | $W cat; echo ${PIPESTATUS[@]}"),
            See("xyz\n"),
            See("0 0 0\n"),
            See(PROMPT),
        ],
    ),
    (
        "Ctrl-Z and fg of a pipe",
        &[
            Line("$W sh -c 'echo ready >&2; read x; echo got $x' | $W cat"),
            See("ready\n"),
            Key(CTRL_Z),
            See("Stopped"),
            See(PROMPT),
            Stands("read x", true),
            Line("fg"),
            See("cat\n"),
            Stands("read x", false),
            Line("it"),
            See("got it\n"),
            See(PROMPT),
        ],
    ),
    (
        "a reader that closes early",
        &[
            Line("$W yes | $W head -n 1; echo ${PIPESTATUS[@]}"),
            See("y\n"),
            See("141 0\n"),
            See(PROMPT),
        ],
    ),
    (
        "a shell with jobs inside",
        &[
            Line("$W bash --norc --noprofile --noediting -i"),
            See(PROMPT),
            Line("sh -c 'echo ready; exec sleep 600'"),
            See("ready\n"),
            Key(CTRL_Z),
            See("Stopped"),
            See(PROMPT),
            Line("jobs"),
            See("Stopped"),
            See(PROMPT),
            Line("kill %1; fg"),
            See("sleep 600"),
            See(PROMPT),
            Line("suspend"),
            See("Stopped"),
            See(PROMPT),
            Line("fg"),
            See("-i\n"),
            See(PROMPT),
            Line("exit 9"),
            See(PROMPT),
            Line("echo rc=$?"),
            See("rc=9\n"),
            See(PROMPT),
        ],
    ),
    (
        "it is in the foreground",
        &[
            Line(
                "$W sh -c 'read -r a b c d group session tty front rest < /proc/$$/stat; [ $group = $front ] && echo front'",
            ),
            See("front\n"),
            See(PROMPT),
        ],
    ),
    (
        "it may set the terminal",
        &[
            Line("$W stty -echo; $W stty -a | grep -o -e ' -echo '; $W stty echo"),
            See("-echo"),
            See(PROMPT),
        ],
    ),
    (
        "a list in one job",
        &[
            Line("(echo one; $W sh -c 'echo ready; read x; echo got $x'; echo two)"),
            See("ready\n"),
            Key(CTRL_Z),
            See("Stopped"),
            See(PROMPT),
            Stands("read x", true),
            Line("fg"),
            See("two )\n"),
            Stands("read x", false),
            Line("it"),
            See("got it\n"),
            See("two\n"),
            See(PROMPT),
        ],
    ),
    (
        "a pager",
        &[
            Line("seq 200 | TERM=xterm LESS= $W less -X -P 'page '"),
            See("\x1b[7mpage"),
            Key(b'G'),
            See("200\n"),
            See("\x1b[7mpage"),
            Key(CTRL_Z),
            See("Stopped"),
            See(PROMPT),
            Line("fg"),
            See("less"),
            See("\x1b[7mpage"),
            Key(b'q'),
            See(PROMPT),
            Line("echo rc=$?"),
            See("rc=0\n"),
            See(PROMPT),
        ],
    ),
    (
        "an editor",
        &[
            Line("TERM=xterm $W vim -u NONE -N -i NONE file"),
            See("\x1b[?1049h"),
            See("~"),
            Key(b'i'),
            See("INSERT"),
            Line("typed"),
            See("typed"),
            Key(27),
            Line(":wq"),
            See(PROMPT),
            Line("cat file; echo rc=$?"),
            See("typed\n"),
            See("rc=0\n"),
            See(PROMPT),
        ],
    ),
];

/// What a shell shows; numbers of jobs' processes are of each run's own.
fn played(wrap: &str, steps: &[Step]) -> String {
    let dir = tempfile::tempdir().expect("dir");
    let mut terminal = Terminal::shell(wrap, dir.path());
    steps.iter().for_each(|step| terminal.play(*step));
    let screen = terminal.screen();
    // What a full-screen program draws, and in how many steps, is a matter of its own.
    let lines = screen.lines().filter(|line| !line.contains('\x1b')).map(without_number);
    lines.collect::<Vec<_>>().join("\n")
}

/// `[1] 4711` as `[1] N`.
fn without_number(line: &str) -> String {
    match line.split_once("] ") {
        Some((head, rest)) if head.ends_with(|c: char| c.is_ascii_digit()) => {
            let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            format!("{head}] {rest}")
        }
        _ => line.to_owned(),
    }
}

#[test]
fn a_person_at_a_shell_sees_the_same() {
    let case = |(name, steps): &(&'static str, &'static [Step])| {
        let steps = *steps;
        Case::new(name, move || {
            let bare = played("", steps);
            let wrapped = catch_unwind(|| played(&format!("{OWN} --"), steps));
            let wrapped = wrapped.unwrap_or_else(|words| {
                panic!(
                    "without it all is well; {}",
                    words.downcast_ref::<String>().map_or("", |words| words)
                )
            });
            assert!(bare == wrapped, "without:\n{bare}\nwith:\n{wrapped}");
        })
    };
    run(SCENARIOS.iter().map(case).collect());
}

/// Without a shell nobody could let it go on, and so the kernel does not stop it (man 7 credentials).
#[test]
fn without_a_shell_a_stop_is_no_stop() {
    let played = |wrap: &[&str]| {
        let mut command = undisturbed("setsid");
        command.arg("--ctty").args(wrap).args([
            "sh",
            "-c",
            "echo ready; read x; echo got $x; exit 5",
        ]);
        let mut terminal = Terminal::start(command);
        for step in [See("ready\n"), Key(CTRL_Z), See("^Z"), Line("words"), See("got words\n")] {
            terminal.play(step);
        }
        let code = wait_for("its end", || terminal.program().try_wait().expect("wait")).code();
        (terminal.screen(), code)
    };
    let bare = played(&[]);
    assert_eq!(bare.1, Some(5));
    assert_eq!(bare, played(&[OWN, "--"]));
}

/// Ignores what a closed window sends, as does one that has left the session.
const STAYS: &str =
    "trap '' HUP; export D=$TREE_DIR; note='echo $$ > $D/$0.new; mv $D/$0.new $D/$0;'
setsid sh -c \"$note exec sleep 600\" away &
sh -c \"$note exec sleep 600\" near &
echo $$ > $D/program.new; mv $D/program.new $D/program; echo ready; wait";

/// Starts it in a terminal, closes that, and gives who was there.
fn closed(program: Command, dir: &Path, line: Option<&str>) -> (Child, [Identity; 3]) {
    let mut terminal = Terminal::start(program);
    if let Some(line) = line {
        terminal.see(PROMPT);
        terminal.line(line);
    }
    let members = ["program", "away", "near"].map(|name| recorded(dir, name));
    (terminal.close(), members)
}

#[test]
fn a_closed_window_leaves_nothing() {
    let bystanders = Bystanders::start();
    let run = |own: Option<&str>, by_shell: bool| {
        let dir = tempfile::tempdir().expect("dir");
        let mut command = undisturbed("setsid");
        command.arg("--ctty").env("TREE_DIR", dir.path()).env("STAYS", STAYS).env("PS1", PROMPT);
        let own = own.map(|own| format!("{own} --grace 300ms --"));
        let line = match by_shell {
            true => {
                command.args(["bash", "--norc", "--noprofile", "--noediting", "-i"]);
                Some(format!("{} sh -c \"$STAYS\"", own.unwrap_or_default()))
            }
            false => {
                let own = own.unwrap_or_default();
                command.args(own.split_whitespace()).args(["sh", "-c", STAYS]);
                None
            }
        };
        let (mut leader, members) = closed(command, dir.path(), line.as_deref());
        let left = move || members.into_iter().filter(|who| who.lives()).collect::<Vec<_>>();
        wait_for("the leader's end", || leader.try_wait().expect("wait"));
        (left, members)
    };
    for by_shell in [true, false] {
        let (left, _) = run(Some(OWN), by_shell);
        wait_for_nobody(left);
        bystanders.assert_untouched();
    }
    // They would have stayed, and do not by themselves.
    let (left, members) = run(None, true);
    assert_eq!(left(), members);
    members.iter().for_each(|who| who.kill());
}

/// What a shell shows of a stop that the front does not take part in.
#[test]
fn without_the_front_s_part_a_shell_does_not_see_a_stop() {
    if no_hooks() {
        return;
    }
    let played = |off: &str| {
        let dir = tempfile::tempdir().expect("dir");
        let mut terminal =
            Terminal::shell(&format!("env OWNERSHIP_TEST_OFF={off} {OWN} --"), dir.path());
        let steps =
            [Line("$W sh -c 'echo ready; read x; echo got $x'"), See("ready\n"), Key(CTRL_Z)];
        steps.into_iter().for_each(|step| terminal.play(step));
        terminal.play(Stands("read x", true));
        terminal
    };
    let (without, mut with) = (played("job"), played(""));
    with.see("Stopped");
    assert!(!without.screen().contains("Stopped"), "{}", without.screen());
}

/// A stopped job whose shell is killed: the kernel ends it, and so do we, though the guards stand in its session.
#[test]
fn a_stopped_job_does_not_outlive_its_shell() {
    let stopped = |wrap: &str| {
        let dir = tempfile::tempdir().expect("dir");
        let mut terminal = Terminal::shell(wrap, dir.path());
        let line = "$W sh -c 'echo $$ > new; mv new program; echo ready; read x; echo got $x'";
        for step in [Line(line), See("ready\n"), Key(CTRL_Z), See("Stopped"), See(PROMPT)] {
            terminal.play(step);
        }
        let program = recorded(dir.path(), "program");
        terminal.program().kill().expect("kill");
        terminal.program().wait().expect("wait");
        (program, terminal)
    };
    for wrap in ["", &format!("{OWN} --")] {
        let (program, _terminal) = stopped(wrap);
        wait_for_nobody(|| Some(program).filter(|who| who.lives()).into_iter().collect());
    }
    if no_hooks() {
        return;
    }
    let (without, _first) = stopped(&format!("env OWNERSHIP_TEST_OFF=wake {OWN} --"));
    let (with, _second) = stopped(&format!("{OWN} --"));
    wait_for_nobody(|| Some(with).filter(|who| who.lives()).into_iter().collect());
    assert_eq!(without.state().as_deref(), Some("T"));
    without.kill();
}
