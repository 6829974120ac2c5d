//! Numbers that are handed out again: strangers take the numbers of members, roots, groups, owners and guards
//! the moment that they are free, and are not touched. Each test has a pid namespace of its own, in which it
//! is PID 1 and says which number comes next.
#![expect(clippy::disallowed_methods, reason = "strangers are not owned")]

mod support;

use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ownership::Owned;
use support::process::{Guards, everybody};
use support::{Identity, TreeOwner, example, namespace, owner, process, shell, wait_for};

#[path = "../examples/support/player.rs"]
mod player;

use player::Player;

const LIMIT: Duration = Duration::from_secs(120);
const GRACE: Duration = Duration::from_millis(300);

/// Somebody who got a number that was another's, and belongs to nobody.
struct Heir {
    process: Child,
    identity: Identity,
}

impl Heir {
    /// Takes the number if it is free now. `leader`: the number of a group too.
    fn take(number: i32, leader: bool) -> Option<Self> {
        if Identity::of(number).is_some() {
            return None;
        }
        std::fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).ok()?;
        let mut command = Command::new("sleep");
        command.arg("600").stdin(Stdio::null());
        if leader {
            command.process_group(0);
        }
        let mut process = command.spawn().expect("sleep");
        let identity = Identity::of(process.id().cast_signed()).expect("a stranger");
        if identity.pid == number {
            return Some(Self { process, identity });
        }
        // Somebody else was started in between.
        process.kill().expect("kill");
        process.wait().expect("wait");
        None
    }

    /// Takes it as soon as it is free.
    fn wait(number: i32, leader: bool) -> Self {
        wait_for(&format!("number {number} again"), || Self::take(number, leader))
    }

    fn is_untouched(&mut self) -> bool {
        let running = self.identity.state().is_some_and(|state| state != "T");
        running && self.process.try_wait().expect("our own child").is_none()
    }
}

impl Drop for Heir {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Everybody below a process.
fn descendants(root: i32) -> Vec<Identity> {
    let mut found = vec![root];
    let parents: HashMap<i32, i32> =
        everybody().filter_map(|who| Some((who.pid, who.parent()?))).collect();
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(parents.iter().filter(|(_, above)| **above == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    found.into_iter().filter_map(Identity::of).collect()
}

/// Members that ignore TERM and die by themselves, each at another time around the end of the grace.
const MORTALS: &str = r#"
trap "" TERM
for time in 0.01 0.02 0.03 0.04 0.05 0.06 0.07 0.08; do
    setsid sleep "$time" &
    (sh -c "sleep $time; sleep $time" &)
done
sleep 600"#;

/// While a scope is looked through and signalled, its members die and strangers get their numbers.
#[test]
fn c59_strangers_with_numbers_of_members_are_not_touched() {
    if !namespace::enter("c59_strangers_with_numbers_of_members_are_not_touched", LIMIT) {
        return;
    }
    let owner = owner();
    let mut taken = 0;
    for round in 0..40_u64 {
        let grace = Duration::from_millis(5 + round % 10 * 5);
        let child = owner.spawn(shell(MORTALS).grace(grace), |_| {}).expect("spawn");
        let root = child.pid().cast_signed();
        wait_for("members", || (descendants(root).len() > 12).then_some(()));
        let members = descendants(root);
        child.end(grace);
        let mut heirs = inherit(&child, &members);
        for heir in &mut heirs {
            let was = members.iter().find(|who| who.pid == heir.identity.pid);
            let now = heir.process.try_wait();
            assert!(
                heir.is_untouched(),
                "{round}: the heir {:?} of {was:?}: {now:?}",
                heir.identity
            );
        }
        // An heir may have the start time as well.
        let is_heir = |who: &Identity| heirs.iter().any(|heir| heir.identity.pid == who.pid);
        assert!(members.iter().all(|who| is_heir(who) || !who.lives()), "round {round}");
        taken += heirs.len();
    }
    println!("{taken} numbers of members were taken over");
    assert!(taken >= 100, "only {taken} numbers were taken over");
}

/// Takes over what numbers it can until the scope is empty, and once more.
fn inherit(child: &Owned, members: &[Identity]) -> Vec<Heir> {
    std::thread::scope(|threads| {
        let waits = threads.spawn(|| child.wait_empty().expect("empty"));
        let mut heirs: Vec<Heir> = Vec::new();
        loop {
            let last = waits.is_finished();
            for member in members {
                let free = heirs.iter().all(|heir| heir.identity.pid != member.pid);
                heirs.extend(free.then(|| Heir::take(member.pid, false)).flatten());
            }
            if last {
                return heirs;
            }
        }
    })
}

/// A root that leaves somebody who ignores TERM, and tells its own start time.
const LEAVES: &str = r#"
read -r line < /proc/$$/stat
echo "$line" > "$DIR/stat"
trap "" TERM
setsid sleep 600 &
exit 0"#;

/// The leader was reaped and its group is empty, but its scope is not: its number, and with it the group's,
/// is a stranger's.
#[test]
fn a_stranger_with_the_number_of_a_root_and_its_group_is_not_touched() {
    if !namespace::enter("a_stranger_with_the_number_of_a_root_and_its_group_is_not_touched", LIMIT)
    {
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    for round in 0..10 {
        let spawn = shell(LEAVES).env("DIR", dir.path()).grace(GRACE);
        let child = owner.spawn(spawn, |_| {}).expect("spawn");
        let root = child.pid().cast_signed();
        child.wait().expect("exit");
        let mut heir = Heir::wait(root, true);
        if round % 2 == 0 {
            child.end(Duration::ZERO);
        }
        child.wait_empty().expect("empty");
        assert!(heir.is_untouched());
        child.pause();
        child.resume();
        drop(child);
        let other = owner.spawn(shell("exit 0"), |_| {}).expect("spawn");
        other.wait_empty().expect("empty");
        assert!(heir.is_untouched(), "by what came after the end");
    }
}

/// Number and start time are those of the root: the clock of start times ticks a hundred times a second.
#[test]
fn a_stranger_with_the_number_and_the_start_time_of_a_root_is_not_touched() {
    if !namespace::enter(
        "a_stranger_with_the_number_and_the_start_time_of_a_root_is_not_touched",
        LIMIT,
    ) {
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let mut doubles = 0;
    // Only a quick stranger is born in the same tick, and on a busy machine few are.
    for round in 0..1500 {
        let spawn = shell(LEAVES).env("DIR", dir.path()).grace(Duration::from_millis(60));
        let child = owner.spawn(spawn, |_| {}).expect("spawn");
        let root = child.pid().cast_signed();
        child.wait().expect("exit");
        let mut heir = Heir::wait(root, doubles % 2 == 0);
        let line = std::fs::read_to_string(dir.path().join("stat")).expect("stat");
        let start = line.split(' ').nth(21).and_then(|start| start.parse().ok());
        doubles += u32::from(start == Some(heir.identity.start));
        child.end(Duration::from_millis(20));
        child.wait_empty().expect("empty");
        assert!(heir.is_untouched());
        if doubles >= 5 || (doubles > 0 && round >= 200) {
            break;
        }
    }
    println!("{doubles} strangers had the start time too");
    assert!(doubles > 0, "no stranger was quick enough");
}

/// Its guards have seen it die and are at work, when a stranger gets its number and that of its group.
#[test]
fn a_stranger_with_the_number_of_an_owner_is_not_touched() {
    if !namespace::enter("a_stranger_with_the_number_of_an_owner_is_not_touched", LIMIT) {
        return;
    }
    for _ in 0..8 {
        let mut command = Command::new(example("scripted-owner"));
        let mut player = Player::start(command.process_group(0));
        player.say("spawn 1 300 trap '' TERM; sleep 600 & sleep 600; sleep 600");
        player.say("spawn 2 300 exec sleep 600");
        player.ping().expect("spawned");
        let others: Vec<Identity> = player.alive();
        assert_eq!(others.len(), 2);
        player.process.kill().expect("kill");
        player.process.wait().expect("wait");
        let mut heir = Heir::wait(player.identity.pid, true);
        wait_for("its children are gone", || others.iter().all(|who| !who.lives()).then_some(()));
        wait_for("its guards have left", || no_guards().then_some(()));
        assert!(heir.is_untouched());
    }
}

fn no_guards() -> bool {
    everybody().all(|who| !process::is_guard(who))
}

/// Somebody else may be started in between.
const TRIES: usize = 50;

/// A stranger gets the number of a guard that was killed; what is left of the guards goes on and ends.
#[test]
fn a_stranger_with_the_number_of_a_guard_is_not_touched() {
    if !namespace::enter("a_stranger_with_the_number_of_a_guard_is_not_touched", LIMIT) {
        return;
    }
    for round in 0..6 {
        let mut owner = TreeOwner::start(GRACE, "");
        let Guards { keeper, supervisor } = owner.guards().expect("guards");
        let victim = keeper.filter(|_| round % 2 == 0).unwrap_or(supervisor);
        victim.kill();
        // Where nobody stands above it, it is ours to reap.
        let number = rustix::process::Pid::from_raw(victim.pid);
        wait_for("the guard is reaped", || {
            rustix::process::waitpid(number, rustix::process::WaitOptions::NOHANG).ok();
            Identity::of(victim.pid).is_none().then_some(())
        });
        // That of a session leader is nobody's while anybody is in its session, as the other guard is.
        let mut heir = (0..TRIES).find_map(|_| Heir::take(victim.pid, false));
        let pinned = keeper == Some(victim);
        assert!(heir.is_some() || pinned, "the guard's number again");
        if keeper.is_some() {
            wait_for("another pair", || owner.guards().filter(|now| now.keeper.is_some()));
            assert!(owner.is_whole(), "it keeps {:?}", owner.living());
        }
        owner.process.kill().expect("kill");
        owner.process.wait().expect("wait");
        if keeper.is_some() {
            wait_for("nothing is left", || owner.left().is_empty().then_some(()));
        }
        assert!(heir.as_mut().is_none_or(Heir::is_untouched));
    }
}
