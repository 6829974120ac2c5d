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
        Self::start_with(how, &[])
    }

    fn start_with(how: &str, settings: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let process = Command::new(example("group-owner"))
            .args([dir.path().as_os_str(), how.as_ref()])
            .envs(settings.iter().copied())
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
        support::wait_for_nobody(|| {
            self.members.iter().map(|(_, who)| *who).filter(|who| who.lives()).collect()
        });
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

/// Both guards die, and the owner as soon as others have started a child for it: these knew of the group by then,
/// however long it took to tell them. Switched off, it is left.
#[test]
fn who_starts_something_again_has_handed_the_group_over_before() {
    if support::no_hooks() {
        return;
    }
    let is_left = |off: &str| {
        let settings = [("OWNERSHIP_TEST_SLOW_HAND_OVER", "1500"), ("OWNERSHIP_TEST_OFF", off)];
        let mut owner = GroupOwner::start_with("group-dead", &settings);
        let (keeper, supervisor) = owner.guards();
        kill_both(keeper, supervisor);
        let (keeper, supervisor) = owner.guards();
        owner.kill();
        gone(supervisor);
        gone(keeper);
        !owner.living().is_empty()
    };
    assert!(!is_left(""));
    // A child that was asked for before the owner saw its line end is started behind the group.
    assert!((0..10).any(|_| is_left("hand-over-first")), "switched off, it is left");
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
fn c56_unsafe_groups_are_refused_and_none_is_adopted() {
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

/// Whatever this process may signal, it adopts what was started in it: a child's, a grandchild's, and one that bears its
/// mark and has lost its parents. A group of the same user that has nothing to do with it is refused.
#[test]
fn a_strangers_group_is_refused_and_a_grandchilds_is_not() {
    let owner = owner();
    let dir = tempfile::tempdir().expect("dir");
    let daemon = |name: &str, mark: Option<(String, String)>| {
        let script = format!("(setsid sh -c 'echo $$ > \"$DIR/{name}\"; exec sleep 600' &)");
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).env("DIR", dir.path()).envs(mark);
        assert!(command.status().expect("sh").success());
        recorded(dir.path(), name)
    };
    let stranger = daemon("stranger", None);
    let marked = daemon("marked", Some(owner.mark()));
    let mut shell = Command::new("sh");
    shell.args(["-c", "setsid sh -c 'echo $$ > \"$DIR/below\"; exec sleep 600' & wait"]);
    let mut shell = shell.env("DIR", dir.path()).spawn().expect("sh");
    let below = recorded(dir.path(), "below");
    for ours in [marked, below] {
        owner.own_process_groups(&[ours.pid]).expect("it is of this process");
    }
    let error = owner.own_process_groups(&[stranger.pid]).expect_err("refused");
    assert!(error.detail.contains("neither descends"), "{error}");
    // By the mark of another owner it is not ours either.
    let other = daemon("other", Some(self::owner().mark()));
    owner.own_process_groups(&[other.pid]).expect_err("refused");
    owner.release_process_groups(&[marked.pid, below.pid]);
    for who in [stranger, marked, other, below] {
        assert!(who.lives());
        who.kill();
    }
    shell.wait().expect("wait");
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
