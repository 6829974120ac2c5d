//! The death matrix: every way in which an owner can end, or seem to, above a tree with every awkward kind
//! of member. Beside each case stand another owner with its tree, and a stranger; neither is touched.
//! `guard_deaths` has the rows in which guards die.

mod support;

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use support::matrix::{Bystanders, Case, GRACE, run};
use support::{TreeOwner, mayhem, wait_for};

type End = fn(&mut TreeOwner);

/// How an owner ends.
const ENDS: [(&str, End); 10] = [
    ("returns from main", |owner| owner.tell("return")),
    ("exit code", |owner| owner.tell("exit")),
    ("end of its input", |owner| drop(owner.process.stdin.take())),
    ("_exit", |owner| owner.signal(mayhem::EXIT)),
    ("panic", |owner| owner.tell("panic")),
    ("abort", |owner| owner.tell("abort")),
    ("segv by itself", |owner| owner.tell("segv")),
    ("TERM", |owner| owner.signal(Signal::TERM)),
    ("SEGV from outside", |owner| owner.signal(Signal::SEGV)),
    ("KILL", |owner| owner.signal(Signal::KILL)),
];

/// What only looks like an end. Each returns when it has happened.
const LIVES_ON: [(&str, End); 6] = [
    ("executes another program", executes_another),
    ("executes itself", |owner| executes_itself(owner, "again")),
    ("executes itself from a thread", |owner| executes_itself(owner, "thread")),
    ("its main thread ends", ends_its_main_thread),
    ("is stopped", |owner| {
        owner.signal(Signal::STOP);
        wait_for("stopped", || (owner.identity().state()? == "T").then_some(()));
    }),
    ("is copied by fork, and the copy dies", |owner| {
        owner.signal(mayhem::COPY);
        let copy = owner.other("copy");
        copy.kill();
        wait_for("the copy is dead", || (!copy.lives()).then_some(()));
    }),
];

#[test]
fn an_owner_that_ends_takes_its_tree_along() {
    let cases = ENDS.iter().map(|(name, end)| {
        Case::new(name, move || {
            let around = Bystanders::start();
            let mut owner = TreeOwner::start_with_mayhem(GRACE);
            assert!(owner.is_whole(), "{:?}", owner.living());
            end(&mut owner);
            owner.process.wait().expect("the owner ends");
            around.assert_all_gone(&owner);
        })
    });
    run(cases.collect());
}

#[test]
fn an_owner_whose_terminal_is_closed_takes_its_tree_along() {
    let around = Bystanders::start();
    let (mut owner, terminal) = TreeOwner::start_in_a_terminal(GRACE);
    drop(terminal);
    let status = owner.process.wait().expect("the owner ends");
    use std::os::unix::process::ExitStatusExt;
    // Where whoever started these tests ignores HUP (nohup), the end of its input ends it: code 3.
    let ended = status.signal() == Some(Signal::HUP.as_raw()) || status.code() == Some(3);
    assert!(ended, "{status:?}");
    around.assert_all_gone(&owner);
}

/// Whatever it looked like, the owner lives: its tree is whole, after another owner has gone through its
/// whole end meanwhile. Then it is killed.
#[test]
fn an_owner_that_lives_on_keeps_its_tree() {
    let cases = LIVES_ON.iter().map(|(name, seems_to_end)| {
        Case::new(name, move || {
            let around = Bystanders::start();
            let mut owner = TreeOwner::start_with_mayhem(GRACE);
            let handle = owner.identity().handle().expect("a handle");
            let guards = owner.guards().expect("guards");
            seems_to_end(&mut owner);
            a_whole_death_passes();
            assert!(owner.is_whole(), "it keeps {:?}", owner.living());
            assert_eq!(owner.guards(), Some(guards), "nobody had to be replaced");
            assert!(!is_readable(&handle), "its old handle says that it lives");
            owner.signal(Signal::KILL);
            owner.process.wait().expect("the owner ends");
            assert!(is_readable(&handle));
            around.assert_all_gone(&owner);
        })
    });
    run(cases.collect());
}

/// A stopped owner goes on as if nothing had been.
#[test]
fn an_owner_that_is_continued_goes_on() {
    let mut owner = TreeOwner::start(GRACE, "");
    owner.signal(Signal::STOP);
    wait_for("stopped", || (owner.identity().state()? == "T").then_some(()));
    a_whole_death_passes();
    owner.signal(Signal::CONT);
    owner.tell("more");
    let more = owner.other("more");
    assert!(owner.is_whole() && more.lives());
    owner.tell("exit");
    wait_for("its own end", || owner.left().is_empty().then_some(()));
}

/// The line is closed on exec, so its guards see its end, and a pidfd that is silent: the process lives.
/// What the program that was executed starts has a line and guards of its own.
#[test]
fn what_a_re_executed_owner_starts_ends_with_it_too() {
    let mut owner = TreeOwner::start(GRACE, "");
    executes_itself(&mut owner, "again");
    let second = owner.other("second");
    assert!(second.lives() && owner.is_whole());
    assert_ne!(support::process::Guards::of(second), owner.guards(), "the old line has ended");
    owner.tell("more");
    assert!(owner.other("more").lives(), "its new line is as good as any");
    owner.tell("exit");
    wait_for("nothing is left of both", || owner.left().is_empty().then_some(()));
}

/// The copy has executed nothing: it holds everything that the owner held, its line too.
#[test]
fn a_copy_of_the_owner_does_not_keep_its_tree() {
    let around = Bystanders::start();
    let mut owner = TreeOwner::start_with_mayhem(GRACE);
    owner.signal(mayhem::COPY);
    let copy = owner.other("copy");
    assert!(holds_a_socket(copy.pid), "it holds the owner's line");
    owner.signal(Signal::KILL);
    owner.process.wait().expect("the owner ends");
    let only_the_copy = || owner.left().iter().all(|who| *who == copy).then_some(());
    wait_for("nothing is left but the copy", only_the_copy);
    assert!(copy.lives(), "a copy is none of our children");
    copy.kill();
    around.assert_all_gone(&owner);
}

/// The grace of the matrix is what its stubborn member costs; without one nobody waits for it.
#[test]
fn members_that_obey_end_without_any_grace() {
    let owner = TreeOwner::start(Duration::from_secs(600), "");
    owner.member("stubborn").kill();
    owner.signal(Signal::KILL);
    wait_for("nothing is left", || owner.living().is_empty().then_some(()));
}

fn executes_another(owner: &mut TreeOwner) {
    owner.tell("exec");
    wait_for("executed", || (owner.identity().name() == "sleep").then_some(()));
}

fn executes_itself(owner: &mut TreeOwner, how: &str) {
    owner.tell(how);
    assert_eq!(owner.other("again"), owner.identity(), "it is the same process");
}

fn ends_its_main_thread(owner: &mut TreeOwner) {
    owner.signal(mayhem::END_MAIN);
    wait_for("shown as a zombie", || (owner.identity().state()? == "Z").then_some(()));
    assert!(owner.identity().lives(), "others run");
}

/// Long enough for guards that take something for their owner's death: they would act as these do.
fn a_whole_death_passes() {
    let other = TreeOwner::start(GRACE, "");
    other.signal(Signal::KILL);
    wait_for("the other's tree is gone", || other.living().is_empty().then_some(()));
}

fn is_readable(handle: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(handle, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll") > 0
}

fn holds_a_socket(pid: i32) -> bool {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("fds").flatten();
    fds.filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .any(|to| to.to_string_lossy().starts_with("socket:"))
}
