//! Starting: arguments, environment, directory, descriptors, results, and starts that fail.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ownership::{ChildEvent, Emptied, ExitStatus, Owned, Owner, Phase, Spawn, SpawnError};
use support::{owner, shell, start, wait_for};

/// Runs it and gives what it wrote to its standard output.
fn output(owner: &Owner, spawn: Spawn) -> String {
    let (read, write) = std::io::pipe().expect("pipe");
    let (child, _events) = start(owner, spawn.fd(1, write.into()));
    let mut text = String::new();
    fs::File::from(OwnedFd::from(read)).read_to_string(&mut text).expect("read");
    assert_eq!(child.wait().expect("exit").status, ExitStatus::Code(0));
    text
}

#[test]
fn exit_codes_come_back_and_then_the_scope_is_empty() {
    let owner = owner();
    for code in [0, 1, 7, 255] {
        let (child, events) = start(&owner, shell(&format!("exit {code}")));
        let exit = child.wait().expect("exit");
        assert_eq!(exit.status, ExitStatus::Code(code));
        assert_eq!(child.wait_empty(), Some(Emptied::default()));
        let events: Vec<_> = events.iter().take(2).collect();
        assert_eq!(events, [ChildEvent::Exited(exit), ChildEvent::Emptied(Emptied::default())]);
    }
}

#[test]
fn signals_and_usage_come_back() {
    let owner = owner();
    let (child, _events) = start(&owner, shell("kill -SEGV $$"));
    assert!(matches!(
        child.wait().expect("exit").status,
        ExitStatus::Signal { signal: libc::SIGSEGV, .. }
    ));
    let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let (child, _events) = start(&owner, shell(busy));
    let usage = child.wait().expect("exit").usage;
    assert!(usage.user + usage.system > Duration::from_millis(5), "{usage:?}");
    assert!(usage.max_rss_kib > 100, "{usage:?}");
}

#[test]
fn arguments_environment_and_directory_arrive() {
    let owner = owner();
    let dir = tempfile::tempdir().expect("dir");
    let real = dir.path().canonicalize().expect("dir");
    let spawn = shell(r#"printf '%s|' "$0" "$@" "$FIRST" "$HOME"; pwd -P"#)
        .args(["zero", "one two", "", "ü"])
        .env("FIRST", "1")
        .env_remove("HOME")
        .dir(&real);
    assert_eq!(output(&owner, spawn), format!("zero|one two||ü|1||{}\n", real.display()));
    let spawn = Spawn::new("/usr/bin/env").env_clear().env("ONLY", "me");
    let text = output(&owner, spawn);
    let (tag, rest): (Vec<_>, Vec<_>) =
        text.lines().partition(|line| line.starts_with("OWNERSHIP_TAG="));
    assert_eq!(rest, ["ONLY=me"]);
    let own = std::process::id();
    assert!(tag[0].starts_with(&format!("OWNERSHIP_TAG={own}.")), "{tag:?}");
}

#[test]
fn relative_directories_are_relative_to_the_owner() {
    let here = std::env::current_dir().expect("dir").canonicalize().expect("dir");
    assert_eq!(output(&owner(), shell("pwd -P")), format!("{}\n", here.display()));
    let sources = format!("{}\n", here.join("src").display());
    assert_eq!(output(&owner(), shell("pwd -P").dir("src")), sources);
}

#[test]
fn a_child_leads_its_session_with_default_signals() {
    let owner = owner();
    let text = output(&owner, shell("cut -d' ' -f1,5,6 /proc/$$/stat; echo $$"));
    let (ids, pid) = text.trim().split_once('\n').expect("two lines");
    assert_eq!(ids, format!("{pid} {pid} {pid}"), "leads group and session");
    let text = output(&owner, Spawn::new("/bin/cat").arg("/proc/self/status"));
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).expect("field");
        u64::from_str_radix(line[name.len()..].trim(), 16).expect("hexadecimal")
    };
    assert_eq!(field("SigBlk:"), 0);
    assert_eq!(field("SigIgn:"), 0);
}

#[test]
fn large_arguments_cross_and_too_large_ones_are_refused() {
    let owner = owner();
    let long = "x".repeat(100_000);
    let mut spawn = shell("echo $#").arg("zero");
    for _ in 0..12 {
        spawn = spawn.arg(&long);
    }
    assert_eq!(output(&owner, spawn), "12\n", "1.2 MB of arguments");
    let refused = |count: usize, size: usize| {
        let args = (0..count).map(|_| "x".repeat(size));
        owner.spawn(Spawn::new("/bin/true").args(args), |_| {}).expect_err("too large")
    };
    let error = refused(50, 100_000);
    assert_eq!((error.phase, error.errno), (Phase::Request, Some(libc::E2BIG)));
    // One argument above 128 KiB: the kernel's own limit.
    let error = refused(1, 140_000);
    assert_eq!((error.phase, error.errno), (Phase::Exec, Some(libc::E2BIG)));
}

fn failure(owner: &Owner, spawn: Spawn) -> (Phase, Option<i32>, Option<PathBuf>) {
    let never = |event| panic!("nothing was started: {event:?}");
    let SpawnError { phase, errno, path, .. } = owner.spawn(spawn, never).expect_err("fails");
    (phase, errno, path)
}

#[test]
fn a_start_that_fails_says_where_and_why() {
    let owner = owner();
    let dir = tempfile::tempdir().expect("dir");
    let plain = dir.path().join("plain");
    fs::write(&plain, "no program").expect("write");
    let missing = dir.path().join("missing");
    let exec = |path: &Path, errno| (Phase::Exec, Some(errno), Some(path.to_owned()));
    assert_eq!(failure(&owner, Spawn::new(&missing)), exec(&missing, libc::ENOENT));
    assert_eq!(failure(&owner, Spawn::new(&plain)), exec(&plain, libc::EACCES));
    assert_eq!(failure(&owner, Spawn::new("")), exec(Path::new(""), libc::ENOENT));
    let no_such = Path::new("no-such-program-anywhere");
    assert_eq!(failure(&owner, Spawn::new(no_such)), exec(no_such, libc::ENOENT));
    // Not executable in one directory of PATH, absent in the next: the first is what counts.
    let spawn = Spawn::new("plain").env("PATH", format!("{}:/bin", dir.path().display()));
    assert_eq!(failure(&owner, spawn), exec(Path::new("plain"), libc::EACCES));
    let chdir = (Phase::Chdir, Some(libc::ENOENT), Some(missing.clone()));
    assert_eq!(failure(&owner, Spawn::new("/bin/true").dir(&missing)), chdir);
    let nul = failure(&owner, Spawn::new("/bin/true").arg("a\0b"));
    assert_eq!((nul.0, nul.1), (Phase::Request, Some(libc::EINVAL)));
    let null = || OwnedFd::from(fs::File::open("/dev/null").expect("null"));
    let twice = Spawn::new("/bin/true").fd(5, null()).fd(5, null());
    assert_eq!(failure(&owner, twice).1, Some(libc::EBADF));
    let many = (0..241).fold(Spawn::new("/bin/true"), |spawn, at| spawn.fd(10 + at, null()));
    assert_eq!(failure(&owner, many).1, Some(libc::EMFILE));
    assert_eq!(output(&owner, shell("echo fine")), "fine\n", "and the owner goes on");
}

#[test]
fn no_supervisor_is_an_error_of_its_own() {
    let program = ownership::Program::named("/no/such/supervisor");
    let error = Owner::new(program, Vec::new()).spawn(shell("true"), |_| {}).expect_err("none");
    assert_eq!((error.phase, error.errno), (Phase::Supervisor, Some(libc::ENOENT)));
    let error = Owner::new(ownership::Program::named("/bin/true"), Vec::new())
        .spawn(shell("true"), |_| {})
        .expect_err("not a supervisor");
    assert_eq!(error.phase, Phase::Supervisor);
}

/// What the descriptors of a process stand for, by number; `None` when one vanishes meanwhile.
fn descriptors(pid: u32) -> Option<BTreeMap<i32, String>> {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("descriptors")
        .map(|entry| {
            let entry = entry.expect("entry");
            let number = entry.file_name().to_str().expect("number").parse().expect("number");
            let target = fs::read_link(entry.path()).ok()?;
            Some((number, target.to_str().expect("text").to_owned()))
        })
        .collect()
}

fn link_of(fd: &OwnedFd) -> String {
    use std::os::fd::AsRawFd;
    let link = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("link");
    link.to_str().expect("text").to_owned()
}

/// RB-18, RB-19: exactly its own descriptors, whoever spawns beside it.
#[test]
fn each_of_many_parallel_children_has_exactly_its_own_descriptors() {
    let owner = owner();
    let spawn_one = |target: i32| -> (Owned, OwnedFd) {
        let (read, write) = std::io::pipe().expect("pipe");
        let write = OwnedFd::from(write);
        let pipe = link_of(&write);
        let spawn = Spawn::new("sleep").arg("600").fd(target, write).line(target + 2);
        let (child, _events) = start(&owner, spawn);
        let null = || "/dev/null".to_owned();
        let expected = BTreeMap::from([(0, null()), (1, null()), (2, null()), (target, pipe)]);
        // The dynamic loader opens and closes files of its own first.
        wait_for("exactly its own descriptors", || {
            let mut found = descriptors(child.pid())?;
            let line = found.remove(&(target + 2))?;
            (line.starts_with("socket:") && found == expected).then_some(())
        });
        (child, read.into())
    };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for child in 0..25 {
                    // Numbers that the supervisor itself uses are among them.
                    let (child, read) = spawn_one(3 + thread + child);
                    child.kill();
                    child.wait_empty().expect("empty");
                    // Its end of the pipe was the only one.
                    assert_eq!(rustix::io::read(&read, &mut [0; 8]), Ok(0));
                }
            });
        }
    });
}

#[test]
fn this_program_runs_again_although_its_file_is_gone() {
    let owner = owner();
    let program = ownership::Program::current().expect("current").shown_as("again");
    let spawn = Spawn::program(program).args(["--list"]);
    let text = output(&owner, spawn);
    assert!(text.contains("this_program_runs_again"), "{text}");
}

#[test]
fn the_default_owner_is_set_once() {
    assert!(ownership::spawn_owned(shell("true")).is_err(), "none is set");
    assert!(ownership::owner::set_default(owner()));
    assert!(!ownership::owner::set_default(owner()), "the first call wins");
    let child = ownership::spawn_owned(shell("exit 9")).expect("spawn");
    assert_eq!(child.wait().expect("exit").status, ExitStatus::Code(9));
}
