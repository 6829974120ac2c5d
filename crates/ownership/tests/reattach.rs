//! An owner that executes itself takes up what it had: whichever guard dies meanwhile, nothing of it is lost, and
//! nobody else gets it.
#![cfg(feature = "ledger")]
#![expect(clippy::disallowed_methods, reason = "tests start owners that are theirs")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use support::matrix::Bystanders;
use support::process::{self, Guards};
use support::{DEADLINE, Identity, example, no_hooks, recorded, wait_for, wait_for_nobody};

/// Owner → launcher → program → helper.
const TREE: &str = r#"sh -c 'echo $$ > "$DIR/program"; sh -c "echo \$\$ > \"\$DIR/helper\"; exec sleep 600" & wait' & echo $$ > "$DIR/launcher"; trap 'exit 7' TERM; wait"#;

/// Ends with code 5 once the file `go` is there.
const BRIEF: &str =
    r#"echo $$ > "$DIR/brief"; until [ -e "$DIR/go" ]; do sleep 0.01; done; exit 5"#;

/// An `exec-owner`.
struct Image {
    process: Child,
    output: Receiver<String>,
    dir: tempfile::TempDir,
    marker: String,
}

/// What it said of one child after a re-attachment: pid, exit, first argument.
type Back = (i32, String, String);

impl Image {
    fn start(settings: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let runtime = dir.path().join("run");
        std::fs::create_dir(&runtime).expect("dir");
        let mut command = Command::new(example("exec-owner"));
        command.env("DIR", dir.path()).env("XDG_RUNTIME_DIR", runtime).env("RUST_BACKTRACE", "0");
        command.envs(settings.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("exec-owner");
        let (tell, output) = channel();
        let lines = BufReader::new(process.stdout.take().expect("output")).lines();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).try_for_each(|line| tell.send(line)).ok();
        });
        let marker = format!("DIR={}", dir.path().display());
        Self { process, output, dir, marker }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.process.stdin.as_mut().expect("input"), "{line}").expect("it reads");
    }

    fn hear(&self) -> String {
        self.output.recv_timeout(DEADLINE).expect("a word in time")
    }

    fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }

    fn spawn(&mut self, script: &str) -> Identity {
        let said = self.ask(&format!("spawn {script}"));
        started(&said)
    }

    /// Executes itself, and does nothing yet.
    fn exec(&mut self, how: &str) {
        self.say(how);
        let again = || {
            let words = std::fs::read(format!("/proc/{}/cmdline", self.process.id())).ok()?;
            words.ends_with(b"\0next\0").then_some(())
        };
        wait_for("it is the next program", again);
    }

    fn reattach(&mut self) -> Vec<Back> {
        self.say("reattach");
        self.hear_back()
    }

    fn hear_back(&self) -> Vec<Back> {
        let mut back = Vec::new();
        loop {
            let said = self.hear();
            let words: Vec<_> = said.split(' ').map(str::to_owned).collect();
            match words.as_slice() {
                [word, pid, exit, argv0] if word == "back" => {
                    back.push((pid.parse().expect("pid"), exit.clone(), argv0.clone()));
                }
                [word, ..] if word == "reattached" => return back,
                _ => panic!("{said}"),
            }
        }
    }

    fn identity(&self) -> Identity {
        Identity::of(self.process.id().cast_signed()).expect("not reaped")
    }

    fn member(&self, name: &str) -> Identity {
        recorded(self.dir.path(), name)
    }

    fn guards(&self, child: Identity) -> Guards {
        let guards = || Guards::of(child).or_else(|| Guards::marked(&self.marker));
        wait_for("both guards", || guards().filter(|guards| guards.keeper.is_some()))
    }

    /// All its guards.
    fn all_guards(&self) -> Vec<Identity> {
        let guards = process::everybody().filter(|who| process::is_guard(*who));
        guards.filter(|who| who.has_variable(&self.marker)).collect()
    }

    fn hall(&self) -> PathBuf {
        self.dir.path().join("run/delegate")
    }

    fn doors(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.hall()).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    fn wait_for_door(&self) -> PathBuf {
        wait_for("a door", || self.doors().pop())
    }

    /// Who is left of it, and of its guards; the owner apart.
    fn left(&self) -> Vec<Identity> {
        let own = self.process.id().cast_signed();
        let marked = process::everybody().filter(|who| who.has_variable(&self.marker));
        marked.filter(|who| who.pid != own && who.lives()).collect()
    }

    fn kill(&mut self) {
        self.process.kill().expect("kill");
        self.process.wait().expect("reap");
    }

    fn is_whole(&self) -> bool {
        ["launcher", "program", "helper"].iter().all(|name| self.member(name).lives())
    }

    fn end(&mut self, around: &Bystanders) {
        self.kill();
        wait_for_nobody(|| self.left());
        assert!(self.doors().is_empty(), "no door is left: {:?}", self.doors());
        around.assert_untouched();
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
        for _ in 0..20 {
            let left = self.left();
            if left.is_empty() {
                return;
            }
            left.iter().for_each(|who| who.kill());
        }
    }
}

fn started(said: &str) -> Identity {
    let pid = said.strip_prefix("started ").unwrap_or_else(|| panic!("{said}"));
    Identity::of(pid.parse().expect("pid")).expect("it is there")
}

fn of(back: &[Back], child: Identity) -> Back {
    back.iter().find(|(pid, ..)| *pid == child.pid).expect("it came back").clone()
}

/// From the start to the end of all, with everything that can be done in between.
fn takes_up_what_it_had(how: &str, reattach: &str) {
    let around = Bystanders::start();
    let mut image = Image::start(&[]);
    let tree = image.spawn(TREE);
    let brief = image.spawn(BRIEF);
    let untaken = image.spawn("exec sleep 600");
    let group = started(&image.ask("group"));
    image.member("helper");
    image.member("brief");
    let guards = image.guards(tree);
    image.exec(how);
    image.wait_for_door();
    assert_eq!(std::fs::metadata(image.hall()).expect("hall").permissions().mode() & 0o777, 0o700);
    std::fs::write(image.dir.path().join("go"), "").expect("write");
    wait_for("it ends between the two programs", || (!brief.lives()).then_some(()));
    image.say(reattach);
    let back = image.hear_back();
    assert_eq!(back.len(), 3, "{back:?}");
    assert_eq!((of(&back, tree).1, of(&back, tree).2), ("-".into(), "/bin/sh".into()));
    assert_eq!((of(&back, brief).1, of(&back, brief).2), ("5".into(), "-".into()));
    assert_eq!(of(&back, untaken).2, "sleep");
    assert!(image.is_whole() && group.lives());
    assert_eq!(image.guards(tree), guards, "the same ones");
    wait_for("the door goes", || image.doors().is_empty().then_some(()));

    image.say(&format!("take {}", brief.pid));
    assert_eq!(image.ask(&format!("wait {}", brief.pid)), format!("exit {} 5", brief.pid));
    assert_eq!(image.ask(&format!("empty {}", brief.pid)), format!("over {} Some(0)", brief.pid));
    image.say(&format!("take {}", tree.pid));
    let helper = image.member("helper");
    image.say(&format!("end {}", tree.pid));
    assert_eq!(image.ask(&format!("wait {}", tree.pid)), format!("exit {} 7", tree.pid));
    image.ask(&format!("empty {}", tree.pid));
    assert!(!helper.lives());

    let new = image.spawn("exec sleep 600");
    assert_eq!(new.parent(), Some(guards.supervisor.pid), "the same supervisor");
    image.say("leave");
    image.ask("ping");
    assert!(untaken.lives(), "what is not taken is left alone");
    image.end(&around);
    assert!([new, untaken, group].iter().all(|who| !who.lives()));
}

#[test]
fn an_owner_that_executes_itself_takes_up_what_it_had() {
    takes_up_what_it_had("exec", "reattach");
}

#[test]
fn so_does_one_that_executes_itself_from_a_thread_and_asks_on_one() {
    takes_up_what_it_had("thread", "reattach-thread");
}

#[test]
fn a_child_that_was_taken_ends_with_its_handle_and_a_group_can_be_let_go() {
    let around = Bystanders::start();
    let mut image = Image::start(&[]);
    let child = image.spawn("exec sleep 600");
    let group = started(&image.ask("group"));
    image.exec("exec");
    image.say("reattach");
    let said = [image.hear(), image.hear()];
    assert_eq!(said[1], format!("reattached 1 [{}]", group.pid));
    image.ask(&format!("release {}", group.pid));
    image.say(&format!("take {}", child.pid));
    image.say(&format!("drop {}", child.pid));
    wait_for("its handle was dropped", || (!child.lives()).then_some(()));
    image.kill();
    wait_for_nobody(|| image.left().into_iter().filter(|who| *who != group).collect());
    assert!(group.lives(), "it was let go");
    around.assert_untouched();
}

/// Many times in a row: each program takes up what all before it have started.
#[test]
fn it_may_be_done_again_and_again() {
    let around = Bystanders::start();
    let mut image = Image::start(&[]);
    let mut all = vec![image.spawn(TREE)];
    image.member("helper");
    let guards = image.guards(all[0]);
    for _ in 0..4 {
        image.exec("exec");
        let back = image.reattach();
        assert_eq!(back.iter().map(|back| back.0).collect::<Vec<_>>(), pids(&all));
        all.push(image.spawn("exec sleep 600"));
    }
    assert!(image.is_whole());
    assert_eq!(image.guards(all[0]), guards);
    image.end(&around);
}

fn pids(all: &[Identity]) -> Vec<i32> {
    all.iter().map(|who| who.pid).collect()
}

/// The guards may be slower than the program: it waits for them.
#[test]
fn it_waits_for_guards_that_have_not_seen_the_end_of_the_line() {
    let mut image = Image::start(&[]);
    let child = image.spawn("exec sleep 600");
    let supervisor = image.guards(child).supervisor;
    assert!(supervisor.signal(rustix::process::Signal::STOP));
    wait_for("stopped", || (supervisor.state()? == "T").then_some(()));
    image.exec("exec");
    image.say("reattach");
    wait_for("it looks", || (image.identity().state()? == "S").then_some(()));
    assert!(image.doors().is_empty());
    assert!(supervisor.signal(rustix::process::Signal::CONT));
    assert_eq!(image.hear_back().len(), 1);
}

#[test]
fn guards_that_never_answer_are_waited_for_in_vain_and_what_they_have_lives() {
    if no_hooks() {
        return;
    }
    let mut image = Image::start(&[("OWNERSHIP_TEST_REATTACH_MS", "200")]);
    let child = image.spawn("exec sleep 600");
    let supervisor = image.guards(child).supervisor;
    assert!(supervisor.signal(rustix::process::Signal::STOP));
    wait_for("stopped", || (supervisor.state()? == "T").then_some(()));
    image.exec("exec");
    let said = image.ask("reattach");
    assert!(
        said.starts_with("failed the guards of this process were not reached in time"),
        "{said}"
    );
    assert!(child.lives());
    assert!(supervisor.signal(rustix::process::Signal::CONT));
    image.wait_for_door();
    assert_eq!(image.reattach().len(), 1, "it may be tried again");
}

/// The first time, the second time, with an owner that is new, and from another process.
#[test]
fn where_nothing_waits_nothing_is_taken() {
    let mut image = Image::start(&[]);
    let none = "failed no guards wait for this process";
    assert!(image.ask("reattach").starts_with(none));
    let child = image.spawn("exec sleep 600");
    assert!(image.ask("reattach").starts_with(none), "its own guards do not count");
    image.exec("exec");
    image.wait_for_door();
    assert!(image.ask("nested").starts_with(none), "another process has none");
    assert_eq!(image.reattach().len(), 1);
    assert!(image.ask("reattach").starts_with(none), "taken already");
    assert!(child.lives());
    assert_eq!(image.all_guards().len(), 2, "nothing was started");
}

#[test]
fn each_of_several_owners_is_taken_up_by_a_call_of_its_own() {
    let around = Bystanders::start();
    let mut image = Image::start(&[]);
    let first = image.spawn("exec sleep 600");
    image.say("other");
    let second = image.spawn("exec sleep 600");
    assert_eq!(image.all_guards().len(), 4);
    image.exec("exec");
    wait_for("two doors", || (image.doors().len() == 2).then_some(()));
    for expected in [first, second] {
        let back = image.reattach();
        assert_eq!(back.iter().map(|back| back.0).collect::<Vec<_>>(), [expected.pid]);
    }
    assert!(image.ask("reattach").starts_with("failed no guards"));
    image.end(&around);
}

/// Nothing lives any more, and nothing was told: the guards are still there, and tell it.
#[test]
fn the_end_of_the_last_child_is_told_too() {
    let mut image = Image::start(&[]);
    let brief = image.spawn(BRIEF);
    image.member("brief");
    image.exec("exec");
    image.wait_for_door();
    std::fs::write(image.dir.path().join("go"), "").expect("write");
    wait_for("it ends", || Identity::of(brief.pid).is_none_or(|who| who != brief).then_some(()));
    let back = image.reattach();
    assert_eq!((back.len(), of(&back, brief).1), (1, "5".into()));
}

/// The program before reads nothing any more by the time at which a child ends: a callback keeps its reader.
fn ends_unread(off: &str) -> (Vec<Back>, Identity, Image) {
    let mut image = Image::start(&[("OWNERSHIP_TEST_OFF", off)]);
    let first = started(&image.ask("blocking exec sleep 600"));
    let brief = image.spawn(BRIEF);
    image.member("brief");
    let supervisor = image.guards(brief).supervisor;
    first.kill();
    assert_eq!(image.hear(), "blocked");
    std::fs::write(image.dir.path().join("go"), "").expect("write");
    let reaped = || Identity::of(brief.pid).is_none_or(|who| who != brief).then_some(());
    wait_for("it is reaped", reaped);
    // Whoever has reaped it says so before it sleeps again.
    wait_for("its end was told", || (supervisor.state()? == "S").then_some(()));
    image.exec("exec");
    (image.reattach(), brief, image)
}

#[test]
fn what_the_program_before_had_not_read_is_told_again() {
    let (back, brief, mut image) = ends_unread("");
    assert_eq!(of(&back, brief).1, "5");
    image.say(&format!("take {}", brief.pid));
    assert_eq!(image.ask(&format!("empty {}", brief.pid)), format!("over {} Some(0)", brief.pid));
}

/// Negative control.
#[test]
fn without_that_the_end_of_a_child_is_lost_on_the_way() {
    if no_hooks() {
        return;
    }
    let (back, brief, _image) = ends_unread("unread");
    assert!(back.iter().all(|(pid, ..)| *pid != brief.pid), "{back:?}");
}

/// What the guards do while nobody comes.
#[test]
fn without_a_reattachment_everything_lives_until_the_owner_dies() {
    let around = Bystanders::start();
    let mut image = Image::start(&[]);
    let tree = image.spawn(TREE);
    image.member("helper");
    image.exec("exec");
    image.wait_for_door();
    let guards = image.guards(tree);
    assert!(image.is_whole());
    assert_eq!(image.guards(tree), guards);
    image.end(&around);
}

/// The guards that die between the end of the line and the re-attachment.
#[derive(Debug, Clone, Copy)]
enum Dies {
    Supervisor,
    Keeper,
    SupervisorThenKeeper,
    KeeperThenSupervisor,
}

fn kill_one(image: &Image, child: Identity, keeper: bool) {
    let guards = image.guards(child);
    let who = if keeper { guards.keeper.expect("keeper") } else { guards.supervisor };
    who.kill();
    wait_for("it is gone", || (!who.lives()).then_some(()));
    let others = image.guards(child);
    assert!(![others.keeper, Some(others.supervisor)].contains(&Some(who)));
}

#[test]
fn a_guard_that_dies_in_between_is_replaced_and_opens_the_door_again() {
    let around = Bystanders::start();
    for dies in
        [Dies::Supervisor, Dies::Keeper, Dies::SupervisorThenKeeper, Dies::KeeperThenSupervisor]
    {
        let mut image = Image::start(&[]);
        let tree = image.spawn(TREE);
        let brief = image.spawn(BRIEF);
        let group = started(&image.ask("group"));
        image.member("helper");
        image.member("brief");
        image.exec("exec");
        image.wait_for_door();
        let keepers: &[bool] = match dies {
            Dies::Supervisor => &[false],
            Dies::Keeper => &[true],
            Dies::SupervisorThenKeeper => &[false, true],
            Dies::KeeperThenSupervisor => &[true, false],
        };
        for keeper in keepers {
            kill_one(&image, tree, *keeper);
        }
        std::fs::write(image.dir.path().join("go"), "").expect("write");
        wait_for("it ends", || (!brief.lives()).then_some(()));
        let back = image.reattach();
        assert_eq!(back.len(), 2, "{dies:?}: {back:?}");
        image.say(&format!("take {}", brief.pid));
        let exit = image.ask(&format!("wait {}", brief.pid));
        // Of one that lost its parent only newer kernels tell.
        let known = [format!("exit {} 5", brief.pid), format!("exit {} unknown", brief.pid)];
        assert!(exit == known[0] || keepers.contains(&true) && exit == known[1], "{dies:?} {exit}");
        assert!(image.is_whole());
        image.say(&format!("take {}", tree.pid));
        image.say(&format!("end {}", tree.pid));
        image.ask(&format!("empty {}", tree.pid));
        assert!(!image.member_lives("helper"), "{dies:?}");
        let new = image.spawn("exec sleep 600");
        assert!(group.lives());
        image.end(&around);
        assert!(!new.lives() && !group.lives());
    }
}

/// The guard that tells what lives dies at each of its steps: the next one is asked again, and nothing that ended
/// meanwhile is missed.
#[test]
fn a_guard_that_dies_while_it_tells_is_asked_again() {
    if no_hooks() {
        return;
    }
    let around = Bystanders::start();
    for step in ["mirrored", "welcome", "recounting", "recounted"] {
        let mut image = Image::start(&[("OWNERSHIP_TEST_DIE_AT", step)]);
        image.ask("raise");
        let brief = image.spawn(BRIEF);
        let tree = image.spawn(TREE);
        image.member("helper");
        // Fills more than one batch.
        image.ask("many 100");
        let guards = image.guards(tree);
        image.exec("exec");
        image.wait_for_door();
        std::fs::write(image.dir.path().join("go"), "").expect("write");
        wait_for("it ends", || (!brief.lives()).then_some(()));
        let back = image.reattach();
        assert_eq!(back.len(), 102, "{step}");
        wait_for("it died", || (!guards.supervisor.lives()).then_some(()));
        image.say(&format!("take {}", brief.pid));
        assert_eq!(image.ask(&format!("wait {}", brief.pid)), format!("exit {} 5", brief.pid));
        image.ask(&format!("empty {}", brief.pid));
        image.say(&format!("take {}", tree.pid));
        image.say(&format!("end {}", tree.pid));
        image.ask(&format!("empty {}", tree.pid));
        assert_eq!(image.guards(tree_child(&back, tree)).keeper, guards.keeper, "{step}");
        image.end(&around);
    }
}

/// One that lives.
fn tree_child(back: &[Back], tree: Identity) -> Identity {
    let other = back.iter().find(|(pid, exit, _)| exit == "-" && *pid != tree.pid);
    Identity::of(other.expect("a sleeper").0).expect("it lives")
}

/// A copy that executed nothing holds the line too: the guards cannot see that the owner executed something.
#[test]
fn a_copy_by_fork_holds_the_line_until_it_is_gone() {
    if no_hooks() {
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    let library = support::mayhem::library(dir.path());
    let (library, path) = (library.to_str().expect("text"), dir.path().to_str().expect("text"));
    let limit = ("OWNERSHIP_TEST_REATTACH_MS", "300");
    let mut image = Image::start(&[("LD_PRELOAD", library), ("TREE_DIR", path), limit]);
    let child = image.spawn("exec sleep 600");
    let own = rustix::process::Pid::from_child(&image.process);
    rustix::process::kill_process(own, support::mayhem::COPY).expect("signal");
    let copy = recorded(dir.path(), "copy");
    image.exec("exec");
    let said = image.ask("reattach");
    assert!(said.contains("a copy of this process made by fork"), "{said}");
    assert!(child.lives() && copy.lives());
    copy.kill();
    image.wait_for_door();
    assert_eq!(image.reattach().len(), 1);
}

/// After the re-attachment: both guards have the new line.
fn supervisor_dies_after(off: &str) -> (Image, Identity, Guards) {
    let mut image = Image::start(&[("OWNERSHIP_TEST_OFF", off)]);
    let child = image.spawn("trap 'exit 7' TERM; while :; do sleep 0.01; done");
    image.exec("exec");
    assert_eq!(image.reattach().len(), 1);
    let guards = image.guards(child);
    guards.supervisor.kill();
    wait_for("it is gone", || (!guards.supervisor.lives()).then_some(()));
    image.say(&format!("take {}", child.pid));
    image.say(&format!("end {}", child.pid));
    image.ask(&format!("empty {}", child.pid));
    (image, child, guards)
}

#[test]
fn a_supervisor_that_dies_after_a_reattachment_is_replaced_on_the_same_line() {
    let around = Bystanders::start();
    let (mut image, child, guards) = supervisor_dies_after("");
    assert_eq!(image.ask(&format!("wait {}", child.pid)), format!("exit {} 7", child.pid));
    let new = image.spawn("exec sleep 600");
    let now = image.guards(new);
    assert_eq!(now.keeper, guards.keeper);
    assert_eq!(image.all_guards().len(), 2, "no others");
    image.end(&around);
}

/// Negative control: where the other guard does not get the line, the death of one looks like that of both.
#[test]
fn without_the_mirror_the_line_dies_with_the_supervisor() {
    if no_hooks() {
        return;
    }
    let (mut image, _, guards) = supervisor_dies_after("mirror");
    let new = image.spawn("exec sleep 600");
    assert_ne!(image.guards(new).keeper, guards.keeper, "others were started");
}

/// A process of the same user knocks.
fn knock(door: &Path) -> OwnedFd {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let caller = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).expect("socket");
    let address = SocketAddrUnix::new(door).expect("address");
    wait_for("somebody answers", || rustix::net::connect(&caller, &address).ok());
    caller
}

/// What it is told: nothing, if it is sent away.
fn is_told_something(caller: &OwnedFd) -> bool {
    rustix::net::recv(caller, &mut [0; 4096][..], rustix::net::RecvFlags::empty())
        .is_ok_and(|(_, length)| length > 0)
}

#[test]
fn a_stranger_is_sent_away_and_holds_up_nobody() {
    let around = Bystanders::start();
    let mut image = Image::start(&[]);
    let tree = image.spawn(TREE);
    image.member("helper");
    image.exec("exec");
    let door = image.wait_for_door();
    let callers: Vec<_> = (0..200).map(|_| knock(&door)).collect();
    for caller in &callers {
        // Fails where it was sent away before.
        rustix::net::send(caller, b"\x14\0\0\0\0\0\0\0\0", rustix::net::SendFlags::NOSIGNAL).ok();
    }
    assert!(callers.iter().all(|caller| !is_told_something(caller)), "all were sent away");
    assert!(door.exists());
    // While somebody goes on with it.
    let (stop, stopped) = channel::<()>();
    let knocks = door.clone();
    let pest = std::thread::spawn(move || {
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::NONBLOCK);
            let Ok(caller) = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)
            else {
                continue;
            };
            let address = SocketAddrUnix::new(&knocks).expect("address");
            rustix::net::connect(&caller, &address).ok();
        }
    });
    let back = image.reattach();
    drop(stop);
    pest.join().expect("no panic");
    assert_eq!(pids(&[tree]), back.iter().map(|back| back.0).collect::<Vec<_>>());
    assert!(image.is_whole());
    image.end(&around);
}

/// Negative control.
#[test]
fn without_the_check_a_stranger_is_told_everything() {
    if no_hooks() {
        return;
    }
    let mut image = Image::start(&[("OWNERSHIP_TEST_OFF", "credentials")]);
    image.spawn("exec sleep 600");
    image.exec("exec");
    let caller = knock(&image.wait_for_door());
    assert!(is_told_something(&caller), "it was taken for the owner");
}

/// Whatever is wrong with the directory: no door, a clear error, and the guards do what they do.
#[test]
fn a_directory_that_others_can_enter_is_refused() {
    if no_hooks() {
        return;
    }
    let around = Bystanders::start();
    type Wrong = (&'static str, fn(&Path));
    let wrong: [Wrong; 3] = [
        ("open to others", |hall| {
            std::fs::create_dir(hall).expect("dir");
            std::fs::set_permissions(hall, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        }),
        ("a link", |hall| {
            let other = hall.with_file_name("other");
            std::fs::create_dir(&other).expect("dir");
            std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o700))
                .expect("chmod");
            symlink(&other, hall).expect("link");
        }),
        ("a file", |hall| std::fs::write(hall, "").expect("write")),
    ];
    for (what, make) in wrong {
        let mut image = Image::start(&[("OWNERSHIP_TEST_REATTACH_MS", "300")]);
        make(&image.hall());
        image.say("ledger");
        let tree = image.spawn(TREE);
        image.member("helper");
        image.exec("exec");
        let said = image.ask("reattach");
        assert!(said.starts_with("failed the guards of this process were not reached"), "{said}");
        assert_eq!(
            said.contains("must be this user's and 0700"),
            what == "open to others",
            "{said}"
        );
        assert!(image.doors().is_empty() && image.is_whole(), "{what}");
        let journal = image.dir.path().join("journal");
        let written = || {
            let files = std::fs::read_dir(&journal).expect("journal").flatten();
            let mut events = files.flat_map(|file| {
                ownership::journal::read(&std::fs::read(file.path()).expect("read")).records
            });
            events.find(|record| matches!(record.event, ownership::journal::Event::NoDoor { .. }))
        };
        wait_for("it is written down", written);
        image.kill();
        wait_for_nobody(|| image.left());
        assert!(!tree.lives());
        around.assert_untouched();
    }
}

/// Another user's; only root can make one.
#[test]
fn a_directory_of_another_user_is_refused() {
    if no_hooks() {
        return;
    }
    let mut image = Image::start(&[("OWNERSHIP_TEST_REATTACH_MS", "300")]);
    std::fs::create_dir(image.hall()).expect("dir");
    std::fs::set_permissions(image.hall(), std::fs::Permissions::from_mode(0o700)).expect("chmod");
    if std::os::unix::fs::chown(image.hall(), Some(12345), None).is_err() {
        eprintln!("SKIPPED: ONLY ROOT CAN MAKE A DIRECTORY OF ANOTHER USER");
        return;
    }
    let child = image.spawn("exec sleep 600");
    image.exec("exec");
    let said = image.ask("reattach");
    assert!(said.contains("must be this user's and 0700"), "{said}");
    assert!(image.doors().is_empty() && child.lives());
}

#[test]
fn doors_of_dead_owners_are_removed_when_they_are_met() {
    let mut first = Image::start(&[]);
    first.spawn("exec sleep 600");
    first.exec("exec");
    let door = first.wait_for_door();
    let old = door.with_extension("");
    let stem = old.file_name().expect("name").to_str().expect("text");
    let mut numbers: Vec<_> = stem.split('.').map(str::to_owned).collect();
    numbers[2] = "1".into();
    let stale = door.with_file_name(format!("{}.door", numbers.join(".")));
    std::fs::write(&stale, "").expect("write");
    assert_eq!(first.reattach().len(), 1);
    first.exec("exec");
    wait_for("removed", || (!stale.exists()).then_some(()));
    assert_eq!(first.reattach().len(), 1);
}

/// Ends of children that were taken up stand in the rows that the program before had begun.
#[test]
fn the_ledger_goes_on_in_the_same_rows() {
    let mut image = Image::start(&[]);
    image.say("ledger");
    let tree = image.spawn(TREE);
    let brief = image.spawn(BRIEF);
    let stays = image.spawn("exec sleep 600");
    image.member("helper");
    image.member("brief");
    assert_eq!(image.ask("flush"), "flushed true");
    image.exec("exec");
    image.wait_for_door();
    std::fs::write(image.dir.path().join("go"), "").expect("write");
    wait_for("it ends", || (!brief.lives()).then_some(()));
    assert_eq!(image.reattach().len(), 3);
    image.say(&format!("take {}", tree.pid));
    image.say(&format!("end {}", tree.pid));
    image.ask(&format!("empty {}", tree.pid));
    let new = image.spawn("exec sleep 600");
    assert_eq!(image.ask("flush"), "flushed true");
    let ledger = image.dir.path().join("ledger");
    let rows = ownership::ledger::history(&ledger, 10).expect("rows");
    assert_eq!(rows.len(), 4, "{rows:?}");
    let row = |who: Identity| {
        let pid = who.pid.cast_unsigned();
        let is_it = |row: &&ownership::ledger::Row| {
            row.identity.as_ref().is_some_and(|identity| identity.pid == pid)
        };
        rows.iter().find(is_it).unwrap_or_else(|| panic!("a row of {pid}: {rows:?}"))
    };
    assert_eq!(row(brief).exit, Some(ownership::ExitStatus::Code(5)));
    assert_eq!(row(tree).exit, Some(ownership::ExitStatus::Code(7)));
    assert_eq!(row(tree).ended_by, Some(ownership::ledger::EndedBy::Owner));
    assert_eq!(row(tree).argv[..2], ["/bin/sh", "-c"], "as it was asked for");
    for who in [stays, new] {
        assert_eq!(row(who).state, ownership::ledger::State::Running);
    }
    assert!(rows.iter().all(|row| row.owner == rows[0].owner), "one owner");
}

/// More than any buffer between the two takes.
#[test]
fn a_thousand_children_come_back() {
    come_back(1_000);
}

#[test]
#[ignore = "takes minutes, and as many processes: by hand. A thousand run always"]
fn ten_thousand_children_come_back() {
    come_back(10_000);
}

fn come_back(count: usize) {
    let mut image = Image::start(&[]);
    image.ask("raise");
    image.say(&format!("many {count}"));
    let until = std::time::Duration::from_secs(300);
    assert_eq!(image.output.recv_timeout(until).expect("in time"), "pong");
    image.exec("exec");
    let back = image.reattach();
    assert_eq!(back.len(), count);
    assert!(back.iter().all(|(_, exit, word)| exit == "-" && word == "sleep"));
    image.kill();
    let gone = || {
        let lives = |pid: i32| Identity::of(pid).is_some_and(|who| who.has_variable(&image.marker));
        (!back.iter().any(|(pid, ..)| lives(*pid))).then_some(())
    };
    wait_for("all end", gone);
}

impl Image {
    fn member_lives(&self, name: &str) -> bool {
        let pid = std::fs::read_to_string(self.dir.path().join(name)).expect("it was there");
        let who = pid.trim().parse().ok().and_then(Identity::of);
        who.is_some_and(|who| who.has_variable(&self.marker) && who.lives())
    }
}

/// Who tidies up temporary files takes the door, or the whole directory, away: it is there again before it is needed.
#[test]
fn a_door_that_was_removed_is_opened_again() {
    for whole in [false, true] {
        let mut image = Image::start(&[]);
        let child = image.spawn("exec sleep 600");
        image.exec("exec");
        let door = image.wait_for_door();
        let inode = |door: &Path| {
            std::fs::metadata(door).ok().map(|meta| std::os::unix::fs::MetadataExt::ino(&meta))
        };
        let before = inode(&door);
        match whole {
            true => std::fs::remove_dir_all(image.hall()).expect("remove"),
            false => std::fs::remove_file(&door).expect("remove"),
        }
        wait_for("another door", || inode(&door).filter(|_| before.is_some()));
        let back = image.reattach();
        assert_eq!(back.len(), 1, "{whole}: {back:?}");
        assert!(child.lives());
    }
}
