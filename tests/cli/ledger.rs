//! The ledger beside the runs: what was started stands there, no secret does, and it fails no batch.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ownership::ledger::{End, Row, State, history};
use rusqlite::Connection;
use serde_json::json;

use crate::rig::{DELEGATE, Rig};

fn file(rig: &Rig) -> PathBuf {
    rig.path("state/ledger.sqlite")
}

fn rows(rig: &Rig) -> Vec<Row> {
    let mut rows = history(&file(rig), 99).unwrap();
    rows.reverse();
    rows
}

fn journals(rig: &Rig) -> usize {
    fs::read_dir(rig.path("state/journal")).map_or(0, Iterator::count)
}

#[test]
fn what_a_run_started_is_there_and_has_ended() {
    for isolation in ["process", "thread"] {
        let rig = Rig::new();
        rig.batch("b.yaml", &["exit 0", "exit 3"]);
        rig.run(["run", "b.yaml", "--isolation", isolation]).expect(1);
        let rows = rows(&rig);
        assert_eq!(rows.len(), 2, "{isolation}: {rows:?}");
        assert!(rows.iter().all(|row| row.state == State::Ended), "{isolation}: {rows:?}");
        assert!(rows.iter().all(|row| matches!(row.end, Some(End::Exited(_)))), "{rows:?}");
        assert_eq!(journals(&rig), 1, "its guards have one");
        // The next start takes in what the guards of the one before wrote.
        rig.run(["run", "b.yaml", "--isolation", isolation]).expect(1);
        crate::support::wait_for("guards to leave, and their journal to be folded", || {
            rig.run(["run", "b.yaml", "--isolation", isolation]).expect(1);
            let owners: std::collections::HashSet<_> =
                self::rows(&rig).iter().map(|row| row.owner.pid).collect();
            (journals(&rig) < owners.len()).then_some(())
        });
        let living = ownership::ledger::living(&file(&rig)).unwrap();
        assert_eq!(living, [], "{isolation}");
    }
}

/// Every file below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// A key that an agent gets in its environment, and one in the arguments of what it starts itself.
#[test]
fn a_key_in_environment_or_arguments_reaches_no_file_of_the_ledger() {
    const KEY: &str = "Zq7planted0key1that2is3nowhere4";
    for isolation in ["process", "thread"] {
        let rig = Rig::new();
        let script = "exec 3>&1; sh -c 'test ${#0} -gt 20 && sleep 0.01' \"$SECRET_KEY\"";
        let own = ["sh", "-c", script];
        let given = ["sh", "-c", "test $2 = $SECRET_KEY", "x", "--api-key", KEY];
        let task = |argv: &[&str]| json!({"goal": "with a key", "params": {"argv": argv}});
        let tasks = json!({"tasks": [task(&own), task(&given)]}).to_string();
        rig.file("b.yaml", tasks);
        let mut command = rig.command(["run", "b.yaml", "--isolation", isolation]);
        let said = crate::rig::Said::of(command.env("SECRET_KEY", KEY).output().unwrap());
        said.expect(0);
        assert_eq!(rows(&rig).len(), 2);
        let state = rig.path("state");
        let holds = |path: &PathBuf| {
            let bytes = fs::read(path).unwrap();
            bytes.windows(KEY.len()).any(|piece| piece == KEY.as_bytes())
        };
        let with_key: Vec<_> = files(&state).into_iter().filter(holds).collect();
        assert_eq!(with_key, [] as [PathBuf; 0], "{isolation}");
    }
}

#[test]
fn a_damaged_ledger_is_moved_aside_and_said_once() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["exit 0"]);
    rig.file("state/ledger.sqlite", "this is no database, and long enough to be seen as none");
    let said = rig.run(["run", "b.yaml"]);
    said.expect(0);
    let warnings: Vec<_> = said.err.lines().filter(|line| line.contains("ledger")).collect();
    assert_eq!(warnings.len(), 1, "{said:?}");
    assert!(warnings[0].starts_with("warning: ") && warnings[0].contains("moved to"), "{said:?}");
    assert_eq!(rows(&rig).len(), 1, "a fresh one has it");
    let said = rig.run(["run", "b.yaml", "--json"]);
    assert_eq!(said.expect(0).json()["warnings"], json!([]));
}

#[test]
fn a_ledger_that_cannot_be_written_fails_no_batch() {
    let rig = Rig::new();
    rig.batch("b.yaml", &["exit 0", "exit 0"]);
    rig.run(["run", "b.yaml"]).expect(0);
    let other = Connection::open(file(&rig)).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let began = Instant::now();
    let said = rig.run(["run", "b.yaml", "--json"]);
    let warnings = &said.expect(0).json()["warnings"];
    assert!(began.elapsed() < Duration::from_secs(15), "it waits once, and not for long");
    assert_eq!(warnings.as_array().unwrap().len(), 1, "{warnings}");
    assert!(warnings[0].as_str().unwrap().contains("written down in the ledger"), "{warnings}");
}

/// Those that the guards cannot see to: they are killed together with their owner. The next start ends what is left, or
/// names it, or says nothing, as it is told. In threads, since a worker process ends what it started itself.
#[test]
fn what_escaped_is_ended_named_or_ignored_at_the_next_start() {
    for tier in ["subreaper", "auto"] {
        for (at_start, lives, said) in
            [("end", false, "were ended"), ("report", true, "still run"), ("ignore", true, "")]
        {
            let case = format!("{tier}, {at_start}");
            let Some(told) = escaped(tier, at_start) else { return };
            told.says("code 0").says("the stranger lives");
            assert_eq!(told.out.contains("the escaped lives"), lives, "{case}: {told:?}");
            let warnings: Vec<_> =
                told.err.lines().filter(|line| line.contains("owners that are dead")).collect();
            assert_eq!(warnings.len(), usize::from(!said.is_empty()), "{case}: {told:?}");
            for warning in warnings {
                assert!(warning.contains(said) && warning.contains("pid "), "{case}: {told:?}");
            }
        }
    }
}

fn escaped(tier: &str, at_start: &str) -> Option<crate::rig::Said> {
    let rig = Rig::new();
    rig.batch("b.yaml", &["echo $$ > escaped; trap '' TERM; exec sleep 600"]);
    rig.batch("next.yaml", &["exit 0"]);
    let script = format!(
        "{DELEGATE} run b.yaml --isolation thread & owner=$!
         until test -s escaped; do sleep 0.02; done
         parent() {{ sed 's/.*) . //; s/ .*//' /proc/$1/stat; }}
         supervisor=$(cat escaped)
         until test $(cat /proc/$supervisor/comm) = minder; do supervisor=$(parent $supervisor); done
         keeper=$(parent $supervisor)
         sleep 600 & stranger=$!
         for who in $owner $keeper $supervisor; do
             kill -STOP $who; until grep -q ') T ' /proc/$who/stat; do sleep 0.02; done
         done
         kill -KILL $supervisor; kill -KILL $keeper; kill -KILL $owner; wait $owner
         while test -e /proc/$keeper/exe || test -e /proc/$supervisor/exe; do sleep 0.02; done
         {DELEGATE} run next.yaml --set janitor_at_start={at_start} --set terminate_grace=300ms
         echo code $?
         lives() {{ grep -qs ') [^ZX] ' /proc/$1/stat && echo the $2 lives; }}
         lives $(cat escaped) escaped; lives $stranger stranger; true"
    );
    let mut fence = rig.program("setsid");
    fence.args(["-w", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c"]);
    fence.env("OWNERSHIP_TEST_CONTAINMENT", tier);
    let said = crate::rig::Said::of(fence.arg(script).output().unwrap());
    if said.err.contains("unshare failed") {
        eprintln!("SKIPPED: no pid namespace can be made here");
        return None;
    }
    Some(said)
}

/// How a child ended that nobody of ours was the parent of is not known; the row that says so can be read.
#[test]
fn a_ledger_is_read_after_both_guards_were_killed() {
    use crate::support::{Identity, wait_for};
    use rustix::process::{Pid, Signal, kill_process};
    let rig = Rig::new();
    let task = "echo $$ >task.new; mv task.new task; sleep 1";
    rig.batch("b.yaml", &[task]);
    let run = rig.start(["run", "b.yaml"]);
    wait_for("the task", || rig.path("task").exists().then_some(()));
    let guard = |name: &str| {
        let found = rig.processes().into_iter().find(|process| {
            let comm = fs::read_to_string(format!("/proc/{}/comm", process.pid));
            comm.is_ok_and(|comm| comm.trim() == name)
        });
        found.unwrap_or_else(|| panic!("no {name}"))
    };
    let guards: [Identity; 2] = [guard("minder"), guard("warden")];
    for guard in guards {
        kill_process(Pid::from_raw(guard.pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
    }
    drop(run.end());
    wait_for("all to be gone", || rig.processes().is_empty().then_some(()));
    assert!(rows(&rig).iter().any(|row| row.end.is_some()), "{:?}", rows(&rig));
    for verb in [&["log", "--kills"][..], &["ps", "--json"], &["janitor"]] {
        let said = rig.run(verb);
        assert!(!said.err.contains("Invalid column"), "{verb:?} {said:?}");
        assert_ne!(said.code, Some(3), "{verb:?} {said:?}");
    }
}
