//! A pid namespace for each scope: what a child sees in there, what holds in there that holds nowhere else, and that it is
//! refused with a reason where it cannot be had. `namespace_tier` runs the suites of ending and dying on it.
#![expect(clippy::disallowed_methods, reason = "owners are started by the test itself")]

mod support;

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use ownership::containment::{Machine, Namespaces, Tier};
use ownership::{ChildEvent, Containment, ExitStatus, Owned, Owner, Phase, Spawn};
use rustix::process::Signal;
use support::matrix::{Bystanders, GRACE};
use support::process::{Guards, everybody};
use support::{Identity, no_hooks, recorded, shell, start, wait_for};

const OWN: &str = env!("CARGO_BIN_EXE_own");

/// An owner whose scopes have pid namespaces. Skips loudly where none can be had.
#[expect(clippy::print_stderr, reason = "skips loudly")]
fn owner() -> Option<Owner> {
    if let Some(why) = Machine::look().refusal(Tier::PidNamespace) {
        eprintln!("SKIPPED: NO PID NAMESPACES FOR SCOPES ON THIS MACHINE: {why}");
        return None;
    }
    let supervisor = ownership::Program::named(env!("CARGO_BIN_EXE_ownership-supervisor"));
    Some(Owner::new(supervisor, Vec::new()).with_containment(Containment::PidNamespace))
}

fn identity(child: &Owned) -> Identity {
    Identity::of(child.pid().cast_signed()).expect("a child")
}

/// Number 1 of a child's namespace.
fn number_1(child: &Owned) -> Identity {
    let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let its = namespace(child.pid().cast_signed());
    let porter = everybody().find(|who| who.name() == "porter" && namespace(who.pid) == its);
    porter.expect("number 1")
}

#[test]
fn a_child_sees_numbers_of_its_own_and_nobody_else() {
    let Some(owner) = owner() else { return };
    let dir = tempfile::tempdir().expect("dir");
    // Number 1 gives itself its name, and nobody waits for that.
    let script = "cd \"$DIR\"; until grep -qx porter /proc/1/comm; do sleep 0.01; done; { echo $$ $PPID; pwd; ls /proc | grep -c '^[0-9]'; cat /proc/1/comm; \
                  } > seen; echo $$ > ready; exec sleep 600";
    let (child, _events) = start(&owner, shell(script).env("DIR", dir.path()));
    wait_for("it has looked", || dir.path().join("ready").exists().then_some(()));
    let seen = fs::read_to_string(dir.path().join("seen")).expect("read");
    let lines: Vec<_> = seen.lines().collect();
    // Its parent is outside, and not number 1: a parent of that number is taken for one that has died.
    assert_eq!(lines[0], "2 0", "{seen}");
    assert_eq!(lines[1], dir.path().to_str().expect("text"));
    // Number 1, itself, and what counts.
    assert_eq!((lines[2], lines[3]), ("4", "porter"), "{seen}");
    // Outside it is an ordinary child of its guards.
    let guards = wait_for("guards", || Guards::of(identity(&child)));
    assert_eq!(identity(&child).parent(), Some(guards.supervisor.pid));
    assert_eq!(number_1(&child).parent(), Some(guards.supervisor.pid));
    // Not even the mounts are seen outside.
    let of = |pid: &str| fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("mounts");
    assert_ne!(of("self"), of(&child.pid().to_string()));
    child.kill();
    child.wait_empty().expect("empty");
    assert!(!of("self").contains("ownership"));
}

#[test]
fn statuses_are_told_as_of_any_child() {
    let Some(owner) = owner() else { return };
    let (child, _events) = start(&owner, shell("exit 7"));
    assert_eq!(child.wait().expect("exit").status, ExitStatus::Code(7));
    let (child, _events) = start(&owner, shell("kill -SEGV $$"));
    let status = child.wait().expect("exit").status;
    assert!(matches!(status, ExitStatus::Signal { signal: libc::SIGSEGV, .. }), "{status:?}");
    let error = owner.spawn(Spawn::new("/no/such/program"), |_| {}).expect_err("none");
    assert_eq!(error.phase, Phase::Exec, "{error}");
    let error = owner.spawn(Spawn::new("true").dir("/no/such/dir"), |_| {}).expect_err("none");
    assert_eq!(error.phase, Phase::Chdir, "{error}");
}

/// What it has left, with nothing that tells whose it is, is ended and named; the namespace is not.
#[test]
fn what_is_left_is_ended_and_named_and_number_1_is_not() {
    let Some(owner) = owner() else { return };
    let script = "env -i setsid -f sleep 601; env -i setsid -f sleep 602; exit 0";
    let (child, events) = start(&owner, shell(script).grace(GRACE));
    child.wait_empty().expect("empty");
    let emptied = events.iter().find_map(|event| match event {
        ChildEvent::Emptied(emptied) => Some(emptied),
        ChildEvent::Stopped(_) | ChildEvent::Exited(_) | ChildEvent::Lost | _ => None,
    });
    let emptied = emptied.expect("an end");
    let names: Vec<_> = emptied.leftovers.iter().map(|one| one.name.as_str()).collect();
    assert!(names.iter().all(|name| *name == "sleep" || *name == "setsid"), "{names:?}");
    assert_eq!((emptied.leftover_count, emptied.left.len()), (2, 0), "{emptied:?}");
}

#[test]
fn whoever_kills_number_1_ends_all_of_the_scope_and_nothing_else() {
    let Some(owner) = owner() else { return };
    let around = Bystanders::start();
    let dir = tempfile::tempdir().expect("dir");
    let script = "trap '' TERM; env -i setsid -f sh -c \"echo \\$\\$ > $DIR/far; exec sleep 600\"; \
                  while :; do sleep 0.05; done";
    let (child, _events) = start(&owner, shell(script).env("DIR", dir.path()));
    let (beside, _events) = start(&owner, Spawn::new("sleep").arg("600"));
    // A shell makes the file before it writes into it.
    let written = || fs::read_to_string(dir.path().join("far")).is_ok_and(|it| it.ends_with('\n'));
    wait_for("it runs", || written().then_some(()));
    let far = support::process::from_inside_of(&dir.path().join("far"), child.pid());
    assert!(far.lives());
    number_1(&child).kill();
    let status = child.wait().expect("exit").status;
    assert!(matches!(status, ExitStatus::Signal { signal: libc::SIGKILL, .. }), "{status:?}");
    child.wait_empty().expect("empty");
    assert!(!far.lives() && identity(&beside).lives());
    around.assert_untouched();
}

/// The owner and both guards die in one instant: nobody is left who could act, but number 1 sees it. With that switched
/// off, all of it is left.
#[test]
fn nothing_outlives_an_owner_that_dies_with_both_guards() {
    if owner().is_none() || no_hooks() {
        return;
    }
    let around = Bystanders::start();
    // Guards of another owner end what they find in a cgroup of a dead one.
    for (off, ends) in [("", true), ("porter,cgroup", false)] {
        let dir = tempfile::tempdir().expect("dir");
        let script = "env -i setsid -f sleep 600; echo $$ > \"$D/ready\"; exec sleep 600";
        // A guard that dies beside a stopped front leaves its group orphaned, and the kernel hangs all of that group
        // up (man 3p _exit): neither the runner of the tests may be in it, nor may it end what is looked at.
        let mut front = Command::new("env")
            .args(["--ignore-signal=HUP", OWN])
            .args(["--containment", "pid-namespace", "--", "sh", "-c", script])
            .process_group(0)
            .env("D", dir.path())
            .env("OWNERSHIP_TEST_OFF", off)
            .spawn()
            .expect("own");
        let program = recorded_inside(dir.path(), "ready");
        let guards = wait_for("guards", || Guards::of(program));
        let namespace = fs::read_link(format!("/proc/{}/ns/pid", program.pid)).expect("one");
        let inside = || {
            let all = everybody().filter(|who| {
                fs::read_link(format!("/proc/{}/ns/pid", who.pid)).is_ok_and(|its| its == namespace)
            });
            all.filter(|who| who.lives()).collect::<Vec<_>>()
        };
        wait_for("three stand inside", || (inside().len() == 3).then_some(()));
        let own = Identity::of(front.id().cast_signed()).expect("not reaped");
        let all = [guards.supervisor, guards.keeper.expect("two"), own];
        for who in all {
            assert!(who.signal(Signal::STOP));
            wait_for("it is stopped", || (who.state()? == "T").then_some(()));
        }
        all.into_iter().for_each(Identity::kill);
        front.wait().expect("dead");
        wait_for("the guards are gone", || (!all.iter().any(|who| who.lives())).then_some(()));
        if ends {
            wait_for("nobody is left inside", || inside().is_empty().then_some(()));
        } else {
            // Number 1 waits for what it does not see.
            let first = inside().into_iter().find(|who| who.name() == "porter").expect("it");
            wait_for("it sleeps", || (first.state()? == "S").then_some(()));
            assert_eq!(inside().len(), 3);
            first.kill();
        }
        wait_for("nobody is left", || inside().is_empty().then_some(()));
    }
    around.assert_untouched();
}

fn recorded_inside(dir: &std::path::Path, name: &str) -> Identity {
    wait_for("it is there", || {
        let number = fs::read_to_string(dir.join(name)).ok()?;
        support::process::from_inside(number.strip_suffix('\n')?.parse().ok()?, dir)
    })
}

/// A user without rights has it in a user namespace, where the kernel gives one; who it is stays.
#[test]
fn a_user_without_rights_has_one_in_a_user_namespace() {
    if owner().is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    // The target directory may be of somebody who lets nobody in.
    let own = dir.path().join("own");
    fs::copy(OWN, &own).expect("copy");
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("mode");
    let script = "until grep -qx porter /proc/1/comm; do sleep 0.01; done; echo $$ $(id -u) $(id -g); cat /proc/1/comm; unshare -m true 2>&1; exit 5";
    let output = Command::new("setpriv")
        .args(["--reuid", "12345", "--regid", "12345", "--clear-groups"])
        .arg(&own)
        .args(["--containment", "pid-namespace", "--", "sh", "-c", script])
        .output();
    let output = match output {
        Ok(output) if rustix::process::geteuid().is_root() => output,
        _ => return eprintln!("SKIPPED: ANOTHER USER NEEDS ROOT AND setpriv"),
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(125) {
        assert!(error.contains("a pid namespace was asked for"), "{error}");
        return eprintln!("SKIPPED: NO USER NAMESPACES FOR USERS HERE: {error}");
    }
    assert_eq!(output.status.code(), Some(5), "{said}{error}");
    assert!(said.starts_with("2 12345 12345\nporter\n"), "{said}");
    // The rights of the namespace end where the program begins.
    assert!(said.contains("unshare failed"), "{said}");
}

/// Each way in which it cannot be had is told before anything runs, with what to do.
#[test]
fn where_it_cannot_be_had_the_reason_and_the_remedy_are_told() {
    if owner().is_none() || no_hooks() {
        return;
    }
    // Not even root may where the limit of its user namespace is 0, and its own limit is its own to set.
    let script = "echo 0 > /proc/sys/user/max_pid_namespaces && exec \"$0\" --containment pid-namespace -- true";
    let limited = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", script, OWN])
        .output();
    let output = limited.expect("unshare");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{error}");
    assert!(error.contains("max_pid_namespaces") && error.contains("sysctl"), "{error}");
    // `/proc` covered in part, as container engines do it: nobody may mount another one in a user namespace.
    let script = "mount -t tmpfs none /proc/sys && exec setpriv --reuid 12345 --regid 12345 \
                  --clear-groups \"$0\" --containment pid-namespace -- true";
    let dir = tempfile::tempdir().expect("dir");
    let own = dir.path().join("own");
    fs::copy(OWN, &own).expect("copy");
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("mode");
    let covered = Command::new("unshare").args(["--mount", "sh", "-c", script]).arg(&own).output();
    let output = covered.expect("unshare");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{error}");
    assert!(error.contains("/proc cannot be mounted") && error.contains("covered"), "{error}");
}

#[test]
fn auto_never_takes_one_and_a_spawn_may_ask_for_it() {
    let Some(_) = owner() else { return };
    let auto = support::owner();
    let namespace =
        |child: &Owned| fs::read_link(format!("/proc/{}/ns/pid", child.pid())).expect("one");
    let own = fs::read_link("/proc/self/ns/pid").expect("own");
    let (child, _events) = start(&auto, Spawn::new("sleep").arg("600"));
    assert_eq!(namespace(&child), own);
    let spawn = Spawn::new("sleep").arg("600").containment(Containment::PidNamespace);
    let (inside, _events) = start(&auto, spawn);
    assert_ne!(namespace(&inside), own);
    let offered = Machine::look().namespace.expect("tried").expect("offered");
    assert!(matches!(offered, Namespaces::Alone | Namespaces::InUserNamespace));
}

/// What it is to release is outside, and so is the number that it is told.
#[test]
fn a_release_command_runs_outside() {
    let Some(owner) = owner() else { return };
    let dir = tempfile::tempdir().expect("dir");
    let seen = dir.path().join("seen");
    let script = format!(
        "readlink /proc/self/ns/pid > {0}.new; echo $OWNERSHIP_PID >> {0}.new; mv {0}.new {0}",
        seen.display()
    );
    let spawn = shell("exit 0").release(["sh", "-c", &script], std::time::Duration::from_secs(20));
    let (child, _events) = start(&owner, spawn);
    let pid = child.pid();
    child.wait_empty().expect("empty");
    let seen = fs::read_to_string(seen).expect("it ran");
    let own = fs::read_link("/proc/self/ns/pid").expect("own");
    assert_eq!(seen, format!("{}\n{pid}\n", own.display()));
}

/// Work in a daemon that was there before is no descendant, in whatever namespace: it stays, and is not ours to end.
#[test]
fn work_in_a_daemon_outside_is_not_ended() {
    let Some(owner) = owner() else { return };
    let dir = tempfile::tempdir().expect("dir");
    let fifo = dir.path().join("orders");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let broker = format!(
        "read order < {0}; sh -c 'echo $$ > {1}/work; exec sleep 600'",
        fifo.display(),
        dir.path().display()
    );
    let mut broker = Command::new("sh").args(["-c", &broker]).spawn().expect("a broker");
    let (child, _events) =
        start(&owner, shell(&format!("echo work > {}; exec sleep 600", fifo.display())));
    let work = recorded(dir.path(), "work");
    child.kill();
    child.wait_empty().expect("empty");
    assert!(work.lives(), "it is the broker's");
    work.kill();
    broker.wait().expect("dead");
}

#[test]
fn nothing_is_kept_of_a_namespace() {
    let output = Command::new(OWN)
        .args(["--containment", "pid-namespace", "--keep", "tmux", "--", "true"])
        .output()
        .expect("own");
    assert_eq!(output.status.code(), Some(125));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("nothing can be kept") && error.contains("--keep"), "{error}");
}

/// A guard that dies after each step of a start inside leaves no number 1 behind, and what was asked for is started all the
/// same, once.
#[test]
fn a_guard_that_dies_while_it_starts_one_leaves_nothing() {
    if owner().is_none() || no_hooks() {
        return;
    }
    for step in ["claimed", "housed", "cloned", "before-started", "ending", "after-exited"] {
        let dir = tempfile::tempdir().expect("dir");
        let script = "echo ran >> \"$DIR/ran\"; env -i setsid -f sleep 600; exit 7";
        let own = Command::new(OWN)
            .args(["--quiet", "--containment", "pid-namespace", "--", "sh", "-c", script])
            .env("DIR", dir.path())
            .env("OWNERSHIP_TEST_DIE_AT", step)
            .spawn();
        let mut own = own.expect("own");
        let mark = format!("OWNERSHIP_TAG={}.", own.id());
        let code = own.wait().expect("own").code();
        assert_eq!(code, Some(7), "{step}");
        let ran = fs::read_to_string(dir.path().join("ran")).expect("it ran");
        assert_eq!(ran, "ran\n", "{step}");
        let left = || {
            let marked = everybody().filter(|who| {
                let environment =
                    fs::read(format!("/proc/{}/environ", who.pid)).unwrap_or_default();
                environment.windows(mark.len()).any(|part| part == mark.as_bytes()) && who.lives()
            });
            marked.collect::<Vec<_>>()
        };
        support::wait_for_nobody(left);
    }
}
