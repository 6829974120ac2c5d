//! `delegate own` and `delegate shim`: exit codes, what is written down, and scripts that are made, found and removed.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::rig::{DELEGATE, Rig, Running, Said};
use crate::support::wait_for;

#[test]
fn a_program_ends_as_without_own_and_leaves_nothing() {
    let rig = Rig::new();
    let said = rig.run([
        "own",
        "--",
        "sh",
        "-c",
        "echo out; sleep 600 & setsid sleep 600 & sleep 0.1; exit 7",
    ]);
    assert_eq!((said.code, &*said.out), (Some(7), "out\n"));
    assert!(said.err.contains("own: sh exited 7; ended with it: 2 (sleep ×2)"), "{}", said.err);
    rig.wait_for_nobody();
    assert_eq!(rig.run(["wrap", "true"]).code, Some(0));
}

#[test]
fn our_own_failures_have_codes_that_programs_seldom_have() {
    let rig = Rig::new();
    for (args, code) in [
        (&["own", "--", "no-such-program"][..], 127),
        (&["own", "--", "/etc/passwd"], 126),
        (&["own"], 125),
        (&["own", "--grace", "soon", "true"], 125),
        (&["own", "--report", "/no/such/dir/x", "true"], 125),
    ] {
        let said = rig.run(args);
        assert_eq!(said.code, Some(code), "{args:?}: {}", said.err);
        assert!(!said.err.is_empty());
    }
}

#[test]
fn what_is_run_is_in_the_ledger_and_in_a_report() {
    let rig = Rig::new();
    let report = rig.path("report.json");
    let report = report.to_str().unwrap();
    let script = "sleep 600 & sleep 0.1; exit 3";
    assert_eq!(rig.run(["own", "-q", "--report", report, "--", "sh", "-c", script]).code, Some(3));
    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!(report["status"]["code"], 3);
    assert_eq!((&report["ended_count"], &report["ended"][0]["name"]), (&1.into(), &"sleep".into()));
    let ledger = rig.path("state/ledger.sqlite");
    let row = &ownership::ledger::history(&ledger, 1).unwrap()[0];
    assert_eq!((&*row.purpose, &*row.executable), ("own", "sh"));
    assert_eq!(row.end, Some(ownership::ledger::End::Exited(ownership::ExitStatus::Code(3))));
}

/// A person's own rules add to those that ship; what is wrong in them is said with its place.
#[test]
fn rules_are_listed_added_and_refused() {
    let rig = Rig::new();
    let config = rig.path("config");
    let own = |args: &[&str]| {
        let mut command = rig.program(DELEGATE);
        command.arg("own").args(args).env("XDG_CONFIG_HOME", &config);
        Said::of(command.output().unwrap())
    };
    assert!(own(&["--list-rules"]).out.contains("[tmux]\nprogram  tmux\n"));
    let refused = own(&["--keep", "mine", "--", "true"]);
    assert_eq!(refused.code, Some(125));
    assert!(refused.err.contains("there is no rule \"mine\""), "{}", refused.err);
    let rules = "[mine]\nprogram  node\nneeds    session socket\nwhy      an index\n";
    rig.file("config/delegate/keep.rules", rules);
    let listed = own(&["--list-rules"]).out;
    assert!(listed.contains("[mine]\n") && listed.contains("[ssh-agent]"), "{listed}");
    assert_eq!(own(&["--keep", "mine,tmux", "--", "true"]).code, Some(0));
    rig.file("config/delegate/keep.rules", "[mine]\nprogram node\nwhy x\n");
    let refused = own(&["--list-rules"]);
    assert_eq!(refused.code, Some(125));
    assert!(refused.err.contains("keep.rules, line 1: [mine] would keep by name alone"));
}

/// A tmux server that a rule has kept, its front killed: `ps` says why it lives, and the janitor leaves it alone with
/// what stands below it. Without the rule it is gone.
#[test]
fn what_was_kept_is_accounted_for() {
    let tmux = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|dir| dir.join("tmux").exists());
    if !tmux {
        eprintln!("SKIPPED: TMUX IS NOT INSTALLED HERE");
        return;
    }
    for kept in [true, false] {
        let rig = Rig::new();
        let socket = rig.path("tmux").display().to_string();
        let run = |args: &[&str]| {
            let mut command = std::process::Command::new("tmux");
            Said::of(command.args(["-S", &socket]).args(args).output().unwrap())
        };
        let script = format!(
            "tmux -S {socket} -f /dev/null new-session -d 'exec sleep 600'; touch started; \
             exec sleep 600"
        );
        let keep = if kept { &["--keep", "tmux"][..] } else { &[] };
        let mut command = rig.program(DELEGATE);
        command.arg("own").args(keep).args(["--grace", "1s", "--", "sh", "-c", &script]);
        let mut front = command.current_dir(rig.path("")).env_remove("TMUX").spawn().unwrap();
        wait_for("the server", || rig.path("started").exists().then_some(()));
        let server = run(&["display-message", "-p", "#{pid}"]).out.trim().to_owned();
        front.kill().unwrap();
        front.wait().unwrap();
        wait_for("the guards are gone", || {
            let said = rig.run(["ps", "--json"]).out;
            (!said.contains("\"guarded\"") && !said.contains("\"degraded\"")).then_some(())
        });
        let listed = rig.run(["ps"]).out;
        assert_eq!(run(&["list-sessions"]).code == Some(0), kept, "{listed}");
        assert_eq!(listed.contains("exempt: --keep tmux"), kept, "{listed}");
        assert!(!listed.contains("left-over"), "{listed}");
        let found = rig.run(["janitor", "--kill"]);
        assert_eq!(run(&["list-sessions"]).code == Some(0), kept, "{}{}", found.out, found.err);
        assert!(!server.is_empty());
        run(&["kill-server"]);
    }
}

#[test]
fn a_containment_is_kept_or_refused() {
    let rig = Rig::new();
    let seen = |tier: &str| {
        let said = rig.run(["own", "--containment", tier, "--", "cat", "/proc/self/cgroup"]);
        (said.code, said.out.contains("/ownership-"))
    };
    assert_eq!(seen("subreaper"), (Some(0), false));
    let can = ownership::Machine::look().refusal(ownership::containment::Tier::Cgroup).is_none();
    let (code, celled) = seen("cgroup");
    assert_eq!((code, celled), if can { (Some(0), true) } else { (Some(125), false) });
    assert_eq!(rig.run(["own", "--containment", "strong", "true"]).code, Some(125));
    let file = rig.batch("b.yaml", &["true"]);
    let dry = |tier: &str| rig.run(["run", file, "--containment", tier, "--dry-run", "--explain"]);
    let said = dry("subreaper");
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("subreaper"), "{}", said.out);
    assert_eq!(dry("cgroup").code, Some(if can { 0 } else { 2 }));
    assert_eq!(dry("strong").code, Some(2));
    let inside = ownership::Machine::look().refusal(ownership::containment::Tier::PidNamespace);
    let inside = inside.is_none();
    for isolation in ["process", "thread"] {
        // In YAML it is written as other words there are.
        rig.file("inside.yaml", "delegation:\n  containment: pid_namespace\n");
        // Number 1 gives itself its name, and nobody waits for that.
        let script = "until grep -qx porter /proc/1/comm; do sleep 0.01; done; \
                      echo $(cat /proc/1/comm) $PPID > seen; cat /proc/1/comm";
        let batch = rig.batch("c.yaml", &[script]);
        let said = rig.run(["run", batch, "--config", "inside.yaml", "--isolation", isolation]);
        assert_eq!(said.code, Some(if inside { 0 } else { 2 }), "{isolation}: {}", said.err);
        if inside {
            let seen = fs::read_to_string(rig.path("seen")).unwrap();
            assert_eq!(seen, "porter 0\n", "{isolation}");
        }
    }
    for tier in ["subreaper", "cgroup"] {
        let script = "grep 0:: /proc/self/cgroup > seen";
        let seen = rig.run(["run", rig.batch("c.yaml", &[script]), "--containment", tier]);
        let wanted = if tier == "subreaper" || can { 0 } else { 2 };
        assert_eq!(seen.code, Some(wanted), "{}", seen.err);
    }
}

/// `delegate shim` with these folders in `PATH`.
fn shim(rig: &Rig, path: &str, args: &[&str]) -> Said {
    let mut command = rig.program(DELEGATE);
    command.arg("shim").args(args).env("PATH", path).env("XDG_DATA_HOME", rig.path("data"));
    Said::of(command.output().unwrap())
}

#[test]
fn a_shim_is_made_found_first_and_removed() {
    let rig = Rig::new();
    rig.file("bin/greet", "#!/bin/sh\necho \"greet $*\"; exit 5\n");
    fs::set_permissions(rig.path("bin/greet"), fs::Permissions::from_mode(0o755)).unwrap();
    let (bin, shims) = (rig.path("bin"), rig.path("data/delegate/shims"));
    let path = std::env::var("PATH").unwrap();
    let without = format!("{}:{path}", bin.display());
    let with = format!("{}:{without}", shims.display());
    shim(&rig, &without, &["install", "greet"]).expect(0).says("not effective yet: export PATH=");
    // Made again, it still names the program and not itself.
    let said = shim(&rig, &with, &["install", "greet"]);
    said.expect(0).says(&format!("{} under own", rig.path("bin/greet").display()));
    assert!(!said.out.contains("not effective"), "{}", said.out);
    let json = shim(&rig, &with, &["list", "--json"]).json();
    assert_eq!(
        (&json["shims"][0]["name"], &json["shims"][0]["effective"]),
        (&"greet".into(), &true.into())
    );
    shim(&rig, &without, &["list"]).expect(0).says("comes first in PATH");
    let mut greet = rig.program("greet");
    let greet = Said::of(greet.args(["a b", "c"]).env("PATH", &with).output().unwrap());
    assert_eq!((greet.code, &*greet.out), (Some(5), "greet a b c\n"));
    shim(&rig, &with, &["remove", "greet"]).expect(0);
    assert!(!shims.join("greet").exists() && rig.path("bin/greet").exists());
    shim(&rig, &with, &["remove", "greet"]).expect(2).says("no script for `greet`");
}

#[test]
fn a_shim_is_refused_where_it_would_do_harm() {
    let rig = Rig::new();
    let folder = std::path::Path::new(DELEGATE).parent().unwrap().display().to_string();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
    shim(&rig, &path, &["install", "delegate"]).expect(2).says("start itself for ever");
    shim(&rig, &path, &["install", "no-such-program"]).expect(2).says("in no directory of PATH");
    shim(&rig, &path, &["install", "../sh"]).expect(2).says("no name of a program");
    rig.file("data/delegate/shims/sh", "mine");
    shim(&rig, &path, &["install", "sh"]).expect(2).says("was not made here");
    shim(&rig, &path, &["remove", "sh"]).expect(2);
    assert_eq!(fs::read_to_string(rig.path("data/delegate/shims/sh")).unwrap(), "mine");
}

/// With few descriptors it says how many it needs, and with those it works.
#[test]
fn with_few_descriptors_it_says_what_it_needs() {
    let rig = Rig::new();
    let limited = |limit: u32| {
        let mut command = rig.program("bash");
        // What this test was given itself counts as well.
        let script = "for fd in /proc/$$/fd/*; do fd=${fd##*/}
             if test $fd -gt 2 && test $fd -ne 255; then eval \"exec $fd>&-\"; fi; done";
        command.arg("-c").arg(format!("{script}; ulimit -n {limit}; exec {DELEGATE} own -- true"));
        Said::of(command.output().unwrap())
    };
    for limit in [10, 16, 24] {
        let said = limited(limit);
        said.expect(125).says(&format!("only {limit} descriptors")).says("40 are needed");
    }
    limited(40).expect(0);
}

/// A named pipe that nobody reads is refused at once, and one that somebody reads is a report like any other.
#[test]
fn a_report_does_not_wait_for_a_reader() {
    let rig = Rig::new();
    let fifo = rig.path("fifo");
    assert!(rig.program("mkfifo").arg(&fifo).status().unwrap().success());
    let said = rig.run(["own", "--report", "fifo", "--", "touch", "ran"]);
    said.expect(125).says("fifo").says("nobody reads this pipe");
    assert!(!rig.path("ran").exists());
    let reader = Running::of({
        let mut command = rig.program("cat");
        command.arg(&fifo);
        command
    });
    // It opens the pipe before it reads.
    wait_for("a reader", || {
        let said = rig.run(["own", "--report", "fifo", "--", "true"]);
        (said.code == Some(0)).then_some(())
    });
    reader.end().says("\"status\"");
}

/// What an inner `own` leaves when it is killed is counted, and its guards, which end that, are not.
#[test]
fn guards_of_an_inner_own_are_not_counted() {
    let rig = Rig::new();
    let script = format!(
        "{} own -- sh -c 'touch runs; exec sleep 600' & inner=$!
         until test -e runs; do sleep 0.02; done; kill -KILL $inner; exit 3",
        DELEGATE
    );
    for _ in 0..3 {
        let said = rig.run(["own", "--", "sh", "-c", &script]);
        said.expect(3);
        assert!(!said.err.contains("warden") && !said.err.contains("minder"), "{said:?}");
        rig.wait_for_nobody();
    }
}
