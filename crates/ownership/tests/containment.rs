//! The cgroup tier: what it is, what it holds that descent does not, and what it leaves alone. Beside each
//! case that kills stand another owner with its tree and a stranger.
#![expect(clippy::disallowed_methods, reason = "strangers are started by the test itself")]

#[path = "../examples/support/player.rs"]
mod player;
mod support;
use support::process;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use ownership::containment::{Machine, Tier, Why};
use ownership::exempt::spawn_exempt_by;
use ownership::{Containment, Exemption, Owner, Phase, Program, Spawn};
use player::Player;
use rustix::process::Signal;
use support::matrix::{Bystanders, GRACE};
use support::tier::{cell, cell_of, is_gone};
use support::tree::MEMBERS;
use support::{
    Identity, TreeOwner, example, kill_both, no_hooks, owner, recorded, shell, start, tier,
    wait_for,
};

fn sleeper() -> Spawn {
    Spawn::new("sleep").arg("600")
}

#[test]
fn a_child_is_born_in_a_cgroup_that_ends_with_it() {
    let Some(base) = tier::cgroup() else { return };
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    // The shell is the second program: the first has nothing but its own cgroup to look at.
    let script = "cat /proc/self/cgroup > \"$DIR/own\"; echo $$ > \"$DIR/ready\"; exec sleep 600";
    let (child, _events) = start(&owner, shell(script).env("DIR", dir.path()));
    recorded(dir.path(), "ready");
    let own = fs::read_to_string(dir.path().join("own")).expect("read");
    let named = child.cgroup().expect("a cgroup");
    assert!(own.lines().any(|line| line == format!("0::{}", named.display())), "{own}");
    let (other, _events) = start(&owner, sleeper());
    let (cell, beside) = (cell(&base, &child), cell(&base, &other));
    assert_eq!(cell.parent(), beside.parent(), "one directory for an owner");
    child.kill();
    child.wait_empty().expect("empty");
    is_gone(&cell);
    assert!(beside.is_dir());
    other.kill();
    other.wait_empty().expect("empty");
    is_gone(&beside);
}

#[test]
fn a_spawn_may_ask_for_less() {
    let owner = owner();
    let (child, _events) = start(&owner, sleeper().containment(Containment::Subreaper));
    assert_eq!(child.cgroup(), None);
}

#[test]
fn the_directory_of_an_owner_that_is_killed_goes_with_its_guards() {
    let Some(base) = tier::cgroup() else { return };
    let around = Bystanders::start();
    let mut owner = TreeOwner::start(GRACE, "");
    let cell = cell_of(&base, owner.member("cleared"));
    assert!(cell.is_dir(), "{}", cell.display());
    for (name, member) in &owner.members {
        assert_eq!(cell_of(&base, *member), cell, "{name} stands where its root was born");
    }
    owner.signal(Signal::KILL);
    owner.process.wait().expect("dead");
    around.assert_all_gone(&owner);
    is_gone(cell.parent().expect("a place"));
}

/// Both guards die, and before others come the root and whoever stood above the member that has neither mark nor
/// parent any more.
fn orphan_the_unmarked(owner: &TreeOwner) {
    let guards = owner.guards().expect("guards");
    let own = owner.identity();
    assert!(own.signal(Signal::STOP));
    wait_for("stopped", || (own.state()? == "T").then_some(()));
    kill_both(guards.keeper.expect("a keeper"), guards.supervisor);
    for name in ["launcher", "program"] {
        owner.member(name).kill();
        wait_for("it is dead", || (!owner.member(name).lives()).then_some(()));
    }
    assert!(own.signal(Signal::CONT));
}

#[test]
fn after_both_guards_died_a_cgroup_knows_who_has_no_mark_and_no_parent() {
    if tier::cgroup().is_none() {
        return;
    }
    let around = Bystanders::start();
    let owner = TreeOwner::start(GRACE, "");
    orphan_the_unmarked(&owner);
    // Leftovers of a child that is dead: they go while the owner lives.
    wait_for("nothing is left", || owner.living().is_empty().then_some(()));
    assert!(owner.identity().lives());
    around.assert_untouched();
}

#[test]
fn without_a_cgroup_who_has_no_mark_and_no_parent_escapes() {
    if no_hooks() {
        return;
    }
    let owner = TreeOwner::start(GRACE, "cgroup");
    orphan_the_unmarked(&owner);
    wait_for("whoever can be told is ended", || (owner.living() == ["cleared"]).then_some(()));
    owner.signal(Signal::KILL);
    wait_for("the guards think that they are done", || owner.guards().is_none().then_some(()));
    assert_eq!(owner.living(), ["cleared"]);
}

/// An owner inside of a scope makes its cgroups inside of that scope's; with the outer one all of it goes.
#[test]
fn what_an_owner_inside_of_a_scope_starts_ends_with_the_scope() {
    let Some(base) = tier::cgroup() else { return };
    let dir = tempfile::tempdir().expect("dir");
    let (stdin, _kept) = rustix::pipe::pipe().expect("pipe");
    let inner = Spawn::new(example("tree-owner")).arg(dir.path()).arg("300");
    let (child, _events) = start(&owner(), inner.fd(0, stdin).grace(GRACE));
    let members: Vec<_> = MEMBERS.iter().map(|name| recorded(dir.path(), name)).collect();
    let outer = cell(&base, &child);
    let inside = fs::read_dir(&outer).expect("read").flatten();
    let places =
        inside.filter(|entry| entry.file_name().to_string_lossy().starts_with("ownership-"));
    assert_eq!(places.count(), 1, "its place is inside of ours");
    child.end(GRACE);
    child.wait_empty().expect("empty");
    assert!(members.iter().all(|member| !member.lives()));
    is_gone(&outer);
}

/// A child may do to its cgroup what its user may: leave it, freeze it, make others inside. None of that saves
/// it, and all of it is bounded.
#[test]
fn a_child_that_plays_with_its_cgroup_ends_all_the_same() {
    let Some(base) = tier::cgroup() else { return };
    let tricks = [
        ("leaves", "echo $$ > \"$BASE/cgroup.procs\""),
        ("hides inside", "mkdir \"$CELL/a\" \"$CELL/a/b\" && echo $$ > \"$CELL/a/b/cgroup.procs\""),
        ("freezes", "(sleep 600 &) ; echo $$ > \"$DIR/ready\"; echo 1 > \"$CELL/cgroup.freeze\""),
        ("forbids", "chmod 0 \"$CELL\" \"$CELL\"/cgroup.procs \"$CELL\"/cgroup.kill"),
    ];
    for (name, trick) in tricks {
        let dir = tempfile::tempdir().expect("dir");
        let head =
            "CELL=$BASE/$(sed -n 's/^0:://p' /proc/self/cgroup | sed 's/.*ownership-/ownership-/')";
        let script = format!(
            "{head}; (setsid sleep 600 &); trap '' TERM; {trick}; echo $$ > \"$DIR/ready\"; while :; do sleep 600; done"
        );
        let spawn = shell(&script).env("DIR", dir.path()).env("BASE", &base).grace(GRACE);
        let (child, _events) = start(&owner(), spawn);
        let root = recorded(dir.path(), "ready");
        assert!(root.lives(), "{name}");
        child.end(GRACE);
        let emptied = child.wait_empty().expect("empty");
        assert!(emptied.left.is_empty() && !root.lives(), "{name}: {emptied:?}");
    }
}

/// What cannot be removed would stay for ever, and every later owner would try again and again.
#[test]
fn however_a_child_nests_cgroups_they_go_with_it() {
    let Some(base) = tier::cgroup() else { return };
    let name = "n".repeat(200);
    // More than a guard looks through, and deeper than a path can say.
    let wide = "mkdir $(seq 3000)".to_owned();
    let deep = format!("for i in $(seq 30); do mkdir {name} && cd -P {name} || exit 9; done");
    for (how, trick) in [("wide", wide), ("deep", deep)] {
        let head =
            "CELL=$BASE/$(sed -n 's/^0:://p' /proc/self/cgroup | sed 's/.*ownership-/ownership-/')";
        let script =
            format!("{head}; cd $CELL && {trick}; echo $$ > \"$DIR/ready\"; exec sleep 600");
        let dir = tempfile::tempdir().expect("dir");
        let spawn = shell(&script).env("DIR", dir.path()).env("BASE", &base).grace(GRACE);
        let (child, _events) = start(&owner(), spawn);
        let root = recorded(dir.path(), "ready");
        let cell = cell(&base, &child);
        assert!(
            fs::read_dir(&cell).expect("cell").flatten().any(|one| one.path().is_dir()),
            "{how}"
        );
        child.kill();
        let emptied = child.wait_empty().expect("empty");
        assert!(emptied.left.is_empty() && !root.lives(), "{how}: {emptied:?}");
        is_gone(&cell);
    }
}

#[test]
fn an_exempt_job_stands_outside() {
    if tier::cgroup().is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    let (child, _events) = start(&owner(), sleeper());
    assert!(child.cgroup().is_some());
    let helper = Program::named(env!("CARGO_BIN_EXE_ownership-supervisor"));
    let exemption = Exemption::new("a test");
    let job =
        spawn_exempt_by(&helper, sleeper(), exemption, &dir.path().join("jobs")).expect("a job");
    let pid = job.pid().expect("pid");
    let own = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("read");
    assert!(!own.contains("/ownership-"), "{own}");
    job.stop(Duration::ZERO).expect("stopped");
}

/// An owner in a mount namespace in which `prepare` was done, and what its first child is told.
fn elsewhere(prepare: &str, containment: &str) -> (Player, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("dir");
    let script = format!("{prepare} && exec \"$0\"");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).arg(example("scripted-owner"));
    command.env("DIR", dir.path()).env("OWNERSHIP_TEST_CONTAINMENT", containment);
    (Player::start(&mut command), dir)
}

/// Machines that have less, made from this one: it falls back, and what was asked for by name is refused.
#[test]
fn where_no_cgroup_can_be_had_auto_does_without_and_cgroup_is_an_error() {
    if tier::cgroup().is_none() || no_hooks() {
        return;
    }
    let mount = Machine::look().cgroup.mount.expect("a mount").display().to_string();
    let machines = [
        ("read-only", format!("mount -o remount,bind,ro {mount} {mount}"), "Read-only"),
        ("not mounted", format!("umount {mount}"), "mounted"),
    ];
    for (name, prepare, said) in machines {
        let (mut auto, _dir) = elsewhere(&prepare, "auto");
        auto.say("spawn 1 50 exec sleep 600");
        auto.until("started", |player| player.told("started", 1) == 1).expect(name);
        let child = auto.started[&1];
        let own = fs::read_to_string(format!("/proc/{}/cgroup", child.pid)).expect("read");
        assert!(!own.contains("/ownership-"), "{name}: {own}");
        auto.process.kill().expect("kill");
        auto.process.wait().expect("dead");
        wait_for("it ends by descent", || (!child.lives()).then_some(()));
        let (mut named, _dir) = elsewhere(&prepare, "cgroup");
        named.say("spawn 1 50 exec sleep 600");
        named.until("an answer", |player| player.told("failed", 1) == 1).expect(name);
        let of = named.of(1);
        assert!(
            of.iter().any(|word| word.contains("(containment") && word.contains(said)),
            "{of:?}"
        );
        named.process.kill().expect("kill");
        named.process.wait().expect("dead");
    }
}

/// A cgroup of the test, removed with it.
struct Own(PathBuf);

impl Drop for Own {
    fn drop(&mut self) {
        let inside = fs::read_dir(&self.0).into_iter().flatten().flatten();
        inside.filter(|e| e.path().is_dir()).for_each(|e| drop(fs::remove_dir(e.path())));
        wait_for("nobody is in it", || fs::remove_dir(&self.0).ok());
    }
}

/// The cgroup of the first child of an owner that stands in this one, with no rights but those of `user`.
fn first_in(own: &Own, user: &str) -> String {
    let ids = format!("--reuid={user} --regid={user} --clear-groups");
    let script = format!("echo $$ > \"$CGROUP/cgroup.procs\" && exec setpriv {ids} \"$0\"");
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(example("scripted-owner"));
    command.env("CGROUP", &own.0).env("DIR", "/").current_dir("/");
    let mut player = Player::start(&mut command);
    player.say("spawn 1 50 exec sleep 600");
    player.until("started", |player| player.told("started", 1) == 1).expect("started");
    let child = player.started[&1];
    let text = fs::read_to_string(format!("/proc/{}/cgroup", child.pid)).expect("read");
    player.process.kill().expect("kill");
    player.process.wait().expect("dead");
    wait_for("it ends", || (!child.lives()).then_some(()));
    text
}

/// A user without rights that was given a cgroup uses it; one that stands in a cgroup of somebody else, or in a
/// threaded one, does without.
#[test]
fn a_user_uses_what_was_delegated_and_nothing_else() {
    let Some(base) = tier::cgroup() else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: ONLY ROOT CAN BECOME A USER WITHOUT RIGHTS");
        return;
    }
    let user = "65534";
    let make = |name: &str| {
        let own = Own(base.join(format!("test-{name}-{}", std::process::id())));
        fs::create_dir(&own.0).expect("make");
        own
    };
    let delegated = make("delegated");
    for file in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
        std::os::unix::fs::chown(delegated.0.join(file), Some(65534), Some(65534)).expect("chown");
    }
    let place = "/ownership-";
    assert!(first_in(&delegated, user).contains(place));
    let others = make("others");
    assert!(!first_in(&others, user).contains(place));
    assert!(first_in(&others, "0").contains(place), "its owner may");
    let threaded = make("threaded");
    fs::create_dir(threaded.0.join("inside")).expect("make");
    fs::write(threaded.0.join("inside/cgroup.type"), "threaded").expect("threaded");
    assert!(!first_in(&threaded, "0").contains(place));
}

#[test]
fn a_containment_that_cannot_be_had_is_an_error_with_a_reason() {
    let owner = owner().with_containment(Containment::Cgroup);
    match owner.spawn(sleeper(), |_| {}) {
        Ok(child) => assert!(child.cgroup().is_some()),
        Err(error) => {
            assert_eq!(error.phase, Phase::Contain);
            let why: Option<Why> = Machine::look().refusal(Tier::Cgroup);
            let why = why.expect("a reason").to_string();
            assert!(error.to_string().contains(&why), "{error}");
        }
    }
}

/// The unit of what is asked for: guards of one owner, all of its clones.
#[test]
fn the_first_containment_of_an_owner_stays() {
    let owner: Owner = owner().with_containment(Containment::Subreaper);
    let later = owner.clone().with_containment(Containment::Auto);
    let asked = tier::asked();
    let (child, _events) = start(&later, sleeper());
    // The owner of these tests has one already.
    let has_one = asked == Containment::Auto && tier::used() == Tier::Cgroup;
    assert_eq!(child.cgroup().is_some(), has_one);
}

#[test]
fn guards_are_never_in_what_they_guard() {
    let (child, _events) = start(&owner(), sleeper());
    let who = Identity::of(child.pid().cast_signed()).expect("child");
    let guards = wait_for("guards", || process::Guards::of(who));
    let of = |who: Identity| fs::read_to_string(format!("/proc/{}/cgroup", who.pid)).expect("read");
    let own = of(Identity::of(std::process::id().cast_signed()).expect("this process"));
    assert_eq!(of(guards.supervisor), own);
    assert_eq!(guards.keeper.map(of), Some(own));
}

/// What has given up being a subreaper leaves its orphans to the guard, while it lives itself. By descent they are
/// nobody's but the owner's, and stay until its end; a cgroup tells whose they are.
///
/// One that ignores TERM is killed after the grace that was asked for: with the 3 s that nobody asked for it would live
/// longer.
#[test]
fn an_orphan_that_lost_its_way_ends_with_its_scope_and_its_grace() {
    if tier::cgroup().is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    let program = support::loose_program(dir.path());
    let owner = owner();
    let (beside, _events) = start(&owner, sleeper());
    for stubborn in [false, true] {
        let dir = dir.path().join(stubborn.to_string());
        fs::create_dir(&dir).expect("dir");
        let spawn = Spawn::new(&program).env("DIR", &dir).grace(GRACE);
        let spawn = if stubborn { spawn.env("STUBBORN", "1") } else { spawn };
        let (child, _events) = start(&owner, spawn);
        let daemon = recorded(&dir, "daemon");
        let supervisor = support::supervisor_of(&beside);
        wait_for("it is left to the guard", || {
            (daemon.parent() == Some(supervisor.pid)).then_some(())
        });
        let began = Instant::now();
        child.end(GRACE);
        wait_for("it ends with its scope", || (!daemon.lives()).then_some(()));
        let took = began.elapsed();
        assert!((!stubborn || took >= GRACE) && took < Duration::from_secs(3), "{took:?}");
    }
    assert!(Identity::of(beside.pid().cast_signed()).is_some_and(Identity::lives));
}

/// What waits for the death of another to start a new one has had its own TERM before it can see that: all stood still
/// while it was sent. Without that it starts one, since hundreds are told between the two.
#[test]
fn nobody_sees_another_end_before_it_was_told_itself() {
    if tier::cgroup().is_none() || no_hooks() {
        return;
    }
    // Told in the order of their numbers: the one that is watched, many, and the one that watches.
    let script = "cd \"$DIR\"; mkfifo held; setsid sh -c 'exec 3> held; exec sleep 600' &
        i=0; while test $i -lt 400; do sleep 600 & i=$((i + 1)); done
        setsid sh -c 'exec < held; : > watches; read end; : > saw; exec sleep 600' &
        until test -e watches; do sleep 0.02; done; exit 0";
    let saw = |off: &str| {
        let dir = tempfile::tempdir().expect("dir");
        let status = Command::new(env!("CARGO_BIN_EXE_own"))
            .args(["--quiet", "--grace", "20s", "--", "sh", "-c", script])
            .env("DIR", dir.path())
            .env("OWNERSHIP_TEST_OFF", off)
            .env("OWNERSHIP_TEST_CONTAINMENT", "cgroup")
            .status()
            .expect("own");
        assert!(status.success(), "{status}");
        dir.path().join("saw").exists()
    };
    assert!(!(0..3).any(|_| saw("")), "it stood still");
    // That it is quick enough is luck, in which it is tried until it has it.
    assert!((0..20).any(|_| saw("freeze")), "nobody stands still");
}
