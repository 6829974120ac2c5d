//! Rations of scopes: each limit holds what it says, for all of a scope; meeting one is told from any other end; and
//! whatever was made for it is gone when the scope is, whoever of the guards was killed. Where
//! somebody is killed, a stranger stands beside.

#[path = "../examples/support/player.rs"]
mod player;
mod support;
use support::process;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use ownership::containment::Machine;
use ownership::ration::{Limit, Means, Offers};
use ownership::{Containment, Exit, ExitStatus, Owner, Phase, Ration, Reached, Spawn};
use player::Player;
use support::{Identity, Stranger, example, no_hooks, owner, shell, start, tier, wait_for};

const MIB: u64 = 1 << 20;

fn means(limit: Limit) -> Option<Means> {
    Offers::look(tier::asked()).decide(limit).means
}

/// Whether a cgroup holds this limit here. Skips loudly where none does.
#[expect(clippy::print_stderr, reason = "skips loudly")]
fn is_held_together(limit: Limit) -> bool {
    let held = Offers::look(tier::asked()).decide(limit);
    let together = matches!(held.means, Some(Means::CgroupV1 | Means::CgroupV2 | Means::Counted));
    if !together {
        eprintln!("SKIPPED: NO CGROUP HOLDS {} HERE: {:?}", limit.word(), held.not);
    }
    together
}

/// Runs it to its end.
fn run(owner: &Owner, spawn: Spawn) -> Exit {
    let (child, _events) = start(owner, spawn);
    let exit = child.wait().expect("an end");
    child.wait_empty().expect("empty");
    exit
}

/// The group of a controller in which a process stands, below our own.
fn group_of(pid: i32, controller: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("cgroup");
    let line = text.lines().find(|line| {
        let names = line.split(':').nth(1).unwrap_or_default();
        names.split(',').any(|name| name == controller)
    });
    line.and_then(|line| line.splitn(3, ':').nth(2)).unwrap_or_default().to_owned()
}

/// Every directory that an owner has made in any hierarchy.
fn places_of(owner: Identity) -> Vec<PathBuf> {
    let head = format!("ownership-{}.{}.", owner.pid, owner.start);
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let roots = mounts.lines().filter(|line| line.contains(" - cgroup"));
    let mut waiting: Vec<PathBuf> =
        roots.filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect();
    let mut found = Vec::new();
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if entry.file_name().to_string_lossy().starts_with(&head) {
                found.push(entry.path());
            }
            waiting.push(entry.path());
        }
    }
    found
}

/// Fills memory until it is ended.
const HOG: &str = "head -c 400M /dev/zero | tail";

#[test]
fn who_runs_out_of_memory_is_ended_alone_and_it_is_told_from_a_kill() {
    if !is_held_together(Limit::Memory) {
        return;
    }
    let (owner, stranger) = (owner(), Stranger::start());
    let (beside, _events) = start(&owner, Spawn::new("sleep").arg("600"));
    let ration = Ration { memory: Some(48 * MIB), ..Ration::default() };
    // The shell itself is replaced by the hog's end of the pipe.
    let exit = run(&owner, shell(&format!("exec sh -c '{HOG}'")).ration(ration));
    assert!(exit.reached.memory >= 1, "{exit:?}");
    assert_eq!((exit.reached.processes, exit.reached.cpu), (0, false));
    // The same end without a limit: KILL, and nothing was met.
    let exit = run(&owner, shell("kill -9 $$").ration(ration));
    assert!(matches!(exit.status, ExitStatus::Signal { signal: 9, .. }), "{exit:?}");
    assert_eq!(exit.reached, Reached::default());
    let other = Identity::of(beside.pid().cast_signed()).expect("the one beside");
    assert!(other.lives() && stranger.is_untouched());
    beside.kill();
}

/// Whoever of a scope it is, and wherever he went.
#[test]
fn memory_is_that_of_all_of_a_scope() {
    if !is_held_together(Limit::Memory) {
        return;
    }
    let owner = owner();
    let ration = Ration { memory: Some(48 * MIB), ..Ration::default() };
    let escaped = format!("setsid sh -c 'env -i sh -c \"{HOG}\"' & wait; exit 0");
    let exit = run(&owner, shell(&escaped).ration(ration));
    assert_eq!(exit.status, ExitStatus::Code(0));
    assert!(exit.reached.memory >= 1, "{exit:?}");
    // Without a limit the same goes through.
    let exit = run(&owner, shell(&escaped));
    assert_eq!((exit.status, exit.reached), (ExitStatus::Code(0), Reached::default()));
}

#[test]
fn one_process_too_many_is_counted() {
    if !is_held_together(Limit::Processes) {
        return;
    }
    let owner = owner();
    let ration = Ration { processes: Some(4), ..Ration::default() };
    let forks = "for i in 1 2 3 4 5 6; do sleep 600 & done; exit 0";
    let exit = run(&owner, shell(forks).ration(ration));
    assert!(exit.reached.processes >= 1, "{exit:?}");
    let exit = run(&owner, shell(forks).ration(Ration { processes: Some(40), ..ration }));
    assert_eq!((exit.status, exit.reached), (ExitStatus::Code(0), Reached::default()));
}

/// Groups of version 1 need no cgroup of version 2 beside them.
#[test]
fn a_scope_that_is_held_by_descent_alone_may_have_a_ration() {
    let offers = Offers::look(Containment::Subreaper);
    let Some(means) = offers.decide(Limit::Processes).means else { return };
    assert_eq!(means, Means::CgroupV1);
    let owner = owner();
    let ration = Ration { processes: Some(4), ..Ration::default() };
    let forks = "for i in 1 2 3 4 5 6; do sleep 600 & done; exit 0";
    let spawn = shell(forks).containment(Containment::Subreaper).ration(ration);
    let (child, _events) = start(&owner, spawn);
    assert_eq!(child.cgroup(), None);
    assert!(child.wait().expect("an end").reached.processes >= 1);
    child.wait_empty().expect("empty");
}

/// Number 1 of it stands outside of what is counted, or is one of them.
#[test]
fn a_scope_with_a_pid_namespace_may_have_a_ration() {
    if Machine::look().refusal(ownership::containment::Tier::PidNamespace).is_some()
        || !is_held_together(Limit::Processes)
    {
        return;
    }
    let owner = owner();
    let own = rustix::process::getpriority_process(None).expect("nice");
    let ration = Ration { processes: Some(6), nice: Some(3), ..Ration::default() };
    let forks = "for i in 1 2 3 4 5 6 7 8; do sleep 600 & done; exit 0";
    let script = format!("test $(nice) = {} || exit 9; {forks}", (own + 3).min(19));
    let exit = run(&owner, shell(&script).containment(Containment::PidNamespace).ration(ration));
    assert_ne!(exit.status, ExitStatus::Code(9));
    assert!(exit.reached.processes >= 1, "{exit:?}");
}

#[test]
fn what_cannot_be_held_is_refused_and_says_why() {
    if means(Limit::Processes).is_some() && no_hooks() {
        return;
    }
    let mut owner = Player::start(
        Command::new(example("scripted-owner"))
            .env("OWNERSHIP_TEST_OFF", "v1,cgroup")
            .env("SPAWN_RATION", "- 4"),
    );
    owner.say("spawn 1 100 exec sleep 600");
    owner.until("an answer", |owner| !owner.of(1).is_empty()).expect("answered");
    let said = owner.of(1);
    assert!(said[0].starts_with("failed nothing was started (ration"), "{said:?}");
    assert_eq!(Phase::Ration.word(), "ration");
}

/// Without a controller memory is what each process may have for itself.
#[test]
fn without_a_controller_memory_is_a_limit_of_each_process() {
    if no_hooks() {
        return;
    }
    let mut owner = Player::start(
        Command::new(example("scripted-owner"))
            .env("OWNERSHIP_TEST_OFF", "v1,cgroup")
            .env("SPAWN_RATION", (64 * MIB).to_string()),
    );
    owner.say("spawn 1 100 exec sleep 600");
    owner.until("it runs", |owner| owner.started.contains_key(&1)).expect("started");
    let child = owner.started[&1];
    let limits = fs::read_to_string(format!("/proc/{}/limits", child.pid)).expect("limits");
    let data = limits.lines().find(|line| line.starts_with("Max data size")).expect("a line");
    assert!(data.contains(&(64 * MIB).to_string()), "{data}");
}

#[test]
fn open_files_are_those_of_each_process() {
    let owner = owner();
    let ration = Ration { open_files: Some(17), ..Ration::default() };
    let script = "test $(ulimit -n) = 17 && test $(sh -c 'ulimit -Hn') = 17";
    let exit = run(&owner, shell(script).ration(ration));
    assert_eq!(exit.status, ExitStatus::Code(0));
    let exit = run(&owner, shell("test $(ulimit -n) = 17"));
    assert_eq!(exit.status, ExitStatus::Code(1));
}

#[test]
fn a_process_that_uses_up_its_time_is_told_from_any_other_end() {
    let owner = owner();
    let ration = Ration { cpu: Some(Duration::from_secs(1)), ..Ration::default() };
    let exit = run(&owner, shell("while :; do :; done").ration(ration));
    assert!(matches!(exit.status, ExitStatus::Signal { .. }), "{exit:?}");
    assert_eq!(exit.reached, Reached { cpu: true, ..Reached::default() });
    let exit = run(&owner, shell("exit 3").ration(ration));
    assert_eq!((exit.status, exit.reached), (ExitStatus::Code(3), Reached::default()));
}

/// None of them uses up the time alone.
#[test]
fn time_is_that_of_all_of_a_scope() {
    if !is_held_together(Limit::Cpu) {
        return;
    }
    let owner = owner();
    let ration = Ration { cpu: Some(Duration::from_secs(2)), ..Ration::default() };
    let hogs = "for n in 1 2 3 4; do while :; do :; done & done; wait; exit 0";
    let exit = run(&owner, shell(hogs).ration(ration));
    assert!(exit.reached.cpu, "{exit:?}");
    // The root itself has used next to nothing: it was ended with the rest.
    assert!(matches!(exit.status, ExitStatus::Signal { signal: 15, .. }), "{exit:?}");
}

#[test]
fn a_nice_value_is_that_of_the_child_and_of_what_it_starts() {
    let owner = owner();
    let own = rustix::process::getpriority_process(None).expect("nice");
    let dir = tempfile::tempdir().expect("dir");
    let ration = Ration { nice: Some(7), ..Ration::default() };
    let script = "sh -c 'echo $$ > \"$DIR/helper\"; exec sleep 600' & echo $$ > \"$DIR/own\"; wait";
    let (child, _events) = start(&owner, shell(script).env("DIR", dir.path()).ration(ration));
    for name in ["own", "helper"] {
        let who = support::recorded(dir.path(), name);
        let pid = rustix::process::Pid::from_raw(who.pid).expect("a number");
        let nice = rustix::process::getpriority_process(Some(pid)).expect("nice");
        assert_eq!(nice, (own + 7).min(19), "{name}");
        // Its session is a group of its own for the scheduler, where the kernel has such.
        let file = format!("/proc/{}/autogroup", who.pid);
        if fs::metadata(&file).is_ok() {
            wait_for("its session has it too", || {
                let text = fs::read_to_string(&file).ok()?;
                text.contains(&format!("nice {}", (own + 7).min(19))).then_some(())
            });
        }
    }
    child.kill();
}

#[test]
fn a_weight_is_written_where_the_child_stands() {
    let owner = owner();
    let ration = Ration { cpu_weight: Some(20), ..Ration::default() };
    let (child, _events) = start(&owner, Spawn::new("sleep").arg("600").ration(ration));
    let pid = child.pid().cast_signed();
    match means(Limit::CpuWeight) {
        Some(Means::CgroupV1) => {
            let group = group_of(pid, "cpu");
            assert!(group.contains("/ownership-"), "{group}");
            let path = format!("/sys/fs/cgroup/cpu{group}/cpu.shares");
            assert_eq!(fs::read_to_string(path).expect("shares").trim(), "204");
        }
        Some(Means::CgroupV2) => {
            let machine = Machine::look().cgroup;
            let cell = child.cgroup().expect("a cgroup");
            let cell = cell.strip_prefix("/").expect("whole");
            let pen = machine.mount.expect("a mount").join(cell.parent().expect("a pen"));
            let weight = fs::read_to_string(pen.join("cpu.weight")).expect("weight");
            assert_eq!(weight.trim(), "20");
        }
        // It was only wished for.
        _ => assert!(Identity::of(pid).expect("it runs").lives()),
    }
    child.kill();
}

/// What a child starts over its line is no descendant of it, and is held all the same.
#[test]
fn what_is_started_over_a_line_is_held_too() {
    if !is_held_together(Limit::Processes) {
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    let mut owner = Player::start(
        Command::new(example("scripted-owner"))
            .env("DIR", dir.path())
            .env("SPAWN_RATION", "- 40 50 5"),
    );
    owner.say("worker 1 100");
    owner.until("it runs", |owner| owner.started.contains_key(&1)).expect("started");
    let worker = owner.started[&1];
    let own = rustix::process::getpriority_process(None).expect("nice");
    let entry = format!("DIR={}", dir.path().display());
    let inner = wait_for("something that it started", || {
        process::everybody().find(|who| {
            who.name() == "sleep" && who.has_variable(&entry) && who.parent() == worker.parent()
        })
    });
    if means(Limit::Processes) == Some(Means::CgroupV1) {
        assert_eq!(group_of(inner.pid, "pids"), group_of(worker.pid, "pids"));
        assert_eq!(group_of(inner.pid, "cpu"), group_of(worker.pid, "cpu"));
    }
    let pid = rustix::process::Pid::from_raw(inner.pid).expect("a number");
    let nice = rustix::process::getpriority_process(Some(pid)).expect("nice");
    assert_eq!(nice, (own + 5).min(19));
    // And in the same pen of version 2, where scopes have cgroups.
    if tier::cgroup().is_some() {
        let of = |who: Identity| {
            let text = fs::read_to_string(format!("/proc/{}/cgroup", who.pid)).expect("cgroup");
            let path =
                text.lines().find_map(|line| line.strip_prefix("0::")).expect("v2").to_owned();
            let (pen, cell) = path.rsplit_once('/').expect("a path");
            (pen.to_owned(), cell.to_owned())
        };
        let ((pen, cell), (inner_pen, inner_cell)) = (of(worker), of(inner));
        assert_eq!(pen, inner_pen);
        assert!(pen.contains("/limit-") && cell != inner_cell, "{pen} {cell} {inner_cell}");
    }
}

/// The places of an owner with a child that has every ration, of which `kill` then kills somebody. Once everybody is gone
/// nothing of it is left.
fn nothing_is_left_after(kill: impl FnOnce(&mut Player)) {
    let stranger = Stranger::start();
    let mut owner = Player::start(
        Command::new(example("scripted-owner"))
            .env("OWNERSHIP_TEST_IDLE_MS", "200")
            .env("SPAWN_RATION", format!("{} 40 50 5", 512 * MIB)),
    );
    owner.say("spawn 1 100 sleep 600 & sleep 600");
    owner.until("it runs", |owner| owner.started.contains_key(&1)).expect("started");
    let identity = owner.identity;
    assert!(!places_of(identity).is_empty() || means(Limit::Processes).is_none());
    kill(&mut owner);
    let child = owner.started[&1];
    wait_for("its child is gone", || (!child.lives()).then_some(()));
    wait_for("nothing that it made is left", || {
        let left = places_of(identity);
        left.is_empty().then_some(())
    });
    assert!(stranger.is_untouched());
}

fn end_child(owner: &mut Player) {
    owner.say("end 1 100");
    owner.until("it ends", |owner| owner.told("emptied", 1) == 1).expect("ended");
}

#[test]
fn groups_go_with_the_child() {
    nothing_is_left_after(end_child);
}

#[test]
fn groups_go_when_the_owner_is_killed() {
    nothing_is_left_after(|owner| {
        owner.identity.kill();
        owner.process.wait().expect("dead");
    });
}

#[test]
fn groups_go_when_the_supervisor_was_killed_before() {
    nothing_is_left_after(|owner| {
        let guards = owner.guards().expect("guards");
        guards.supervisor.kill();
        wait_for("it is gone", || (!guards.supervisor.lives()).then_some(()));
        // A child whose guard is another one by now still has its ration.
        let child = owner.started[&1];
        assert!(child.lives());
        end_child(owner);
    });
}

#[test]
fn groups_go_when_the_keeper_was_killed_before() {
    nothing_is_left_after(|owner| {
        let guards = owner.guards().expect("guards");
        let keeper = guards.keeper.expect("a keeper");
        keeper.kill();
        wait_for("it is gone", || (!keeper.lives()).then_some(()));
        end_child(owner);
    });
}

/// What a guard has made, the other one finds and goes on with.
#[test]
fn what_was_met_is_told_by_whichever_guard_is_left() {
    if !is_held_together(Limit::Processes) {
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    let owner = owner();
    let ration = Ration { processes: Some(4), ..Ration::default() };
    let script = "for i in 1 2 3 4 5 6; do sleep 600 & done; exit 0";
    let waits = format!("while [ ! -e \"$DIR/go\" ]; do sleep 0.02; done; {script}");
    let (child, _events) = start(&owner, shell(&waits).env("DIR", dir.path()).ration(ration));
    support::supervisor_of(&child).kill();
    let root = Identity::of(child.pid().cast_signed()).expect("child");
    wait_for("the keeper is its parent", || {
        let parent = Identity::of(root.parent()?)?;
        (parent.name() == "warden").then_some(())
    });
    fs::write(dir.path().join("go"), "").expect("go");
    let exit = child.wait().expect("an end");
    assert!(exit.reached.processes >= 1, "{exit:?}");
}

/// All three die in one instant: the next owner that starts there cleans up.
#[test]
fn groups_of_an_owner_that_died_with_its_guards_go_with_the_next_start() {
    let stranger = Stranger::start();
    let mut owner = Player::start(
        Command::new(example("scripted-owner"))
            .env("SPAWN_RATION", format!("{} 40 50 5", 512 * MIB)),
    );
    owner.say("spawn 1 100 sleep 600 & sleep 600");
    owner.until("it runs", |owner| owner.started.contains_key(&1)).expect("started");
    let (identity, child) = (owner.identity, owner.started[&1]);
    let guards = owner.guards().expect("guards");
    for who in [guards.supervisor, guards.keeper.expect("a keeper"), identity] {
        assert!(who.signal(rustix::process::Signal::STOP));
        wait_for("stopped", || (who.state()? == "T").then_some(()));
    }
    for who in [guards.supervisor, guards.keeper.expect("a keeper"), identity] {
        who.kill();
    }
    owner.process.wait().expect("dead");
    let next = self::owner();
    if tier::asked() == Containment::Subreaper && means(Limit::Processes).is_none() {
        child.kill();
        return;
    }
    let (other, _events) = start(&next, Spawn::new("sleep").arg("600"));
    wait_for("its child is gone", || (!child.lives()).then_some(()));
    wait_for("nothing that it made is left", || places_of(identity).is_empty().then_some(()));
    assert!(stranger.is_untouched());
    other.kill();
}
