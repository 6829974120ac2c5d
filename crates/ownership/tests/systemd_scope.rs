//! A cgroup from a user's systemd, for an owner that may make none where it stands: with a real bus, a stand-in for systemd
//! that really makes the cgroup and moves who asks, and as a user without rights. (With a real systemd of a user:
//! `tests/cli/environments.rs`.) Beside each owner that is killed stand another one, in a scope of its own, and a stranger.
#![expect(clippy::disallowed_methods, reason = "bus and stand-in are started by the test itself")]

#[path = "../examples/support/player.rs"]
mod player;
mod support;
use support::process;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use player::Player;
use rustix::process::Signal;
use support::{Identity, Stranger, example, kill_both, no_hooks, tier, wait_for};

/// A user without rights: `nobody` of most systems.
const USER: u32 = 65534;

/// A session that belongs to root, beside it what that user's systemd may fill, and who may move from one to the other.
struct Login {
    dir: tempfile::TempDir,
    cgroup: PathBuf,
    bus: Option<Child>,
    systemd: Option<(Child, BufReader<ChildStdout>)>,
}

impl Login {
    /// With a systemd that behaves like this; `None` where it cannot be made here.
    #[expect(clippy::print_stderr, reason = "skips loudly")]
    fn with(systemd: &str) -> Option<Self> {
        let base = tier::cgroup()?;
        let lacks = [
            (!rustix::process::geteuid().is_root(), "ONLY ROOT CAN BECOME A USER WITHOUT RIGHTS"),
            (!has("dbus-daemon"), "NO dbus-daemon IS INSTALLED"),
            (!has("setpriv"), "NO setpriv IS INSTALLED"),
        ];
        if let Some((_, what)) = lacks.iter().find(|(lacks, _)| *lacks) {
            eprintln!("SKIPPED: {what}");
            return None;
        }
        if no_hooks() {
            return None;
        }
        let dir = tempfile::tempdir().expect("dir");
        let unique = dir.path().file_name().and_then(|name| name.to_str()).expect("a name");
        let cgroup = base.join(format!("test-login-{}", unique.trim_start_matches('.')));
        let mut login = Self { dir, cgroup, bus: None, systemd: None };
        for name in ["", "session", "systemd"] {
            fs::create_dir(login.cgroup.join(name)).expect("make");
        }
        let systemd_dir = login.cgroup.join("systemd");
        let theirs = ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"];
        let given = theirs.map(|file| systemd_dir.join(file));
        // Who moves somebody needs the right to where both stand below.
        for path in given.into_iter().chain([login.cgroup.join("cgroup.procs")]) {
            chown(path, Some(USER), Some(USER)).expect("chown");
        }
        for name in ["scripted-owner", "stand-in-systemd"] {
            // Where the tests were built nobody may be able to go.
            fs::copy(example(name), login.path(name)).expect("copy");
        }
        fs::create_dir_all(login.path("run/systemd")).expect("make");
        fs::write(login.path("run/systemd/private"), "").expect("write");
        for path in ["", "run", "run/systemd", "run/systemd/private"] {
            chown(login.path(path), Some(USER), Some(USER)).expect("chown");
        }
        fs::set_permissions(login.dir.path(), fs::Permissions::from_mode(0o755)).expect("mode");
        if systemd != "absent" {
            login.start(systemd);
        }
        Some(login)
    }

    fn start(&mut self, systemd: &str) {
        let bus = self.path("run/bus");
        let mut daemon = as_user("dbus-daemon");
        daemon.arg("--session").arg("--nofork").arg("--nopidfile");
        daemon.arg(format!("--address=unix:path={}", bus.display()));
        self.bus = Some(daemon.spawn().expect("dbus-daemon"));
        wait_for("the bus is there", || bus.exists().then_some(()));
        if systemd == "nobody" {
            return;
        }
        let mut stand_in = as_user(self.path("stand-in-systemd").to_str().expect("text"));
        stand_in.arg(&bus).arg(self.cgroup.join("systemd")).arg(systemd);
        let mut stand_in = stand_in.stdout(Stdio::piped()).spawn().expect("stand-in");
        let says = BufReader::new(stand_in.stdout.take().expect("piped"));
        self.systemd = Some((stand_in, says));
        assert_eq!(self.systemd_says(), "ready");
    }

    /// What it says next.
    fn systemd_says(&mut self) -> String {
        let mut line = String::new();
        let (_, says) = self.systemd.as_mut().expect("one");
        says.read_line(&mut line).expect("read");
        line.trim_end().to_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// An owner that stands in the session.
    fn owner(&self, containment: &str) -> Player {
        Player::start(&mut self.command(containment))
    }

    fn command(&self, containment: &str) -> Command {
        let script = "echo $$ > \"$SESSION/cgroup.procs\" && exec setpriv \
                      --reuid=65534 --regid=65534 --clear-groups \"$0\"";
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(self.path("scripted-owner")).current_dir("/");
        command.env("SESSION", self.cgroup.join("session")).env("DIR", "/");
        command.env("XDG_RUNTIME_DIR", self.path("run")).env_remove("DBUS_SESSION_BUS_ADDRESS");
        command.env("OWNERSHIP_TEST_CONTAINMENT", containment);
        command
    }

    /// Scopes that are there.
    fn scopes(&self) -> Vec<PathBuf> {
        let all = fs::read_dir(self.cgroup.join("systemd")).expect("read").flatten();
        all.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }
}

impl Drop for Login {
    fn drop(&mut self) {
        let systemd = self.systemd.take().map(|(child, _)| child);
        for mut child in self.bus.take().into_iter().chain(systemd) {
            child.kill().ok();
            child.wait().ok();
        }
        fs::write(self.cgroup.join("cgroup.kill"), "1").ok();
        wait_for("nobody is in it", || {
            remove_below(&self.cgroup);
            (!self.cgroup.exists()).then_some(())
        });
    }
}

fn remove_below(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_below(&entry.path());
        }
    }
    fs::remove_dir(dir).ok();
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).exists())
}

fn as_user(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]);
    command.current_dir("/");
    command
}

/// The cgroup of version 2 of a process.
fn cgroup_of(who: Identity) -> String {
    let text = fs::read_to_string(format!("/proc/{}/cgroup", who.pid)).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned()
}

/// Starts its first child, and gives that.
fn child_of(owner: &mut Player) -> Identity {
    owner.say("spawn 1 50 exec sleep 600");
    owner.until("started", |player| player.told("started", 1) == 1).expect("started");
    owner.started[&1]
}

fn killed(owner: &mut Player) {
    owner.process.kill().expect("kill");
    owner.process.wait().expect("dead");
}

/// The scope of an owner, as the path of a cgroup ends with it.
fn scope_of(child: Identity) -> Option<String> {
    let path = cgroup_of(child);
    let (scope, cell) = path.split_once("/systemd/")?.1.split_once('/')?;
    (scope.ends_with(".scope") && cell.starts_with("ownership-")).then(|| scope.to_owned())
}

#[test]
fn guards_and_children_stand_in_a_scope_and_the_owner_where_it_was() {
    let Some(mut login) = Login::with("good") else { return };
    let mut owner = login.owner("auto");
    let child = child_of(&mut owner);
    let scope = scope_of(child).unwrap_or_else(|| panic!("{}", cgroup_of(child)));
    assert_eq!(scope.split('-').nth(1), Some(owner.identity.pid.to_string().as_str()));
    let guards = wait_for("guards", || process::Guards::of(child));
    let keeper = guards.keeper.expect("a keeper");
    for guard in [keeper, guards.supervisor] {
        assert!(cgroup_of(guard).ends_with(&format!("/systemd/{scope}")), "{}", cgroup_of(guard));
    }
    assert!(cgroup_of(owner.identity).ends_with("/session"), "its owner was not moved");
    // It asked once, for itself, and by no number.
    let asked = login.systemd_says();
    assert_eq!(asked, format!("{} StartTransientUnit {scope}", keeper.pid));
    killed(&mut owner);
}

/// Another owner of this login with its child, and a stranger.
struct Around {
    stranger: Stranger,
    control: Player,
    child: Identity,
}

impl Around {
    fn start(login: &Login) -> Self {
        let mut control = login.owner("auto");
        let child = child_of(&mut control);
        Self { stranger: Stranger::start(), control, child }
    }

    fn assert_untouched(mut self) {
        assert!(self.child.lives() && self.control.identity.lives(), "another owner lives");
        assert!(self.stranger.is_untouched());
        killed(&mut self.control);
    }
}

/// The weakest case of all: an owner that is killed.
#[test]
fn a_scope_empties_when_its_owner_is_killed() {
    let Some(login) = Login::with("good") else { return };
    let around = Around::start(&login);
    let mut owner = login.owner("auto");
    let child = child_of(&mut owner);
    owner.say("spawn 2 50 (setsid sleep 600 &) & (trap '' TERM; exec sleep 600)");
    owner.until("started", |player| player.told("started", 2) == 1).expect("started");
    assert_eq!(login.scopes().len(), 2);
    let scope = login.cgroup.join("systemd").join(scope_of(child).expect("a scope"));
    let lives = || {
        let events = fs::read_to_string(scope.join("cgroup.events")).unwrap_or_default();
        events.contains("populated 1")
    };
    assert!(lives());
    killed(&mut owner);
    wait_for("nobody lives in it", || (!lives()).then_some(()));
    around.assert_untouched();
}

/// The guards that come after both were killed find what those had: they stand in the same scope.
#[test]
fn guards_that_come_later_join_the_scope_of_their_owner() {
    let Some(login) = Login::with("good") else { return };
    let mut owner = login.owner("auto");
    let child = child_of(&mut owner);
    let scope = scope_of(child).expect("a scope");
    let guards = wait_for("guards", || process::Guards::of(child));
    kill_both(guards.keeper.expect("a keeper"), guards.supervisor);
    owner.say("spawn 2 50 exec sleep 600");
    owner.until("started", |player| player.told("started", 2) == 1).expect("started");
    let second = owner.started[&2];
    assert_eq!(scope_of(second).as_ref(), Some(&scope));
    let place = |who| cgroup_of(who).rsplit_once('/').map(|(place, _)| place.to_owned());
    assert_eq!(place(child), place(second), "one directory for an owner");
    assert!(child.lives(), "it was handed over");
    killed(&mut owner);
    wait_for("all of it ends", || (!child.lives() && !second.lives()).then_some(()));
}

/// Owner and guards killed in one instant: the next owner that stands in a scope beside ends what is left.
#[test]
fn what_all_of_them_left_is_ended_by_the_next_owner() {
    let Some(login) = Login::with("good") else { return };
    let around = Around::start(&login);
    let mut owner = login.owner("auto");
    let child = child_of(&mut owner);
    let guards = wait_for("guards", || process::Guards::of(child));
    assert!(owner.identity.signal(Signal::STOP));
    kill_both(guards.keeper.expect("a keeper"), guards.supervisor);
    killed(&mut owner);
    assert!(child.lives(), "nobody is left to end it");
    let mut next = login.owner("auto");
    let other = child_of(&mut next);
    wait_for("it is ended", || (!child.lives()).then_some(()));
    assert!(other.lives());
    killed(&mut next);
    around.assert_untouched();
}

/// Whatever a systemd does: `auto` starts without, soon, and what was asked for by name says why there is none.
#[test]
fn where_it_gives_none_auto_goes_on_without_and_cgroup_says_why() {
    for (systemd, said) in [
        ("refuse", "it refuses: scopes are out of stock (org.stand.in.No)"),
        ("mute", "it did not answer in time (StartTransientUnit)"),
        ("idle", "it said yes, and did not move us in time"),
        ("gone", "it refuses: not loaded (org.freedesktop.systemd1.NoSuchUnit)"),
        ("nobody", "it refuses: "),
        ("absent", "nobody answers at "),
    ] {
        let Some(login) = Login::with(systemd) else { return };
        let mut auto = login.owner("auto");
        let began = Instant::now();
        let child = child_of(&mut auto);
        let took = began.elapsed();
        assert!(took < support::DEADLINE / 2, "{systemd}: {took:?}");
        assert!(cgroup_of(child).ends_with("/session"), "{systemd}: {}", cgroup_of(child));
        killed(&mut auto);
        wait_for("it ends by descent", || (!child.lives()).then_some(()));
        let mut named = login.owner("cgroup");
        named.say("spawn 1 50 exec sleep 600");
        named.until("an answer", |player| player.told("failed", 1) == 1).expect(systemd);
        let answer = named.of(1).concat();
        for part in ["(containment", "no cgroup can be made in", "this user's systemd: ", said] {
            assert!(answer.contains(part), "{systemd}: {answer}");
        }
        killed(&mut named);
    }
}

/// Who needs nobody asks nobody, and so does who wants none.
#[test]
fn nobody_is_asked_where_it_does_not_help() {
    let Some(mut login) = Login::with("refuse") else { return };
    let mut weakest = login.owner("subreaper");
    let child = child_of(&mut weakest);
    assert!(cgroup_of(child).ends_with("/session"));
    killed(&mut weakest);
    let session = login.cgroup.join("session");
    for file in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
        chown(session.join(file), Some(USER), Some(USER)).expect("chown");
    }
    let mut delegated = login.owner("auto");
    let child = child_of(&mut delegated);
    assert!(cgroup_of(child).contains("/session/ownership-"), "{}", cgroup_of(child));
    killed(&mut delegated);
    wait_for("it ends", || (!child.lives()).then_some(()));
    chown(&session, Some(0), Some(0)).expect("chown");
    let mut off = Player::start(login.command("auto").env("OWNERSHIP_TEST_OFF", "scope"));
    let child = child_of(&mut off);
    assert!(cgroup_of(child).ends_with("/session"), "switched off");
    killed(&mut off);
    // The first question is that of an owner that needs it.
    let mut asks = login.owner("auto");
    child_of(&mut asks);
    let asked = login.systemd_says();
    let scope = format!(" StartTransientUnit owned-{}-", asks.identity.pid);
    assert!(asked.contains(&scope), "{asked}");
    killed(&mut asks);
}
