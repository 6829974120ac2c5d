//! Adversity: members, callbacks and machines that make it hard to keep the promise.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ownership::{ChildEvent, ExitStatus, Owner, Program, Spawn};
use support::{Identity, owner, recorded, shell, start, wait_for};

const GRACE: Duration = Duration::from_millis(200);

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// An orphan is no subreaper: what it double-forks comes to the supervisor while it lives on itself.
#[test]
fn what_a_living_orphan_leaves_ends_with_its_scope() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    // The last line makes the supervisor look while the orphan itself is not dead.
    let orphan = r#"
trap "" TERM
echo $$ > "$DIR/orphan"
while ! [ -e "$DIR/go" ]; do sleep 0.01; done
sh -c 'setsid sleep 600 & echo $! > "$DIR/late"'
sh -c 'sleep 0 & echo $! > "$DIR/short"'
sleep 600"#;
    fs::write(dir.path().join("orphan.sh"), orphan).expect("write");
    let root = r#"setsid sh "$DIR/orphan.sh" & while ! [ -e "$DIR/orphan" ]; do sleep 0.01; done"#;
    let spawn = shell(root).env("DIR", dir.path()).grace(LONG);
    let (child, _events) = start(&owner, spawn);
    child.wait().expect("exit");
    let orphan = recorded(dir.path(), "orphan");
    fs::write(dir.path().join("go"), "").expect("write");
    let late = recorded(dir.path(), "late");
    let short = dir.path().join("short");
    wait_for("the short one was reaped", || {
        let pid: i32 = fs::read_to_string(&short).ok()?.strip_suffix('\n')?.parse().ok()?;
        Identity::of(pid).is_none().then_some(())
    });
    child.end(GRACE);
    child.wait_empty().expect("empty");
    assert!(!orphan.lives());
    assert!(!late.lives(), "told to be empty, and one is left");
}

/// An owner whose supervisor may have only so many descriptors.
fn narrow_owner(dir: &Path, descriptors: usize) -> Owner {
    use std::os::unix::fs::PermissionsExt;
    let path = dir.join("narrow");
    let supervisor = env!("CARGO_BIN_EXE_ownership-supervisor");
    let script = format!("#!/bin/sh\nulimit -n {descriptors}\nexec '{supervisor}' \"$@\"\n");
    fs::write(&path, script).expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("mode");
    Owner::new(Program::named(path), Vec::new())
}

/// Starts are refused before there is nothing left to find and end the members with.
#[test]
fn a_supervisor_out_of_descriptors_still_ends_everybody() {
    let dir = tempfile::tempdir().expect("dir");
    let owner = narrow_owner(dir.path(), 48);
    let script = r#"(setsid sh -c 'echo $$ > "$DIR/daemon"; exec sleep 600' &)
        while ! [ -e "$DIR/go" ]; do sleep 0.01; done"#;
    let (child, _events) = start(&owner, shell(script).env("DIR", dir.path()).grace(GRACE));
    let daemon = recorded(dir.path(), "daemon");
    let mut full = Vec::new();
    let error = loop {
        // Of two kinds, so that the very last descriptor is taken too.
        let spawn = Spawn::new("sleep").arg("600");
        let spawn = if full.len() % 2 == 0 { spawn.line(4) } else { spawn };
        match owner.spawn(spawn, |_| {}) {
            Ok(child) => full.push(child),
            Err(error) => break error,
        }
        assert!(full.len() < 48, "it is full by now");
    };
    assert_eq!(error.errno, Some(libc::EMFILE), "{error}");
    while let Ok(child) = owner.spawn(Spawn::new("sleep").arg("600"), |_| {}) {
        full.push(child);
    }
    fs::write(dir.path().join("go"), "").expect("write");
    let empty = child.wait_empty().expect("empty");
    assert!(!daemon.lives(), "told to be empty, and one is left");
    assert_eq!(empty.leftover_count, 1, "{empty:?}");
    // What is in their own sessions is found too.
    for child in &full {
        child.end(GRACE);
        child.wait_empty().expect("empty");
    }
}

#[test]
fn a_callback_that_panics_does_not_silence_the_others() {
    let owner = owner();
    let loud =
        owner.spawn(shell("exit 1"), |event| panic!("on purpose: {event:?}")).expect("spawn");
    assert_eq!(loud.wait().expect("exit").status, ExitStatus::Code(1));
    assert!(loud.wait_empty().is_some());
    let (child, _events) = start(&owner, shell("exit 2"));
    assert_eq!(child.wait().expect("exit").status, ExitStatus::Code(2));
}

/// The owner is the first process of a container, or itself somebody's scope: its supervisor is
/// handed to it as a child.
#[test]
fn supervisors_that_left_are_no_zombies_of_a_subreaper() {
    if support::no_hooks() {
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    let mut command = std::process::Command::new(support::example("idle-owner"));
    command.arg(dir.path()).arg("subreaper").env("OWNERSHIP_TEST_IDLE_MS", "1");
    #[expect(clippy::disallowed_methods, reason = "an owner of its own, with its own setting")]
    let status = command.status().expect("idle-owner");
    assert!(status.success());
}

/// Numbers of another namespace would name other processes.
#[test]
fn a_proc_of_another_pid_namespace_is_refused() {
    let mut command = std::process::Command::new("setsid");
    command.args(["-w", "unshare", "--pid", "--fork", "--kill-child"]);
    command.arg(support::example("hello"));
    #[expect(clippy::disallowed_methods, reason = "an owner in a namespace of its own")]
    let output = command.output().expect("unshare");
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("Operation not permitted") {
        eprintln!("SKIPPED: no pid namespace may be made here: {text}");
        return;
    }
    assert!(text.contains("/proc"), "{text}");
    assert!(!output.status.success());
}

/// A process lives while one of its threads does, although its entry in /proc says zombie.
#[test]
fn a_member_whose_main_thread_has_ended_gets_term() {
    let dir = tempfile::tempdir().expect("dir");
    let program = headless(dir.path());
    let owner = owner();
    let script = format!("setsid '{}' & wait; sleep 600", program.display());
    let (child, _events) = start(&owner, shell(&script).env("DIR", dir.path()));
    let member = recorded(dir.path(), "headless");
    wait_for("its main thread has ended", || (member.state()? == "Z").then_some(()));
    // No KILL comes in time.
    child.end(LONG);
    child.wait_empty().expect("empty");
    assert!(Identity::of(member.pid) != Some(member), "it is gone");
}

/// A program whose main thread ends at once while another runs on.
fn headless(dir: &Path) -> PathBuf {
    let source = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *run(void *arg) { sleep(600); return arg; }
int main(void) {
    char path[4096];
    pthread_t thread;
    snprintf(path, sizeof path, "%s/headless", getenv("DIR"));
    FILE *file = fopen(path, "w");
    fprintf(file, "%d\n", getpid());
    fclose(file);
    pthread_create(&thread, 0, run, 0);
    pthread_exit(0);
}"#;
    support::compile(dir, "headless", source)
}

/// A cgroup that freezes its members: a frozen process does not die of KILL, like one in state D.
struct Freezer(PathBuf);

impl Freezer {
    /// `None` where the freezer of cgroup v1 cannot be used.
    fn new() -> Option<Self> {
        let path = PathBuf::from(format!("/sys/fs/cgroup/freezer/own-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        path.join("freezer.state").exists().then_some(Self(path))
    }

    fn freeze(&self, who: Identity) {
        fs::write(self.0.join("cgroup.procs"), who.pid.to_string()).expect("move");
        fs::write(self.0.join("freezer.state"), "FROZEN").expect("freeze");
        wait_for("frozen", || {
            let state = fs::read_to_string(self.0.join("freezer.state")).expect("state");
            (state.trim() == "FROZEN").then_some(())
        });
    }

    fn thaw(&self) {
        fs::write(self.0.join("freezer.state"), "THAWED").expect("thaw");
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        wait_for("the cgroup is empty", || fs::remove_dir(&self.0).ok());
    }
}

/// What cannot die is named, at its own scope and at the one around it, and nobody waits for ever.
#[test]
fn what_cannot_die_is_told_as_left_at_each_scope_around_it() {
    let Some(freezer) = Freezer::new() else {
        eprintln!("SKIPPED: no freezer (cgroup v1) may be used here");
        return;
    };
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let nested = Spawn::new(support::example("line-user")).arg(dir.path()).line(4).grace(GRACE);
    let (child, events) = start(&owner, nested);
    let inner = recorded(dir.path(), "inner");
    let supervisor = support::supervisor_of(&child);
    freezer.freeze(inner);
    child.kill();
    assert!(child.wait().is_some(), "the child itself dies");
    let empty = child.wait_empty().expect("told");
    let left: Vec<_> = empty.left.iter().map(|left| left.pid.cast_signed()).collect();
    assert_eq!(left, [inner.pid]);
    assert_eq!(events.iter().take(2).filter(|e| matches!(e, ChildEvent::Emptied(_))).count(), 1);
    assert!(inner.lives());
    freezer.thaw();
    wait_for("it dies once it can", || (!inner.lives()).then_some(()));
    assert!(supervisor.lives() && events.try_recv().is_err(), "told once");
}

#[test]
fn a_start_that_fails_for_its_interpreter_says_so() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let detail = |content: &str| {
        let path = dir.path().join("script");
        fs::write(&path, content).expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("mode");
        owner.spawn(Spawn::new(&path), |_| {}).expect_err("fails").to_string()
    };
    let missing = detail("#!/no/such/interpreter -x\n");
    assert!(missing.contains("/no/such/interpreter"), "{missing}");
    let bare = detail("echo hello\n");
    assert!(bare.contains("#!"), "{bare}");
}
