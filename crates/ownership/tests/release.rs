//! Release commands: run once when nothing of the scope is left, whoever dies meanwhile, and reported.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use ownership::{ExitStatus, Leftovers, Released, Spawn};
use support::{
    DEADLINE, Identity, example, kill_both, owner, recorded, shell, start, supervisor_of, wait_for,
};

const GRACE: Duration = Duration::from_millis(200);

/// Writes a line for each run: the child's number and a variable of its environment.
const NOTES: &str = r#"echo "$OWNERSHIP_PID $LABEL" >> "$DIR/released""#;

fn gone(who: Identity) {
    wait_for("it is gone", || (!who.lives()).then_some(()));
}

fn runs(dir: &Path) -> Vec<String> {
    let text = fs::read_to_string(dir.join("released")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn it_runs_once_after_the_last_of_the_scope_and_knows_the_child() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let script = r#"(setsid sh -c 'echo $$ > "$DIR/left"; trap "" TERM; sleep 600' &)
        while ! [ -s "$DIR/left" ]; do sleep 0.01; done"#;
    let note = format!(r#"kill -0 $(cat "$DIR/left") 2>/dev/null && exit 9; {NOTES}"#);
    let spawn = shell(script).env("DIR", dir.path()).env("LABEL", "own").grace(GRACE);
    let (child, _events) = start(&owner, spawn.release(["sh", "-c", &note], DEADLINE));
    let emptied = child.wait_empty().expect("empty");
    assert_eq!(emptied.release, Some(Released::Ended(ExitStatus::Code(0))));
    assert!(emptied.release.is_some_and(Released::succeeded));
    assert_eq!(runs(dir.path()), [format!("{} own", child.pid())]);
}

#[test]
fn failures_of_every_kind_are_reported() {
    let owner = owner();
    let cases: [(&[&str], Released); 4] = [
        (&["sh", "-c", "exit 7"], Released::Ended(ExitStatus::Code(7))),
        (&["/no/such/program"], Released::NotStarted { errno: libc::ENOENT }),
        (&["sh", "-c", "trap '' TERM; sleep 600 & wait; wait"], Released::TimedOut),
        (
            &["sh", "-c", "kill -9 $$"],
            Released::Ended(ExitStatus::Signal { signal: 9, core_dumped: false }),
        ),
    ];
    for (command, expected) in cases {
        let spawn = shell("exit 0").release(command, Duration::from_millis(500));
        let (child, _events) = start(&owner, spawn);
        assert_eq!(child.wait_empty().expect("empty").release, Some(expected), "{command:?}");
    }
    let (child, _events) = start(&owner, shell("exit 0"));
    assert_eq!(child.wait_empty().expect("empty").release, None);
    let error = owner.spawn(shell("exit 0").release([""; 0], GRACE), |_| {}).expect_err("none");
    assert!(error.detail.contains("release"), "{error}");
}

/// Ended, killed, or after what was let live has gone: it runs, and not before.
#[test]
fn it_runs_in_whichever_way_the_scope_ended() {
    let owner = owner();
    for how in ["end", "kill", "drop"] {
        let dir = tempfile::tempdir().expect("dir");
        let spawn = Spawn::new("sleep").arg("600").env("DIR", dir.path()).env("LABEL", how);
        let (child, events) = start(&owner, spawn.release(["sh", "-c", NOTES], DEADLINE));
        match how {
            "end" => child.end(GRACE),
            "kill" => child.kill(),
            _ => drop(child),
        }
        wait_for("the end", || {
            matches!(events.recv(), Ok(ownership::ChildEvent::Emptied(_)) | Err(_)).then_some(())
        });
        assert_eq!(runs(dir.path()).len(), 1, "{how}");
    }
}

#[test]
fn it_waits_for_what_was_let_live() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let script = r#"(setsid sh -c 'echo $$ > "$DIR/left"; exec sleep 600' &)
        while ! [ -s "$DIR/left" ]; do sleep 0.01; done"#;
    let spawn = shell(script).env("DIR", dir.path()).leftovers(Leftovers::Keep);
    let (child, _events) = start(&owner, spawn.release(["sh", "-c", NOTES], DEADLINE));
    let emptied = child.wait_empty().expect("empty");
    assert_eq!((emptied.kept, emptied.release), (1, None));
    let (other, _events) = start(&owner, shell("exit 0"));
    other.wait_empty().expect("empty");
    assert!(runs(dir.path()).is_empty());
    recorded(dir.path(), "left").kill();
    wait_for("it runs", || (runs(dir.path()).len() == 1).then_some(()));
}

/// An order to end the scope again does not cut its command short.
#[test]
fn a_second_end_does_not_end_it() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let slow =
        format!(r#"echo $$ > "$DIR/runs"; while ! [ -e "$DIR/go" ]; do sleep 0.01; done; {NOTES}"#);
    let spawn = shell("exit 0").env("DIR", dir.path()).release(["sh", "-c", &slow], DEADLINE);
    let (child, _events) = start(&owner, spawn);
    let runs_now = recorded(dir.path(), "runs");
    child.kill();
    let (other, _events) = start(&owner, shell("exit 0"));
    other.wait_empty().expect("empty");
    assert!(runs_now.lives());
    fs::write(dir.path().join("go"), "").expect("write");
    assert!(child.wait_empty().expect("empty").release.is_some_and(Released::succeeded));
}

/// A guard is killed while the child runs, or while the command does: the command ends once.
#[test]
fn it_survives_either_guard() {
    for (supervisor, while_it_runs) in [(true, false), (false, false), (true, true), (false, true)]
    {
        let case = format!("supervisor {supervisor}, while it runs {while_it_runs}");
        let dir = tempfile::tempdir().expect("dir");
        let owner = owner();
        let slow = format!(
            r#"echo $$ > "$DIR/runs"; while ! [ -e "$DIR/go" ]; do sleep 0.01; done; {NOTES}"#
        );
        let spawn = Spawn::new("sleep").arg("600").env("DIR", dir.path()).grace(GRACE);
        let (child, _events) = start(&owner, spawn.release(["sh", "-c", &slow], DEADLINE));
        let guard = supervisor_of(&child);
        let keeper = Identity::of(guard.parent().expect("parent")).expect("keeper");
        let guard = if supervisor { guard } else { keeper };
        if while_it_runs {
            child.end(GRACE);
            recorded(dir.path(), "runs");
        }
        guard.kill();
        gone(guard);
        if !while_it_runs {
            child.end(GRACE);
        }
        recorded(dir.path(), "runs");
        fs::write(dir.path().join("go"), "").expect("write");
        let released = child.wait_empty().expect("empty").release;
        assert!(matches!(released, Some(Released::Ended(_))), "{case}: {released:?}");
        assert_eq!(runs(dir.path()).len(), 1, "{case}");
    }
}

/// Both guards are killed while it runs: it is run again, perhaps before the first run is ended.
#[test]
fn it_is_run_again_when_both_guards_die() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let slow = format!(
        r#"echo >> "$DIR/begun"; echo $$ > "$DIR/runs"; while ! [ -e "$DIR/go" ]; do sleep 0.01; done; {NOTES}"#
    );
    let spawn = Spawn::new("sleep").arg("600").env("DIR", dir.path()).grace(GRACE);
    let (child, _events) = start(&owner, spawn.release(["sh", "-c", &slow], DEADLINE));
    let supervisor = supervisor_of(&child);
    let keeper = Identity::of(supervisor.parent().expect("parent")).expect("keeper");
    child.end(GRACE);
    recorded(dir.path(), "runs");
    kill_both(keeper, supervisor);
    wait_for("it runs again", || {
        let begun = fs::read_to_string(dir.path().join("begun")).ok()?;
        (begun.lines().count() == 2).then_some(())
    });
    fs::write(dir.path().join("go"), "").expect("write");
    assert!(child.wait_empty().expect("empty").release.is_some_and(Released::succeeded));
    assert!(!runs(dir.path()).is_empty());
}

/// An `end-owner` that is killed when it is dropped.
struct EndOwner(Child);

impl EndOwner {
    #[expect(clippy::disallowed_methods, reason = "an owner that is to be killed")]
    fn start(dir: &Path, script: &str, die_at: Option<&str>) -> Self {
        let mut command = Command::new(example("end-owner"));
        command.arg(dir).arg("release").arg(script);
        command.envs(die_at.map(|step| ("OWNERSHIP_TEST_DIE_AT", step)));
        Self(command.spawn().expect("end-owner"))
    }

    fn kill(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Drop for EndOwner {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn it_runs_after_the_owners_death_and_the_guards_wait_for_it() {
    // Alone, with a guard that dies before, and with one that dies at the same time.
    for victim in ["none", "supervisor", "keeper", "supervisor-after", "keeper-after"] {
        let dir = tempfile::tempdir().expect("dir");
        // Longer than a sweep without it may take.
        let slow = format!("echo $$ > \"$DIR/runs\"; sleep 4; {NOTES}");
        let mut owner = EndOwner::start(dir.path(), &slow, None);
        let child = recorded(dir.path(), "child");
        let supervisor = Identity::of(child.parent().expect("parent")).expect("supervisor");
        let keeper = Identity::of(supervisor.parent().expect("parent")).expect("keeper");
        let guard = if victim.starts_with("supervisor") { supervisor } else { keeper };
        if victim != "none" && !victim.ends_with("after") {
            guard.kill();
            gone(guard);
        }
        owner.kill();
        if victim.ends_with("after") {
            guard.kill();
        }
        let command = recorded(dir.path(), "runs");
        assert!(!child.lives(), "{victim}");
        wait_for(&format!("{victim}: it is done"), || (!runs(dir.path()).is_empty()).then_some(()));
        wait_for(&format!("{victim}: all have left"), || {
            [command, supervisor, keeper].iter().all(|who| !who.lives()).then_some(())
        });
        assert_eq!(runs(dir.path()).len(), 1, "{victim}");
    }
}

/// The guard that runs it dies before and after it is started, and when it has ended: it runs once.
#[test]
fn it_runs_once_whenever_its_guard_dies() {
    let steps = ["releasing", "released", "after-release", "before-emptied", "after-emptied"];
    for step in steps {
        let dir = tempfile::tempdir().expect("dir");
        let _owner = EndOwner::start(dir.path(), NOTES, Some(step));
        recorded(dir.path(), "child");
        fs::write(dir.path().join("go"), "").expect("write");
        let told = wait_for(step, || fs::read_to_string(dir.path().join("told")).ok());
        assert_eq!(told, "Some(Ended(Code(0)))\n", "{step}");
        assert_eq!(runs(dir.path()).len(), 1, "{step}");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test measures a deadline")]
fn a_command_has_its_whole_deadline_and_no_more() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let begun = Instant::now();
    let spawn = shell("exit 0").env("DIR", dir.path());
    let never = ["sh", "-c", "trap '' TERM; setsid sleep 600"];
    let (child, _events) = start(&owner, spawn.release(never, Duration::from_secs(1)));
    assert_eq!(child.wait_empty().expect("empty").release, Some(Released::TimedOut));
    assert!(begun.elapsed() >= Duration::from_secs(1) && begun.elapsed() < DEADLINE);
}
