//! A wedged loop's process is ended and its tree goes with it; one that is slow for another reason is not.
#![cfg(feature = "ledger")]
#![expect(clippy::disallowed_methods, reason = "owners that are watched are not owned")]

mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use ownership::ledger::{EndedBy, kills};
use rustix::process::Signal;
use support::{Identity, Stranger, example, wait_for};

struct Watched {
    process: Child,
    identity: Identity,
    tree: Vec<Identity>,
    dir: tempfile::TempDir,
}

impl Watched {
    fn start(mode: &str) -> Self {
        Self::with(mode, None)
    }

    fn with(mode: &str, library: Option<&Path>) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let mut command = Command::new(example("watched-owner"));
        // One that is stopped stands in a group of its own: the kernel may hang up all of an orphaned group that has a
        // stopped member (man 3p _exit), and the runner of the tests is none of it.
        command.arg(dir.path()).arg(mode).stdout(Stdio::piped()).process_group(0);
        if let Some(library) = library {
            command.env("LD_PRELOAD", library).env("BLOCK_DIR", dir.path());
        }
        let mut process = command.spawn().expect("owner");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("stdout");
        BufReader::new(stdout).read_line(&mut line).expect("read");
        let number = |pid: &str| Identity::of(pid.parse().expect("pid")).expect("a child");
        let tree = line.split_whitespace().map(number).collect();
        let identity = Identity::of(process.id().cast_signed()).expect("owner");
        Self { process, identity, tree, dir }
    }

    fn asked(&self) -> u32 {
        let text = std::fs::read_to_string(self.dir.path().join("asked")).unwrap_or_default();
        text.strip_suffix('\n').and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    fn ends(&mut self) -> ExitStatus {
        wait_for("it is ended", || self.process.try_wait().expect("wait"))
    }

    fn lives(&mut self) -> bool {
        self.process.try_wait().expect("wait").is_none() && self.tree.iter().all(|who| who.lives())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

#[test]
fn a_wedged_loop_is_ended_with_its_tree_and_it_is_told() {
    let stranger = Stranger::start();
    let mut control = Watched::start("idle");
    for (mode, manner) in [("spin", "computed"), ("stuck", "slept")] {
        let mut owner = Watched::start(mode);
        assert_eq!(owner.ends().signal(), Some(6), "{mode}: by ABRT");
        wait_for("its tree is gone", || owner.tree.iter().all(|who| !who.lives()).then_some(()));
        assert!(owner.asked() >= 1, "{mode}: it was asked before");
        let told = kills(&owner.dir.path().join("ledger.sqlite"), owner.dir.path(), 0);
        let told = told.expect("kills");
        let by_dog = told.iter().find(|kill| kill.by == EndedBy::Watchdog).expect("a line");
        assert_eq!(by_dog.pid, Some(owner.identity.pid.cast_unsigned()), "{mode}");
        assert!(by_dog.why.contains(manner), "{mode}: {by_dog:?}");
    }
    assert!(control.lives() && stranger.is_untouched());
}

/// Each witness alone: this loop does not turn, and its thread moves; that one sleeps, and answers.
#[test]
fn one_witness_is_not_enough() {
    let (mut moves, mut idle) = (Watched::start("moves"), Watched::start("idle"));
    // Two questions in each limit: three limits.
    wait_for("both were asked for long", || {
        (moves.asked() >= 6 && idle.asked() >= 6).then_some(())
    });
    assert!(moves.lives() && idle.lives());
}

/// On USR1 the main thread waits in state D, as it does for a disk: for the end of a child by vfork.
const BLOCK: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static char done[4096];
static void block(int number) {
    (void)number;
    if (vfork() == 0) { sleep(4); rmdir(done); _exit(0); }
}
__attribute__((constructor)) static void load(void) {
    const char *dir = getenv("BLOCK_DIR");
    unsetenv("LD_PRELOAD");
    if (!dir) return;
    snprintf(done, sizeof done, "%s/blocked", dir);
    signal(SIGUSR1, block);
}
"#;

#[test]
fn a_disk_that_is_slow_is_waited_for() {
    let place = tempfile::tempdir().expect("dir");
    let (code, library) = (place.path().join("block.c"), place.path().join("block.so"));
    std::fs::write(&code, BLOCK).expect("write");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&code);
    assert!(command.status().expect("cc, which links Rust programs too").success());
    // On a busy machine it may be ended for being wedged before it waits for the disk.
    let waits = || {
        let mut owner = Watched::with("stuck", Some(&library));
        std::fs::create_dir(owner.dir.path().join("blocked")).expect("mkdir");
        owner.identity.signal(Signal::USR1);
        wait_for("it waits in D, or is ended", || {
            let waits = owner.identity.state().is_some_and(|state| state == "D");
            (waits || !owner.lives()).then_some(waits)
        })
        .then_some(owner)
    };
    let mut owner = (0..5).find_map(|_| waits()).expect("one that waits in D");
    let blocked = owner.dir.path().join("blocked");
    // Four limits long. That it is over is seen by what is removed then.
    wait_for("it is over", || {
        let over = !blocked.exists();
        assert!(over || owner.lives(), "it was ended while it waited for a disk");
        over.then_some(())
    });
    // Then it is wedged like any other: it was the disk that it was spared for.
    assert_eq!(owner.ends().signal(), Some(6));
}

#[test]
fn one_that_was_stopped_goes_on() {
    let mut owner = Watched::start("idle");
    wait_for("it was asked", || (owner.asked() >= 1).then_some(()));
    assert!(owner.identity.signal(Signal::STOP));
    wait_for("it is stopped", || (owner.identity.state()? == "T").then_some(()));
    // Three limits by somebody else's clock.
    assert!(Command::new("sleep").arg("3").status().expect("sleep").success());
    let before = owner.asked();
    assert!(owner.identity.signal(Signal::CONT));
    wait_for("it was asked again", || (owner.asked() >= before + 2).then_some(()));
    assert!(owner.lives());
}
