//! Process groups that something else started in the owner: adopted, let go, and ended with the owner.
#![expect(
    clippy::disallowed_methods,
    reason = "groups that something else starts are what is tested"
)]

mod support;

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use support::{Identity, example, kill_both, owner, recorded, wait_for};

const MEMBERS: [&str; 6] = ["leader", "plain", "own-group", "session", "daemon", "stubborn"];

/// A `group-owner`, and who stands around it.
struct GroupOwner {
    process: Child,
    dir: tempfile::TempDir,
    members: Vec<(&'static str, Identity)>,
    stranger: Identity,
}

impl GroupOwner {
    fn start(how: &str) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let process = Command::new(example("group-owner"))
            .args([dir.path().as_os_str(), how.as_ref()])
            .stdin(Stdio::piped())
            .spawn()
            .expect("group-owner");
        // Its leader may be gone by the time that it is looked for.
        let of = |name| (name, recorded(dir.path(), name));
        let dead = how.contains("dead") || how.contains("once-empty");
        let members = MEMBERS.iter().skip(usize::from(dead)).map(|name| of(*name)).collect();
        let stranger = of("stranger").1;
        wait_for("ready", || dir.path().join("ready").exists().then_some(()));
        Self { process, dir, members, stranger }
    }

    fn kill(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }

    fn living(&self) -> Vec<&'static str> {
        self.members.iter().filter(|(_, who)| who.lives()).map(|(name, _)| *name).collect()
    }

    /// Its guards, by a child that they start now.
    fn guards(&mut self) -> (Identity, Identity) {
        let file = self.dir.path().join("child");
        std::fs::remove_file(&file).ok();
        writeln!(self.process.stdin.as_mut().expect("stdin")).expect("tell");
        let child = recorded(self.dir.path(), "child");
        let supervisor = Identity::of(child.parent().expect("parent")).expect("supervisor");
        let keeper = Identity::of(supervisor.parent().expect("parent")).expect("keeper");
        (keeper, supervisor)
    }

    fn only_the_stranger_is_left(&self, case: &str) {
        wait_for(&format!("{case}: nothing is left"), || self.living().is_empty().then_some(()));
        assert!(self.stranger.lives(), "{case}: a stranger");
    }
}

impl Drop for GroupOwner {
    fn drop(&mut self) {
        self.kill();
        self.stranger.kill();
        for (_, member) in &self.members {
            member.kill();
        }
    }
}

fn gone(who: Identity) {
    wait_for("it is gone", || (!who.lives()).then_some(()));
}

#[test]
fn an_adopted_group_ends_with_the_owner_and_a_stranger_lives() {
    for how in ["group", "session", "group-dead", "session-dead"] {
        let mut owner = GroupOwner::start(how);
        let all = owner.members.len();
        assert_eq!(owner.living().len(), all, "{how}: left alone while the owner lives");
        owner.kill();
        owner.only_the_stranger_is_left(how);
    }
}

#[test]
fn it_survives_the_replacement_of_either_guard() {
    let cases: [(&str, &[&str]); 2] =
        [("group", &["s", "k", "sk", "ks", "both"]), ("group-dead", &["s", "both"])];
    for (how, cases) in cases {
        for victims in cases {
            let case = format!("{how} {victims}");
            let mut owner = GroupOwner::start(how);
            if *victims == "both" {
                let (keeper, supervisor) = owner.guards();
                kill_both(keeper, supervisor);
            } else {
                for victim in victims.chars() {
                    let (keeper, supervisor) = owner.guards();
                    let victim = if victim == 's' { supervisor } else { keeper };
                    victim.kill();
                    gone(victim);
                }
            }
            let (_, after) = owner.guards();
            assert_eq!(owner.living().len(), owner.members.len(), "{case}: {:?}", owner.living());
            owner.kill();
            owner.only_the_stranger_is_left(&case);
            gone(after);
        }
    }
}

#[test]
fn the_owner_and_a_guard_killed_together_leave_nothing_of_it() {
    for supervisor_dies in [true, false] {
        let mut owner = GroupOwner::start("group");
        let (keeper, supervisor) = owner.guards();
        let victim = if supervisor_dies { supervisor } else { keeper };
        owner.process.kill().expect("kill");
        victim.kill();
        owner.process.wait().expect("wait");
        owner.only_the_stranger_is_left("together");
    }
}

#[test]
fn what_was_let_go_lives_on() {
    let mut owner = GroupOwner::start("group-released");
    let (keeper, supervisor) = owner.guards();
    owner.kill();
    gone(supervisor);
    gone(keeper);
    assert_eq!(owner.living().len(), owner.members.len(), "{:?}", owner.living());
}

/// It is owned until the last of it is gone, and not after that.
#[test]
fn what_is_let_go_once_empty_is_owned_until_then() {
    let mut owner = GroupOwner::start("group-once-empty");
    owner.kill();
    owner.only_the_stranger_is_left("not empty yet");
}

/// A zombie that nobody reaps counts as gone: the guards, which have nothing else, leave.
#[test]
fn a_zombie_counts_as_gone() {
    let owner = owner();
    let mut leader = Command::new("true");
    // detached-spawn: ok — a group that is adopted
    let mut leader = leader.process_group(0).spawn().expect("true");
    let number = leader.id().cast_signed();
    let who = Identity::of(number).expect("it is not reaped");
    gone(who);
    owner.own_process_groups(&[number]).expect("adopted");
    owner.release_process_group_once_empty(number);
    // Let go, it can be let go again at once; owned, this would be the end of it.
    owner.release_process_groups(&[number]);
    leader.wait().expect("wait");
    owner.own_process_groups(&[number]).expect_err("there is no such group");
}

#[test]
fn unsafe_groups_are_refused_and_none_is_adopted() {
    let owner = owner();
    let (child, _events) = support::start(&owner, ownership::Spawn::new("sleep").arg("600"));
    let supervisor = support::supervisor_of(&child);
    let keeper = supervisor.parent().expect("keeper");
    let own = rustix::process::getpgrp().as_raw_nonzero().get();
    for refused in [i32::MIN, -5, -1, 0, 1, own, supervisor.pid, keeper, i32::MAX] {
        let error = owner.own_process_groups(&[refused]).expect_err("refused");
        assert_eq!(error.leader, refused);
    }
}

/// Numbers are set here, so only in a pid namespace of its own.
#[test]
fn a_number_that_is_handed_out_again_is_a_strangers() {
    let program = example("group-reuse");
    let mut command = Command::new("setsid");
    command.args(["-w", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    let dir = tempfile::tempdir().expect("dir");
    command.arg(&program).arg(dir.path());
    let output = command.output().expect("unshare");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
