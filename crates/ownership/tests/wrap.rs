//! `own` without a terminal: exit status, what passes through, and that nothing is left, however program, front or
//! guards end.

#![expect(clippy::disallowed_methods, reason = "a test starts what is tested")]

mod support;
#[path = "support/wrapped.rs"]
mod wrapped;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use support::matrix::{Bystanders, Case, run};
use support::process::{Guards, everybody};
use support::{Identity, kill_both, no_hooks, recorded, undisturbed, wait_for, wait_for_nobody};
use wrapped::{OWN, Wrapped, holds, holds_handle, wait_child};

fn own(args: &[&str]) -> Command {
    let mut command = undisturbed(OWN);
    command.args(args).stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> Output {
    own(args).output().expect("own")
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_exit_status_is_the_programs_own() {
    for code in [0, 1, 3, 124, 255] {
        let ended = output(&["--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(ended.status.code(), Some(code));
        assert_eq!(error_of(&ended), "", "nothing was left, so nothing is said");
    }
    for (name, number) in [("TERM", 15), ("KILL", 9), ("HUP", 1), ("SEGV", 11), ("USR1", 10)] {
        let ended = output(&["--", "sh", "-c", &format!("kill -{name} $$")]);
        assert_eq!(ended.status.signal(), Some(number), "{name}");
        assert!(!ended.status.core_dumped());
    }
}

#[test]
fn what_cannot_be_started_has_its_code_and_says_why() {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("file");
    fs::write(&file, "#!/bin/sh\n").expect("write");
    let file = file.to_str().expect("text");
    for (args, code, said) in [
        (vec!["--", "no-such-program"], 127, "in no directory of PATH; nothing was started"),
        (vec!["--", "/no/such/program"], 127, "No such file"),
        (vec!["--", file], 126, "cannot be executed"),
        (vec![], 125, "which program?"),
        (vec!["--nonsense", "true"], 125, "there is no option --nonsense"),
        (vec!["--grace", "soon", "true"], 125, "--grace needs a time"),
        (vec!["--report", "/no/such/file", "true"], 125, "cannot be written"),
    ] {
        let ended = output(&args);
        assert_eq!(ended.status.code(), Some(code), "{args:?}");
        assert!(error_of(&ended).contains(said), "{args:?}: {}", error_of(&ended));
    }
}

#[test]
fn a_script_without_a_first_line_runs_as_in_a_shell() {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("script");
    fs::write(&file, "echo got $1; exit 4").expect("write");
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("mode");
    let ended = output(&["--", file.to_str().expect("text"), "this"]);
    assert_eq!((ended.status.code(), &*ended.stdout), (Some(4), b"got this\n".as_slice()));
}

/// A report is a line more where a descriptor was handed on: what stands there already stays.
#[test]
fn a_report_to_a_descriptor_cuts_off_nothing() {
    let dir = tempfile::tempdir().expect("dir");
    let log = dir.path().join("log");
    for (name, redirect) in
        [("/dev/fd/3", "3>>"), ("/dev/stdout", ">>"), ("/proc/self/fd/7", "7>>")]
    {
        fs::write(&log, "before\n").expect("write");
        let line =
            format!("exec {OWN} --report {name} -- sh -c 'exit 5' {redirect}{}", log.display());
        let mut command = Command::new("bash");
        let ended = command.args(["-c", &line]).stdin(Stdio::null()).output().expect("bash");
        assert_eq!(ended.status.code(), Some(5), "{}", error_of(&ended));
        let text = fs::read_to_string(&log).expect("read");
        assert!(text.starts_with("before\n{\"schema\""), "{name}: {text}");
    }
    let refused = output(&["--report", "/dev/fd/77", "--", "true"]);
    assert_eq!(refused.status.code(), Some(125), "{}", error_of(&refused));
}

/// As the first process of a pid namespace, in a group that has no number there: `docker run`, `unshare`.
#[test]
fn a_group_of_another_pid_namespace_is_no_obstacle() {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", OWN, "--"]);
    let script =
        "setsid sleep 600 & until grep -q sleep /proc/$!/comm; do sleep 0.01; done; exit 5";
    command.args(["sh", "-c", script]).stdin(Stdio::null());
    let ended = command.output().expect("unshare");
    if error_of(&ended).contains("unshare failed") {
        println!("SKIPPED: no pid namespace can be made here");
        return;
    }
    assert_eq!(ended.status.code(), Some(5), "{}", error_of(&ended));
    assert!(error_of(&ended).contains("ended with it: 1 (sleep)"), "{}", error_of(&ended));
}

/// What a container's engine runs inside, and leaves there, is the first process's to reap.
#[test]
fn the_first_process_of_a_namespace_reaps_what_is_left_to_it() {
    let left = |off: &str| {
        let dir = tempfile::tempdir().expect("dir");
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child", OWN, "--", "sh", "-c"]);
        command.args(["echo $$ > $D/new; mv $D/new $D/program; exec sleep 600"]);
        command.env("D", dir.path()).env("OWNERSHIP_TEST_OFF", off).stdin(Stdio::null());
        let mut unshare = command.spawn().expect("unshare");
        wait_for("the program", || dir.path().join("program").exists().then_some(()));
        let below = |pid: i32| everybody().filter(move |who| who.parent() == Some(pid));
        let front = below(unshare.id().cast_signed()).next().expect("a front");
        let mut sent = Command::new("nsenter");
        sent.args(["--pid", "--target", &front.pid.to_string(), "sh", "-c", "sleep 0.1 & exit 0"]);
        assert!(sent.status().expect("nsenter").success());
        // From here on what it left is the front's.
        let dead = |who: Identity| who.state().is_some_and(|state| state == "Z");
        let others = || below(front.pid).filter(|who| who.name() == "sleep");
        wait_for("it ends", || others().all(dead).then_some(()));
        if off.is_empty() {
            wait_for("it is reaped", || (others().count() == 0).then_some(()));
        }
        let left = others().count();
        front.kill();
        wait_child(&mut unshare);
        left
    };
    let probe =
        Command::new("unshare").args(["--pid", "--fork", "true"]).stderr(Stdio::null()).status();
    if !probe.expect("unshare").success() {
        println!("SKIPPED: no pid namespace can be made here");
        return;
    }
    assert_eq!(left(""), 0);
    if !no_hooks() {
        assert_eq!(left("init"), 1);
    }
}

#[test]
fn a_name_drives_no_terminal() {
    let ended = output(&["--", "no-such\x1b[2J\nprogram\u{202e}"]);
    assert_eq!(ended.status.code(), Some(127));
    let said = error_of(&ended);
    assert!(said.contains("`no-such?[2J?program?`") && said.lines().count() == 1, "{said:?}");
}

/// What a program can see of itself, with and without us.
const MIRROR: &str = r#"
pwd; umask; ulimit -a; nice; echo "$*"; env | grep -v -e ^OWNERSHIP_ -e ^_= | sort
grep -E '^Sig(Blk|Ign)|^NoNewPrivs|^Seccomp:|^Cpus_allowed_list' /proc/self/status
cut -d ' ' -f 6-8 /proc/self/stat; cat /proc/self/oom_score_adj; grep -v ^0:: /proc/self/cgroup
for fd in /proc/self/fd/*; do echo "${fd##*/} $(readlink $fd)"; done | grep -v -e /proc/ -e pipe:
cat <&7
"#;

#[test]
fn everything_that_a_program_finds_passes_through() {
    let dir = tempfile::tempdir().expect("dir");
    let seven = dir.path().join("seven");
    fs::write(&seven, "through 7\n").expect("write");
    let seen = |wrap: &str| {
        let script = format!(
            "cd {dir}; exec 7<{seven} 11>/dev/full 9<&-; umask 027; ulimit -n 300 -c 0 -s 4096; \
             trap '' PIPE USR2 INT; export ODD='a b'; nice -n 3 {wrap} sh -c '{mirror}' x 'y z' '' w",
            dir = dir.path().display(),
            seven = seven.display(),
            mirror = MIRROR.replace('\'', "'\\''"),
        );
        let mut command = undisturbed("setsid");
        command.args(["-w", "bash", "-c", &script]).stdin(Stdio::null()).stderr(Stdio::inherit());
        let ended = command.output().expect("bash");
        assert!(ended.status.success(), "{wrap}: {:?}", ended.status);
        let text = String::from_utf8(ended.stdout).expect("text");
        assert!(text.contains("through 7") && text.contains("/dev/full"), "{text}");
        assert!(text.contains("\n0027\n") && text.contains("ODD=a b"), "{text}");
        // Group and session are numbers of their own in each run: that they are one is what counts.
        text.lines().map(same_group).collect::<Vec<_>>()
    };
    assert_eq!(seen(""), seen(OWN));
}

/// Session, terminal and its foreground group: only whether there is one.
fn same_group(line: &str) -> String {
    let numbers: Vec<Option<i64>> = line.split(' ').map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [Some(_), Some(terminal), Some(foreground)] => format!("session {terminal} {foreground}"),
        // Where a cgroup holds the tree, that is a fact that it can see.
        _ if line.starts_with("0::/") => "0::".to_owned(),
        _ => line.to_owned(),
    }
}

#[test]
fn input_and_output_pass_through() {
    let mut child = own(&["--", "tr", "a-z", "A-Z"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("own");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(b"large letters").expect("write");
    drop(stdin);
    let mut text = String::new();
    child.stdout.take().expect("stdout").read_to_string(&mut text).expect("read");
    assert_eq!(text, "LARGE LETTERS");
    assert!(wait_child(&mut child).success());
}

/// Starts a program that closes its standard output and a locked file, and stays.
fn closer(off: &str) -> (std::process::Child, Identity, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().display();
    let script = format!(
        "exec 9>{path}/lock; flock 9; exec {OWN} -- sh -c 'exec >&- 9>&-; \
         echo $$ > {path}/new; mv {path}/new {path}/closed; exec sleep 600'"
    );
    let mut command = undisturbed("bash");
    command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped());
    let front = command.env("OWNERSHIP_TEST_OFF", off).spawn().expect("own");
    let program = recorded(dir.path(), "closed");
    (front, program, dir)
}

#[test]
fn what_the_program_closes_is_closed() {
    let (mut front, program, dir) = closer("");
    let mut text = String::new();
    front.stdout.take().expect("stdout").read_to_string(&mut text).expect("its end, at once");
    let lock = File::open(dir.path().join("lock")).expect("lock");
    wait_for("the lock", || lock.try_lock().ok());
    assert!(program.lives());
    program.kill();
    assert_eq!(wait_child(&mut front).signal(), Some(9));
}

#[test]
fn without_letting_go_a_lock_stays() {
    if no_hooks() {
        return;
    }
    let (mut front, program, dir) = closer("let-go");
    let own = Identity::of(front.id().cast_signed()).expect("front");
    assert!(holds(own, &dir.path().join("lock")) && !holds(program, &dir.path().join("lock")));
    program.kill();
    wait_child(&mut front);
}

/// What is done to a tree, and how its front ends because of it.
type Blow = fn(&mut Wrapped);

fn kill_guard(wrapped: &Wrapped, keeper: bool) {
    let guards = wrapped.guards();
    let guard = if keeper { guards.keeper.expect("two") } else { guards.supervisor };
    guard.kill();
    wait_for("it is replaced", || (wrapped.guards() != guards).then_some(()));
    assert!(wrapped.is_whole(), "{:?}", wrapped.living());
}

fn kill_front(wrapped: &mut Wrapped) {
    wrapped.signal(Signal::KILL);
    assert_eq!(wrapped.wait().signal(), Some(9));
}

const BLOWS: [(&str, Blow); 14] = [
    ("kill -9 of the front", kill_front),
    ("the program exits 3", |wrapped| {
        File::create(wrapped.path("exit")).expect("exit");
        assert_eq!(wrapped.wait().code(), Some(3));
        assert_eq!(wrapped.living(), Vec::<&str>::new(), "before the front has left");
    }),
    ("kill -9 of the program", |wrapped| {
        wrapped.member("program").kill();
        assert_eq!(wrapped.wait().signal(), Some(9));
        assert_eq!(wrapped.living(), Vec::<&str>::new());
    }),
    ("TERM to the front goes to the program", |wrapped| {
        wrapped.signal(Signal::TERM);
        assert_eq!(wrapped.wait().signal(), Some(15));
    }),
    ("HUP to the front goes to the program", |wrapped| {
        wrapped.signal(Signal::HUP);
        assert_eq!(wrapped.wait().signal(), Some(1));
    }),
    ("a signal that ends the front alone", |wrapped| {
        wrapped.signal(Signal::VTALARM);
        assert_eq!(wrapped.wait().signal(), Some(26));
    }),
    ("kill -9 of the whole group", |wrapped| {
        let group = rustix::process::Pid::from_child(&wrapped.front);
        rustix::process::kill_process_group(group, Signal::KILL).expect("kill");
        assert_eq!(wrapped.wait().signal(), Some(9));
    }),
    ("TERM to guards does nothing", |wrapped| {
        let guards = wrapped.guards();
        for guard in [guards.supervisor, guards.keeper.expect("two")] {
            for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::TSTP] {
                assert!(guard.signal(signal));
            }
        }
        assert!(wrapped.is_whole());
        assert_eq!(wrapped.guards(), guards);
        kill_front(wrapped);
    }),
    ("supervisor -9, then the front", |wrapped| {
        kill_guard(wrapped, false);
        kill_front(wrapped);
    }),
    ("keeper -9, then the front", |wrapped| {
        kill_guard(wrapped, true);
        kill_front(wrapped);
    }),
    ("supervisor -9, keeper -9, then the group", |wrapped| {
        kill_guard(wrapped, false);
        kill_guard(wrapped, true);
        let group = rustix::process::Pid::from_child(&wrapped.front);
        rustix::process::kill_process_group(group, Signal::KILL).expect("kill");
        assert_eq!(wrapped.wait().signal(), Some(9));
    }),
    ("supervisor -9, then the program exits 3", |wrapped| {
        kill_guard(wrapped, false);
        File::create(wrapped.path("exit")).expect("exit");
        assert_eq!(wrapped.wait().code(), Some(3));
        assert_eq!(wrapped.living(), Vec::<&str>::new());
    }),
    ("keeper -9, then the program exits 3", |wrapped| {
        kill_guard(wrapped, true);
        File::create(wrapped.path("exit")).expect("exit");
        assert_eq!(wrapped.wait().code(), Some(3));
        assert_eq!(wrapped.living(), Vec::<&str>::new());
    }),
    ("both guards -9, then the front", |wrapped| {
        let guards = wrapped.guards();
        kill_both(guards.keeper.expect("two"), guards.supervisor);
        wait_for("others are there", || (wrapped.guards() != guards).then_some(()));
        // One without a mark whom nobody holds yet would be nobody's, but for its cgroup.
        wait_for("they hold the tree", || {
            let cleared = wrapped.member("cleared");
            let cell = fs::read_to_string(format!("/proc/{}/cgroup", cleared.pid)).ok()?;
            let held = cell.contains("/ownership-");
            (held || holds_handle(wrapped.guards().supervisor, cleared)).then_some(())
        });
        assert!(wrapped.is_whole(), "{:?}", wrapped.living());
        kill_front(wrapped);
    }),
];

#[test]
fn nothing_is_left_however_it_ends() {
    let bystanders = Bystanders::start();
    let case = |(name, blow): &(&'static str, Blow)| {
        let (bystanders, blow) = (&bystanders, *blow);
        Case::new(name, move || {
            let mut wrapped = Wrapped::start("");
            blow(&mut wrapped);
            wait_for_nobody(|| wrapped.left());
            bystanders.assert_untouched();
        })
    };
    run(BLOWS.iter().map(case).collect());
}

/// What the rows above show would be seen.
#[test]
fn without_own_the_same_tree_is_left() {
    let mut bare = Wrapped::bare();
    bare.signal(Signal::KILL);
    bare.wait();
    // The kernel hangs up a group in which somebody is stopped, once nobody can let it go on.
    wait_for("its group is gone", || (!bare.living().contains(&"launcher")).then_some(()));
    let living = bare.living();
    assert!(
        ["session", "daemon", "cleared"].iter().all(|name| living.contains(name)),
        "{living:?}"
    );
}

#[test]
fn without_the_fronts_pidfd_the_tree_outlives_it() {
    if no_hooks() {
        return;
    }
    let mut deaf = Wrapped::start("pidfd");
    let mut other = Wrapped::start("");
    kill_front(&mut deaf);
    kill_front(&mut other);
    wait_for_nobody(|| other.left());
    assert!(deaf.is_whole(), "{:?}", deaf.living());
}

#[test]
fn what_was_ended_is_said_in_one_line_and_in_json() {
    let script = "sleep 600 & setsid sleep 600 & sleep 0.1; exit 5";
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("ended.json");
    let json = file.to_str().expect("text");
    let ended = output(&["--report", json, "--", "sh", "-c", script]);
    assert_eq!(ended.status.code(), Some(5));
    let said = error_of(&ended);
    assert!(said.starts_with("own: sh exited 5; ended with it: 2 (sleep ×2)"), "{said}");
    assert_eq!(said.lines().count(), 1);
    let json = fs::read_to_string(file).expect("json");
    assert!(json.contains(r#""schema":"delegate.own/1""#) && json.ends_with("}\n"), "{json}");
    assert!(json.contains(r#""ended_count":2"#) && json.contains(r#""code":5"#), "{json}");
    let quiet = output(&["--quiet", "--", "sh", "-c", script]);
    assert_eq!((quiet.status.code(), &*error_of(&quiet)), (Some(5), ""));
}

/// A reader of standard error that does not read must not keep the front.
#[test]
fn nobody_who_does_not_read_keeps_the_front() {
    let script = "sleep 600 & head -c 65536 /dev/zero >&2; exit 6";
    let mut child = own(&["--", "sh", "-c", script]).stderr(Stdio::piped()).spawn().expect("own");
    assert_eq!(wait_child(&mut child).code(), Some(6));
}

/// A group that was made outside of a pid namespace has no number inside.
#[test]
fn it_runs_in_a_pid_namespace_whose_group_is_of_outside() {
    for (script, code) in [
        ("exec $0 -- sh -c 'exit 7'", 7),
        // The front is not the first process in there.
        ("$0 -- sh -c 'exit 8'; exit $?", 8),
        (
            "$0 -- sh -c '(setsid sleep 600 &) ; sleep 0.1; exit 9'; c=$?; ! pgrep -x sleep && exit $c",
            9,
        ),
    ] {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script, OWN]);
        let ended = command.stdin(Stdio::null()).output().expect("unshare");
        let said = error_of(&ended);
        if said.contains("unshare failed") {
            return skipped("A PID NAMESPACE CANNOT BE MADE HERE");
        }
        assert_eq!(ended.status.code(), Some(code), "{script}: {said}");
    }
}

#[expect(clippy::print_stderr, reason = "skips loudly")]
fn skipped(why: &str) {
    eprintln!("SKIPPED: {why}");
}

/// A script that leads its session, and in its group a front and a program that stand still: nobody there could let them
/// go on. When the last link of such a group to its session goes the kernel hangs all of it up, and one guard that dies
/// must not be the last.
#[test]
fn one_guard_that_dies_beside_a_stopped_front_hangs_nobody_up() {
    const SCRIPT: &str = r#"
        trap 'echo > "$DIR/hung-up"' HUP
        "$OWN" --quiet -- sh -c 'echo $$ > "$DIR/new"; mv "$DIR/new" "$DIR/program"
            until test -e "$DIR/go"; do sleep 0.02; done; exit 7'
        echo $? > "$DIR/code"
    "#;
    for which in ["keeper", "supervisor"] {
        let dir = tempfile::tempdir().expect("dir");
        let mut command = undisturbed("setsid");
        command.args(["--wait", "sh", "-c", SCRIPT]).env("DIR", dir.path()).env("OWN", OWN);
        let mut script = command.stdin(Stdio::null()).spawn().expect("setsid");
        let program = recorded(dir.path(), "program");
        let guards = || Guards::of(program).filter(|guards| guards.keeper.is_some());
        let before = wait_for("guards", guards);
        let keeper = before.keeper.expect("a keeper");
        let front = keeper.parent().and_then(Identity::of).expect("a front");
        for who in [program, front] {
            assert!(who.signal(Signal::STOP));
            wait_for("it stands still", || (who.state()? == "T").then_some(()));
        }
        if which == "keeper" {
            keeper.kill()
        } else {
            before.supervisor.kill()
        }
        wait_for("both are there again", || guards().filter(|now| *now != before));
        assert!(program.signal(Signal::CONT));
        // The front stops once more where it is told of the stop only now. One that stands when the program ends would be
        // hung up by the kernel, and rightly.
        wait_for("it waits for its program", || {
            let state = front.state()?;
            if state == "T" {
                assert!(front.signal(Signal::CONT));
            }
            (state == "S").then_some(())
        });
        fs::write(dir.path().join("go"), "").expect("write");
        assert!(script.wait().expect("its end").success(), "{which}");
        assert!(!dir.path().join("hung-up").exists(), "{which}");
        assert_eq!(fs::read_to_string(dir.path().join("code")).expect("read"), "7\n", "{which}");
    }
}
