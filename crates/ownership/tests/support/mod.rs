//! What the tests of this crate share: an owner over the supervisor program, and waiting for facts.
#![expect(clippy::disallowed_methods, reason = "tests wait for facts, with deadlines")]
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::allow_attributes, reason = "an expectation would fail in some of the binaries")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ownership::{ChildEvent, Owned, Owner, Program, Spawn};

pub(crate) mod matrix;
pub(crate) mod mayhem;
pub(crate) mod namespace;
pub(crate) mod process;
pub(crate) mod small;
pub(crate) mod stranger;
pub(crate) mod tier;
pub(crate) mod tree;

pub(crate) use process::Identity;
pub(crate) use stranger::Stranger;
pub(crate) use tree::TreeOwner;

/// Long enough for a busy machine; reached only by a failure.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// An owner whose supervisor is the small program of this crate.
pub(crate) fn owner() -> Owner {
    let program = small_program().unwrap_or(Path::new(env!("CARGO_BIN_EXE_ownership-supervisor")));
    Owner::new(Program::named(program), Vec::new()).with_containment(tier::asked())
}

/// The static one, in the test program that is about it. Says loudly where there can be none.
#[expect(clippy::print_stderr, reason = "skips loudly")]
pub(crate) fn small_program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let own = std::env::current_exe().expect("this program");
        let name = own.file_name().and_then(|name| name.to_str()).expect("a name");
        if !name.starts_with("small_program") {
            return None;
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let skip =
            |why: &String| eprintln!("SKIPPED: NO STATIC PROGRAM, THE ORDINARY ONE RUNS: {why}");
        small::program(&root).inspect_err(skip).ok()
    });
    program.as_deref()
}

/// A shell that runs `script`.
pub(crate) fn shell(script: &str) -> Spawn {
    Spawn::new("/bin/sh").arg("-c").arg(script)
}

/// Starts it and gives its events.
pub(crate) fn start(owner: &Owner, spawn: Spawn) -> (Owned, Receiver<ChildEvent>) {
    let (tell, events) = channel();
    let owned = owner.spawn(spawn, move |event| drop(tell.send(event))).expect("spawn");
    (owned, events)
}

/// Whether this is a release build, in which nothing can be switched off.
#[expect(clippy::print_stderr, reason = "skips loudly")]
pub(crate) fn no_hooks() -> bool {
    let none = !cfg!(debug_assertions);
    if none {
        eprintln!(
            "SKIPPED: NOTHING CAN BE SWITCHED OFF IN A RELEASE BUILD; run it in a debug build"
        );
    }
    none
}

/// Waits until `fact` gives something.
pub(crate) fn wait_for<T>(what: &str, mut fact: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = fact() {
            return value;
        }
        assert!(Instant::now() < until, "in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until nobody is left.
pub(crate) fn wait_for_nobody(left: impl Fn() -> Vec<Identity>) {
    let until = Instant::now() + DEADLINE;
    loop {
        let left = left();
        if left.is_empty() {
            return;
        }
        let shown = |who: &Identity| format!("{} {} below {:?}", who.pid, who.name(), who.parent());
        let shown: Vec<_> = left.iter().map(shown).collect();
        assert!(Instant::now() < until, "left in the end: {shown:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The processes whose numbers stand in the files of `dir`, by file name; files appear when the
/// processes are ready.
pub(crate) fn recorded(dir: &Path, name: &str) -> Identity {
    wait_for(&format!("{name} is there"), || {
        let pid = fs::read_to_string(dir.join(name)).ok()?;
        let pid = pid.strip_suffix('\n')?.parse().ok()?;
        if tier::is_inside() { process::from_inside(pid, dir) } else { Identity::of(pid) }
    })
}

/// Processes with this parent.
pub(crate) fn children_of(parent: i32) -> std::collections::HashSet<i32> {
    process::children_of(parent)
}

/// The parent of a child of the supervisor is the supervisor.
pub(crate) fn supervisor_of(owned: &Owned) -> Identity {
    let child = Identity::of(owned.pid().cast_signed()).expect("child");
    Identity::of(child.parent().expect("parent")).expect("supervisor")
}

/// Kills both guards at once: both are stopped before, so that neither has time to see the other's death, and the lower
/// one dies first. The death of the upper one would continue it (`setpgid(2)`: an orphaned group).
pub(crate) fn kill_both(keeper: Identity, supervisor: Identity) {
    for guard in [supervisor, keeper] {
        assert!(guard.signal(rustix::process::Signal::STOP));
        wait_for("it is stopped", || (guard.state()? == "T").then_some(()));
    }
    supervisor.kill();
    keeper.kill();
    wait_for("both are gone", || (!keeper.lives() && !supervisor.lives()).then_some(()));
}

/// A program that ignores none of the signals by which a terminal ends programs, whoever started this test (`nohup`,
/// a shell without job control).
pub(crate) fn undisturbed(program: &str) -> std::process::Command {
    let mut command = std::process::Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT", program]);
    command
}

/// Compiles a program in C and gives its path: `DIR/NAME.exe`.
pub(crate) fn compile(dir: &Path, name: &str, source: &str) -> std::path::PathBuf {
    let (code, program) = (dir.join(format!("{name}.c")), dir.join(format!("{name}.exe")));
    fs::write(&code, source).expect("write");
    let mut command = std::process::Command::new("cc");
    command.arg("-pthread").arg("-o").arg(&program).arg(&code);
    let status = command.status().expect("cc, which links Rust programs too");
    assert!(status.success());
    program
}

/// A program that gives up being a subreaper and leaves a daemon, whose number is in `$DIR/daemon`, to whoever stands above.
pub(crate) fn loose_program(dir: &Path) -> std::path::PathBuf {
    let source = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(void) {
    char path[4096];
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
    if (fork() == 0) {
        if (fork() == 0) {
            setsid();
            if (getenv("STUBBORN")) signal(SIGTERM, SIG_IGN);
            snprintf(path, sizeof path, "%s/daemon", getenv("DIR"));
            FILE *file = fopen(path, "w");
            fprintf(file, "%d\n", getpid());
            fclose(file);
            while (1) sleep(600);
        }
        _exit(0);
    }
    sleep(600);
}"#;
    compile(dir, "loose", source)
}

/// A program of `examples/`. `cargo test` builds them; `cargo test --test NAME` alone does not.
pub(crate) fn example(name: &str) -> std::path::PathBuf {
    let own = std::env::current_exe().expect("this program");
    let target = own.parent().and_then(Path::parent).expect("target directory");
    let path = target.join("examples").join(name);
    assert!(path.exists(), "{name} is not built: cargo build -p delegate-ownership --examples");
    path
}
