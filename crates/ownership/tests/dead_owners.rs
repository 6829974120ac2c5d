//! What dead owners left in the place of an owner that starts: found by its cgroup, ended where it is proved to be nobody's,
//! and nothing else. Beside each case that kills stand another owner with its tree and a stranger.
#![expect(clippy::disallowed_methods, reason = "strangers are started by the test itself")]

#[path = "../examples/support/player.rs"]
mod player;
mod support;
use support::process;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ownership::Spawn;
use ownership::containment::Tier;
use player::Player;
use rustix::process::Signal;
use support::matrix::{Bystanders, GRACE};
use support::tier::{cell, cell_of, is_gone};
use support::tree::MEMBERS;
use support::{Identity, TreeOwner, example, kill_both, no_hooks, owner, start, tier, wait_for};

fn sleeper() -> Spawn {
    Spawn::new("sleep").arg("600")
}

/// Where nobody says that a guard lives, the guards of another owner may take it for a dead owner's while it is being
/// ended. The keeper says so as soon as it is the only one.
#[test]
fn a_keeper_that_takes_over_holds_the_place() {
    use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
    let Some(base) = tier::cgroup() else { return };
    let owner = owner();
    let (child, _events) = start(&owner, sleeper());
    let place = cell(&base, &child).parent().expect("a place").to_owned();
    let own = Identity::of(child.pid().cast_signed()).expect("it lives");
    let supervisor = own.parent().and_then(Identity::of).expect("its guard");
    supervisor.kill();
    wait_for("another guard is its parent", || (own.parent()? != supervisor.pid).then_some(()));
    let fd = open(&place, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).expect("a directory");
    wait_for("it is held", || {
        let free = flock(&fd, FlockOperation::NonBlockingLockExclusive).is_ok();
        if free {
            flock(&fd, FlockOperation::Unlock).expect("unlock");
        }
        (!free).then_some(())
    });
}

/// The same where both guards have died and others stand in their place: their owner may die before it has told them
/// anything.
#[test]
fn guards_that_come_later_hold_the_place_from_their_start() {
    let Some(base) = tier::cgroup() else { return };
    let owner = TreeOwner::start(GRACE, "");
    let cell = cell_of(&base, owner.member("cleared"));
    let inode = fs::metadata(cell.parent().expect("a place")).expect("a directory").ino();
    let before = owner.guards().expect("guards");
    kill_both(before.keeper.expect("a keeper"), before.supervisor);
    let after = wait_for("others are there", || {
        let guards = owner.guards()?;
        (guards.keeper.is_some() && guards != before).then_some(guards)
    });
    // It is set up before it starts its supervisor.
    let keeper = after.keeper.expect("a keeper").pid;
    let locks = fs::read_to_string("/proc/locks").expect("locks");
    let is_its = |line: &&str| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.contains(&"FLOCK")
            && words.contains(&keeper.to_string().as_str())
            && words.iter().any(|word| word.ends_with(&format!(":{inode}")))
    };
    assert_eq!(locks.lines().filter(is_its).count(), 1, "keeper {keeper}, inode {inode}:\n{locks}");
}

/// Stops all of them, so that nobody does anything between the first death and the last. From the lowest one up: a death
/// above a stopped group would continue it (`setpgid(2)`).
fn kill_all_at_once(owner: &mut TreeOwner) {
    let guards = owner.guards().expect("guards");
    let all = [guards.supervisor, guards.keeper.expect("a keeper"), owner.identity()];
    for who in all {
        assert!(who.signal(Signal::STOP));
        wait_for("stopped", || (who.state()? == "T").then_some(()));
    }
    all.into_iter().for_each(Identity::kill);
    owner.process.wait().expect("dead");
    wait_for("all are gone", || all.iter().all(|who| !who.lives()).then_some(()));
}

/// An owner that starts one program and ends it: its guards have looked around by then.
fn another_owner_comes() {
    let owner = owner();
    let (child, _events) = start(&owner, Spawn::new("true"));
    child.wait_empty().expect("empty");
}

/// The hole of the weakest tier: owner and both guards die in the same instant.
///
/// | tier | left after that | left after the next owner's start |
/// |---|---|---|
/// | subreaper | all of it | all of it |
/// | cgroup | all of it | nothing |
#[test]
fn what_owner_and_guards_leave_that_die_at_once_is_ended_by_the_next_owner() {
    if tier::cgroup().is_none() {
        return;
    }
    let around = Bystanders::start();
    let mut owner = TreeOwner::start(GRACE, "");
    kill_all_at_once(&mut owner);
    another_owner_comes();
    // In another process: with those guards the grace of what they found goes too.
    let next = TreeOwner::start(GRACE, "");
    wait_for("nothing is left", || owner.living().is_empty().then_some(()));
    around.assert_untouched();
    drop(next);
}

#[test]
fn without_a_cgroup_the_next_owner_finds_nothing() {
    if no_hooks() {
        return;
    }
    let around = Bystanders::start();
    let mut without = TreeOwner::start(GRACE, "cgroup");
    kill_all_at_once(&mut without);
    let mut with = TreeOwner::start(GRACE, "");
    let has_cgroup = tier::used() == Tier::Cgroup;
    if has_cgroup {
        kill_all_at_once(&mut with);
    }
    let next = TreeOwner::start(GRACE, "");
    if has_cgroup {
        wait_for("the other tree is found", || with.living().is_empty().then_some(()));
    } else {
        another_owner_comes();
    }
    // Whoever was stopped may be continued by the kernel, and who is no orphan may not: nobody is ended.
    assert_eq!(without.living(), MEMBERS);
    around.assert_untouched();
    drop(next);
}

/// A process of a test, reaped by it.
struct Beside(Child, Identity);

impl Beside {
    fn start() -> Self {
        Self::of(Command::new("sleep").arg("600"))
    }

    /// One that TERM does not end.
    fn stubborn() -> Self {
        let stubborn = Self::of(Command::new("env").args(["--ignore-signal=TERM", "sleep", "600"]));
        wait_for("it ignores TERM", || (stubborn.1.name() == "sleep").then_some(()));
        stubborn
    }

    fn of(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).spawn().expect("a program");
        let identity = Identity::of(child.id().cast_signed()).expect("it is there");
        Self(child, identity)
    }
}

/// Who an owner was that is dead.
fn a_dead_owner() -> Identity {
    let mut child = Command::new("true").spawn().expect("true");
    let dead = Identity::of(child.id().cast_signed()).expect("it is there");
    child.wait().expect("dead");
    dead
}

fn own_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").expect("namespace").ino()
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A cgroup that looks like an owner's, with somebody in it or not. Removed with the test.
struct Planted {
    dir: PathBuf,
    member: Option<Beside>,
    /// As a living guard has it.
    lock: Option<OwnedFd>,
}

impl Planted {
    /// Locked: guards of other tests look around at any time.
    fn new(
        base: &Path,
        owner: Identity,
        number: u32,
        namespace: u64,
        member: Option<Beside>,
    ) -> Self {
        let Identity { pid, start } = owner;
        let dir = base.join(format!("ownership-{pid}.{start}.{number}-{namespace}"));
        let lock = wait_for("it is made and locked", || {
            fs::create_dir(&dir).ok();
            // One of them may just have removed it.
            locked(&dir).filter(|_| fs::create_dir(dir.join("1")).is_ok())
        });
        let planted = Self { dir, member, lock: Some(lock) };
        if let Some(Beside(_, who)) = &planted.member {
            let procs = planted.dir.join("1/cgroup.procs");
            fs::write(procs, who.pid.to_string()).expect("move");
        }
        planted
    }

    fn member(&self) -> Identity {
        self.member.as_ref().expect("a member").1
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        drop(self.member.take());
        for dir in [self.dir.join("1"), self.dir.clone()] {
            // Others may have removed it.
            fs::remove_dir(dir).ok();
        }
    }
}

fn locked(dir: &Path) -> Option<OwnedFd> {
    use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
    let fd = open(dir, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    flock(&fd, FlockOperation::NonBlockingLockShared).ok()?;
    Some(fd)
}

/// Ends what nobody owns any more, and nothing else: whose owner lives, whose guards live, and what was made in
/// another pid namespace, where numbers mean others, stays.
#[test]
fn only_what_is_proved_to_be_nobodys_is_ended() {
    let Some(base) = tier::cgroup() else { return };
    let (dead, namespace) = (a_dead_owner(), own_namespace());
    let own = Identity::of(std::process::id().cast_signed()).expect("this process");
    let mut living = Planted::new(&base, own, 7001, namespace, Some(Beside::start()));
    let mut foreign = Planted::new(&base, dead, 7002, namespace + 1, Some(Beside::start()));
    let guarded = Planted::new(&base, dead, 7003, namespace, Some(Beside::start()));
    let mut stale = Planted::new(&base, dead, 7004, namespace, Some(Beside::start()));
    let mut empty = Planted::new(&base, dead, 7005, namespace, None);
    for planted in [&mut living, &mut foreign, &mut stale, &mut empty] {
        planted.lock = None;
    }
    let (_child, _events) = start(&owner(), sleeper());
    is_gone(&stale.dir);
    is_gone(&empty.dir);
    assert!(!stale.member().lives());
    for (name, planted) in [("living", &living), ("foreign", &foreign), ("guarded", &guarded)] {
        assert!(planted.member().lives(), "{name}");
    }
}

/// However much dead owners left, an owner does not wait until all of it was told to end: its first child is there before
/// that. Several looks, since on a busy machine whoever asks may come too late to see it.
#[test]
fn an_owner_does_not_wait_for_what_others_left() {
    const LEFT: u32 = 60;
    let Some(base) = tier::cgroup() else { return };
    let waits = |_| {
        let (dead, namespace) = (a_dead_owner(), own_namespace());
        let plant =
            |number| Planted::new(&base, dead, 7100 + number, namespace, Some(Beside::start()));
        let mut planted: Vec<_> = (0..LEFT).map(plant).collect();
        planted.iter_mut().for_each(|planted| planted.lock = None);
        let (_child, _events) = start(&owner(), sleeper());
        let untold = planted.iter().filter(|planted| planted.member().is_untold()).count();
        wait_for("all are ended", || {
            planted.iter().all(|planted| !planted.member().lives()).then_some(())
        });
        untold == 0
    };
    assert!(!(0..8).all(waits), "all was told first, eight times");
}

/// A cgroup in which guards see nothing of other tests, nor these of them. Removed with the test.
struct Apart(PathBuf);

impl Drop for Apart {
    fn drop(&mut self) {
        wait_for("nobody is in it", || fs::remove_dir(&self.0).ok());
    }
}

/// Whoever was told to end and does not is killed after a grace: guards that have nothing else to do wait for that.
#[test]
fn guards_without_children_stay_until_what_they_found_is_ended() {
    let Some(base) = tier::cgroup() else { return };
    if no_hooks() {
        return;
    }
    let apart = Apart(base.join(format!("apart-{}", std::process::id())));
    fs::create_dir(&apart.0).expect("make");
    let (dead, namespace) = (a_dead_owner(), own_namespace());
    let mut left = Planted::new(&apart.0, dead, 7200, namespace, Some(Beside::stubborn()));
    left.lock = None;
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ > $APART/cgroup.procs && exec \"$0\""]);
    command.arg(example("scripted-owner")).env("APART", &apart.0).env("DIR", "/");
    let mut owner = Player::start(command.env("OWNERSHIP_TEST_IDLE_MS", "1"));
    owner.say("spawn 1 50 true");
    owner.until("ended", |player| player.told("emptied", 1) == 1).expect("ended");
    wait_for("it is killed", || (!left.member().lives()).then_some(()));
    owner.process.kill().expect("kill");
    owner.process.wait().expect("dead");
}
