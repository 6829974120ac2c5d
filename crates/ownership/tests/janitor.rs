//! What dead owners have left is found, graded and ended, and nobody else is: an owner and both its guards are killed at once, beside a
//! living owner, a stranger, and a stranger with the dead owner's mark. Each test has a pid namespace of its own.
#![cfg(feature = "ledger")]
#![expect(
    clippy::disallowed_methods,
    reason = "owners that are to die, strangers, and the janitor"
)]

mod support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ownership::ledger::{EndedBy, Row, history, kills};
use rusqlite::Connection;
use rustix::process::Signal;
use support::process::{Guards, everybody};
use support::{Identity, Stranger, example, namespace, no_hooks, tier, wait_for};

const LIMIT: Duration = Duration::from_secs(120);

/// A `record-owner` with four children, the last of which has one of its own.
struct Recorded {
    process: Child,
    dir: tempfile::TempDir,
    identity: Identity,
    children: Vec<Identity>,
    /// Below the last child, in a session of its own.
    below: Identity,
    guards: Guards,
}

impl Recorded {
    /// Held by descent alone, so that rows and marks are all that tells whose they are.
    fn start() -> Self {
        Self::held_by("subreaper")
    }

    fn held_by(tier: &str) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let mut command = Command::new(example("record-owner"));
        command.arg("own").arg(dir.path()).arg(tier).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("owner");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("stdout");
        BufReader::new(stdout).read_line(&mut line).expect("read");
        let number = |pid: &str| Identity::of(pid.parse().expect("pid")).expect("a child");
        let children: Vec<_> = line.split_whitespace().map(number).collect();
        let shell = children[3].pid;
        let below = wait_for("its child sleeps", || {
            let mut below = support::children_of(shell).into_iter().filter_map(Identity::of);
            below.find(|who| who.name() == "sleep")
        });
        let guards = Guards::of(children[0]).expect("guards");
        let identity = Identity::of(process.id().cast_signed()).expect("owner");
        Self { process, dir, identity, children, below, guards }
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn ledger(&self) -> PathBuf {
        self.dir().join("ledger.sqlite")
    }

    /// Everybody whom it has started.
    fn tree(&self) -> Vec<Identity> {
        self.children.iter().copied().chain([self.below]).collect()
    }

    fn living(&self) -> usize {
        self.tree().iter().filter(|who| who.lives()).count()
    }

    /// Both guards die with it, faster than anybody can act.
    fn dies_with_its_guards(&mut self) {
        assert!(self.identity.signal(Signal::STOP), "it starts no others");
        self.guards_stop();
        self.guards_die();
        self.dies();
        assert_eq!(self.living(), 5, "nobody was there to end them");
    }

    fn guards_stop(&self) {
        for guard in [self.guards.keeper.expect("keeper"), self.guards.supervisor] {
            assert!(guard.signal(Signal::STOP));
            wait_for("it is stopped", || (guard.state()? == "T").then_some(()));
        }
    }

    /// The upper one last: whoever loses the last one above it is continued by the kernel.
    fn guards_die(&self) {
        for guard in [self.guards.supervisor, self.guards.keeper.expect("keeper")] {
            guard.kill();
            wait_for("it is gone", || (!guard.lives()).then_some(()));
        }
    }

    fn dies(&mut self) {
        self.process.kill().expect("kill");
        self.process.wait().expect("wait");
    }

    fn sql(&self, text: &str) {
        Connection::open(self.ledger()).expect("open").execute_batch(text).expect("sql");
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// What a `cleaner` says.
fn cleaner(args: &[&str], dir: &Path, off: &str) -> String {
    let mut command = Command::new(example("cleaner"));
    command.arg(args[0]).arg(dir).args(&args[1..]).env("OWNERSHIP_TEST_OFF", off);
    let output = command.stderr(Stdio::inherit()).output().expect("cleaner");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn look(dir: &Path) -> String {
    cleaner(&["look"], dir, "")
}

fn kill(dir: &Path) -> String {
    cleaner(&["kill", "300"], dir, "")
}

/// The numbers in lines that begin so.
fn pids(text: &str, head: &str) -> Vec<i32> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(head)?.strip_prefix(' '));
    let mut pids: Vec<i32> =
        lines.map(|rest| rest.split(' ').next().unwrap_or("").parse().expect("pid")).collect();
    pids.sort_unstable();
    pids
}

fn numbers(of: &[Identity]) -> Vec<i32> {
    let mut numbers: Vec<_> = of.iter().map(|who| who.pid).collect();
    numbers.sort_unstable();
    numbers
}

/// Somebody with the mark of another one's owner, as everybody has who is started from its shell.
fn copier(of: Identity) -> Child {
    let environment = std::fs::read(format!("/proc/{}/environ", of.pid)).expect("environ");
    let entries = environment.split(|byte| *byte == 0);
    let mark = entries.filter_map(|entry| std::str::from_utf8(entry).ok()?.split_once('='));
    let mark = mark.filter(|(name, _)| *name == "OWNERSHIP_TAG").map(|(_, value)| value).next();
    let mut command = Command::new("sleep");
    command.arg("600").env("OWNERSHIP_TAG", mark.expect("a mark")).spawn().expect("copier")
}

/// The inode of its pidfd.
fn inode(who: Identity) -> u64 {
    rustix::fs::fstat(who.handle().expect("it lives")).expect("stat").st_ino
}

fn enter(name: &str) -> bool {
    namespace::enter(name, LIMIT)
}

#[test]
fn what_is_proved_is_ended_and_nobody_else() {
    if !enter("what_is_proved_is_ended_and_nobody_else") {
        return;
    }
    let (stranger, control) = (Stranger::start(), Recorded::start());
    let mut owner = Recorded::start();
    let mut copier = copier(owner.children[0]);
    assert_eq!(pids(&look(owner.dir()), "found proved"), [] as [i32; 0], "its owner lives");
    owner.dies_with_its_guards();

    let said = look(owner.dir());
    assert_eq!(pids(&said, "found proved"), numbers(&owner.tree()), "{said}");
    assert_eq!(pids(&said, "found likely"), [copier.id().cast_signed()], "{said}");
    assert_eq!(owner.living(), 5, "looking ends nobody");
    let before = history(&owner.ledger(), 99).expect("ledger");
    assert!(before.iter().all(|row| row.ended_at.is_none()), "nor does it write: {before:?}");

    let said = kill(owner.dir());
    assert_eq!(pids(&said, "fate"), numbers(&owner.tree()), "{said}");
    assert!(!said.contains("trouble") && !said.contains("left"), "{said}");
    assert_eq!(owner.living(), 0);
    assert!(copier.try_wait().expect("wait").is_none(), "a mark is no proof");
    assert!(stranger.is_untouched() && control.living() == 5 && control.identity.lives());

    let rows = history(&owner.ledger(), 99).expect("ledger");
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row.ended_by == Some(EndedBy::Janitor)), "{rows:?}");
    assert!(rows.iter().all(|row| row.why.contains("proved: ")), "with the evidence: {rows:?}");
    let told = kills(&owner.ledger(), owner.dir(), 0).expect("kills");
    assert_eq!(told.len(), 5, "{told:?}");
    assert!(told.iter().all(|kill| kill.by == EndedBy::Janitor), "{told:?}");

    let said = cleaner(&["pick", &copier.id().to_string()], owner.dir(), "");
    assert_eq!(pids(&said, "fate"), [copier.id().cast_signed()], "{said}");
    copier.wait().expect("a person's word ended it");
    assert_eq!(look(owner.dir()), "", "nothing is left");
    assert!(stranger.is_untouched() && control.living() == 5);
}

/// A cgroup that its guards made says whose somebody is who has neither row nor mark of a living owner; a cgroup that
/// somebody has left says nothing.
#[test]
fn what_stands_in_a_cgroup_of_ours_is_proved_and_what_has_left_it_is_not() {
    if !enter("what_stands_in_a_cgroup_of_ours_is_proved_and_what_has_left_it_is_not") {
        return;
    }
    let Some(base) = tier::cgroup() else { return };
    let stranger = Stranger::start();
    let control = Recorded::held_by("cgroup");
    let mut owner = Recorded::held_by("cgroup");
    let rows = history(&owner.ledger(), 99).expect("ledger");
    let cgroup = |row: &Row| row.identity.as_ref().and_then(|child| child.cgroup.clone());
    assert_eq!(rows.len(), 4);
    for row in &rows {
        assert!(cgroup(row).is_some_and(|it| it.contains("/ownership-")), "written down: {row:?}");
        assert!(row.owner.cgroup.is_some() && row.owner.cgroup != cgroup(row), "{row:?}");
    }
    let mut copier = copier(owner.children[0]);
    // Nothing but marks and cgroups speaks against them.
    let forget = |owner: &Recorded| {
        owner.sql("DELETE FROM children");
        std::fs::remove_dir_all(owner.dir().join("journal")).expect("remove");
    };
    owner.guards_stop();
    assert!(owner.identity.signal(Signal::STOP), "it starts no others");
    forget(&owner);
    owner.dies();
    let said = look(owner.dir());
    assert_eq!(pids(&said, "found proved"), [] as [i32; 0], "its guards hold it: {said}");
    owner.guards_die();
    let gone = owner.children[0];
    std::fs::write(base.join("cgroup.procs"), gone.pid.to_string()).expect("it leaves");
    let said = look(owner.dir());
    let rest: Vec<_> = owner.tree().into_iter().filter(|who| *who != gone).collect();
    assert_eq!(pids(&said, "found proved"), numbers(&rest), "{said}");
    let likely = pids(&said, "found likely");
    assert_eq!(likely.len(), 2, "a mark is no proof: {said}");
    assert!(likely.contains(&gone.pid) && likely.contains(&copier.id().cast_signed()), "{said}");
    // Without a ledger nobody is proved, whatever cgroups say.
    let elsewhere = tempfile::tempdir().expect("dir");
    assert_eq!(pids(&look(elsewhere.path()), "found proved"), [] as [i32; 0]);
    let said = kill(owner.dir());
    assert_eq!(pids(&said, "fate"), numbers(&rest), "{said}");
    assert!(gone.lives() && copier.try_wait().expect("wait").is_none());
    let head = format!("ownership-{}.{}.", owner.identity.pid, owner.identity.start);
    let places = std::fs::read_dir(&base).expect("cgroups").flatten();
    let left = places.filter(|place| place.file_name().to_string_lossy().starts_with(&head));
    assert_eq!(left.count(), 0, "its cgroups are removed");
    assert!(stranger.is_untouched() && control.living() == 5 && control.identity.lives());
    for pid in [gone.pid, copier.id().cast_signed()] {
        cleaner(&["pick", &pid.to_string()], owner.dir(), "");
    }
    copier.wait().expect("picked");
}

#[test]
fn while_a_guard_is_there_it_is_left_to_it() {
    if !enter("while_a_guard_is_there_it_is_left_to_it") {
        return;
    }
    let mut owner = Recorded::start();
    owner.guards_stop();
    owner.dies();
    let said = kill(owner.dir());
    assert_eq!(pids(&said, "spared"), numbers(&owner.tree()), "{said}");
    assert!(said.lines().all(|line| line.ends_with("Guarded")), "{said}");
    assert_eq!(owner.living(), 5);
    owner.guards_die();
    kill(owner.dir());
    assert_eq!(owner.living(), 0);
}

/// A stranger has the number of a child that is gone; by numbers it would be hit.
#[test]
fn a_number_that_was_handed_on_is_nobody_elses() {
    if !enter("a_number_that_was_handed_on_is_nobody_elses") {
        return;
    }
    let mut owner = Recorded::start();
    owner.dies_with_its_guards();
    let child = owner.children[1];
    child.kill();
    let mut heir = wait_for("its number again", || {
        // It is ours to reap, as PID 1.
        let number = rustix::process::Pid::from_raw(child.pid);
        rustix::process::waitpid(number, rustix::process::WaitOptions::NOHANG).ok();
        if Identity::of(child.pid).is_some() {
            return None;
        }
        std::fs::write("/proc/sys/kernel/ns_last_pid", (child.pid - 1).to_string()).ok()?;
        let mut heir = Command::new("sleep").arg("600").spawn().expect("heir");
        if heir.id().cast_signed() == child.pid {
            return Some(heir);
        }
        heir.kill().expect("kill");
        heir.wait().expect("wait");
        None
    });
    let said = look(owner.dir());
    assert!(!pids(&said, "found proved").contains(&child.pid), "{said}");
    if !no_hooks() {
        let said = cleaner(&["look"], owner.dir(), "janitor_identity");
        assert!(pids(&said, "found proved").contains(&child.pid), "switched off: {said}");
    }
    let said = kill(owner.dir());
    assert!(heir.try_wait().expect("wait").is_none(), "the heir lives on: {said}");
    let rest: Vec<_> = owner.tree().into_iter().filter(|who| who.pid != child.pid).collect();
    assert_eq!(pids(&said, "fate"), numbers(&rest), "{said}");
    if !no_hooks() {
        // The row was ended as little as the heir.
        let said = cleaner(&["kill", "300"], owner.dir(), "janitor_identity");
        assert_eq!(pids(&said, "fate"), [child.pid], "switched off it is hit: {said}");
        heir.wait().expect("hit");
    }
    heir.kill().ok();
}

#[test]
fn on_old_or_broken_evidence_nobody_is_ended() {
    if !enter("on_old_or_broken_evidence_nobody_is_ended") {
        return;
    }
    let mut owner = Recorded::start();
    owner.dies_with_its_guards();
    // What the guards wrote would do as well.
    std::fs::remove_dir_all(owner.dir().join("journal")).expect("remove");
    owner.sql("CREATE TABLE kept AS SELECT boot, namespace FROM owners");
    for (what, undo) in [
        ("UPDATE owners SET boot = '11111111111111111111111111111111'", "boot"),
        ("UPDATE owners SET boot = ''", "boot"),
        ("UPDATE owners SET namespace = namespace + 1", "namespace"),
        ("UPDATE owners SET namespace = 0", "namespace"),
        ("UPDATE children SET start = start + 1", ""),
        ("UPDATE children SET start = start - 1, inode = inode + 1", ""),
        ("UPDATE children SET inode = inode - 1, start = NULL", ""),
    ] {
        owner.sql(what);
        let said = kill(owner.dir());
        assert_eq!(pids(&said, "found proved"), [] as [i32; 0], "{what}: {said}");
        assert_eq!(owner.living(), 5, "{what}: {said}");
        if !undo.is_empty() {
            owner.sql(&format!("UPDATE owners SET {undo} = (SELECT {undo} FROM kept)"));
        }
    }
    let ledger = owner.ledger();
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(format!("{}{suffix}", ledger.display())).ok();
    }
    let garbage = "no database, and long enough to be seen as none".repeat(100);
    std::fs::write(&ledger, &garbage).expect("write");
    let said = kill(owner.dir());
    assert!(said.contains("trouble"), "{said}");
    assert_eq!(pids(&said, "found proved"), [] as [i32; 0], "{said}");
    assert_eq!(pids(&said, "found likely"), numbers(&owner.tree()), "marks are seen: {said}");
    assert_eq!(std::fs::read_to_string(&ledger).expect("read"), garbage, "it is left as it was");
    std::fs::remove_file(&ledger).expect("remove");
    let said = kill(owner.dir());
    assert_eq!(pids(&said, "found likely"), numbers(&owner.tree()), "{said}");
    assert_eq!(owner.living(), 5);
    let said = cleaner(&["pick", &owner.below.pid.to_string()], owner.dir(), "");
    assert!(said.contains("trouble"), "nobody is ended where that cannot be written: {said}");
    assert_eq!(owner.living(), 5);
}

#[test]
fn a_living_owner_is_believed_and_not_its_row() {
    if !enter("a_living_owner_is_believed_and_not_its_row") {
        return;
    }
    let mut owner = Recorded::start();
    owner.sql("UPDATE owners SET start = start + 1, inode = inode + 1");
    let said = kill(owner.dir());
    assert_eq!(pids(&said, "found proved"), [] as [i32; 0], "{said}");
    // Also without guards, which would spare them too.
    assert!(owner.identity.signal(Signal::STOP), "it starts no others");
    owner.guards_stop();
    owner.guards_die();
    let said = kill(owner.dir());
    assert_eq!(pids(&said, "found proved"), [] as [i32; 0], "{said}");
    assert!(said.contains("OwnerLives"), "{said}");
    assert_eq!(owner.living(), 5);
    owner.dies();
}

#[test]
fn what_is_exempt_is_spared_whatever_the_clock_says() {
    if !enter("what_is_exempt_is_spared_whatever_the_clock_says") {
        return;
    }
    let mut owner = Recorded::start();
    owner.dies_with_its_guards();
    // As rows are that a program writes itself (`Intent::exempt`).
    owner.sql("UPDATE children SET exempt = 'a model server', expires = NULL");
    let said = kill(owner.dir());
    assert_eq!(pids(&said, "spared"), numbers(&owner.tree()), "{said}");
    owner.sql("UPDATE children SET expires = 99999999999999");
    assert_eq!(pids(&kill(owner.dir()), "spared"), numbers(&owner.children));
    // Over by the wall clock, which anybody may have set: a person may say so, the janitor does not.
    owner.sql("UPDATE children SET expires = 1");
    let said = kill(owner.dir());
    assert_eq!(pids(&said, "found proved"), [] as [i32; 0], "{said}");
    assert_eq!(pids(&said, "found likely"), numbers(&owner.tree()), "{said}");
    assert_eq!(owner.living(), 5);
    owner.sql("UPDATE children SET exempt = NULL, expires = NULL, intent_at = 99999999999999");
    kill(owner.dir());
    assert_eq!(owner.living(), 0, "an hour that is not come yet says nothing");
}

/// Real jobs (`spawn_exempt`) of an owner that was killed: none of their processes is found, and none is ended, whether the
/// janitor knows of the jobs or not. They are seen as what they are.
#[test]
fn real_exempt_jobs_are_no_leftovers() {
    if !enter("real_exempt_jobs_are_no_leftovers") {
        return;
    }
    let dir = tempfile::tempdir().expect("dir");
    std::os::unix::fs::symlink(dir.path().join("jobs"), dir.path().join("exempt")).expect("link");
    let mut owner = Command::new(example("exempt-owner"));
    let mut owner = owner.arg("survive").arg(dir.path()).spawn().expect("owner");
    let members = ["plain.pid", "plain.session", "plain.daemon", "kept.pid", "kept.daemon"];
    let members = members.map(|name| support::recorded(dir.path(), name));
    let owned = support::recorded(dir.path(), "owned.daemon");
    wait_for("all are started", || dir.path().join("gateway").exists().then_some(()));
    owner.kill().expect("kill");
    owner.wait().expect("wait");
    wait_for("what was owned is gone", || (!owned.lives()).then_some(()));
    let mut recorded = Recorded::start();
    recorded.dies_with_its_guards();
    for place in [dir.path(), recorded.dir()] {
        let said = kill(place);
        let found: Vec<_> = pids(&said, "found proved");
        assert!(members.iter().all(|who| !found.contains(&who.pid)), "{said}");
        assert!(members.iter().all(|who| who.lives()), "{said}");
    }
    assert_eq!(recorded.living(), 0, "beside them a leftover was ended");
    let (ledger, jobs) = (dir.path().join("ledger.sqlite"), [dir.path().join("jobs")]);
    let picture = ownership::sight::look(&ledger, &jobs, ownership::sight::Detail::default());
    let plain = picture
        .jobs
        .iter()
        .find(|job| job.reason.as_deref() == Some("it is to live on"))
        .expect("a job");
    let seen: Vec<_> = plain.processes.iter().map(|one| one.pid.cast_signed()).collect();
    assert!(members[..3].iter().all(|who| seen.contains(&who.pid)), "{plain:?}");
}

#[test]
fn neither_itself_nor_those_above_it() {
    if !enter("neither_itself_nor_those_above_it") {
        return;
    }
    // A janitor that runs below a leftover: somebody works there.
    let mut owner = Recorded::start();
    let environment = std::fs::read(format!("/proc/{}/environ", owner.children[0].pid));
    let environment = String::from_utf8(environment.expect("environ")).expect("text");
    let mark = environment.split('\0').find_map(|entry| entry.strip_prefix("OWNERSHIP_TAG="));
    owner.dies_with_its_guards();
    let (program, dir) = (example("cleaner"), owner.dir().display());
    let script = format!(
        "sleep 600 > /dev/null & echo $! $$; read go; {} kill {dir} 300",
        program.display()
    );
    let mut above = Command::new("sh");
    above.arg("-c").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
    above.env("OWNERSHIP_TAG", mark.expect("mark"));
    let mut above = above.spawn().expect("shell");
    let who = Identity::of(above.id().cast_signed()).expect("shell");
    let mut reader = BufReader::new(above.stdout.take().expect("stdout"));
    let mut line = String::new();
    reader.read_line(&mut line).expect("read");
    let sleeper: i32 = line.split(' ').next().expect("pid").parse().expect("pid");
    owner.sql(&format!(
        "UPDATE children SET state = 'running', pid = {}, start = {}, inode = NULL WHERE id = 1",
        who.pid, who.start
    ));
    drop(above.stdin.take());
    let mut said = String::new();
    std::io::Read::read_to_string(&mut reader, &mut said).expect("read");
    assert!(said.contains(&format!("spared {} Ours", who.pid)), "{said}");
    let likely = pids(&said, "found likely");
    assert!(likely.contains(&sleeper), "below a spared one a mark is a mark: {said}");
    assert!(above.wait().expect("it ended by itself").success());
    // From outside one like it is ended: it was spared for what it was, and not for its row.
    let mut other = Command::new("sh");
    let mut other = other.args(["-c", "sleep 600; true"]).spawn().expect("shell");
    let who = Identity::of(other.id().cast_signed()).expect("shell");
    owner.sql(&format!(
        "UPDATE children SET state = 'running', pid = {}, start = {}, inode = {} WHERE id = 1",
        who.pid,
        who.start,
        inode(who)
    ));
    let said = kill(owner.dir());
    assert!(pids(&said, "fate").contains(&who.pid), "{said}");
    other.wait().expect("wait");
}

#[test]
fn an_owner_cleans_up_at_its_start_when_it_is_told_to() {
    if !enter("an_owner_cleans_up_at_its_start_when_it_is_told_to") {
        return;
    }
    let mut owner = Recorded::start();
    owner.dies_with_its_guards();
    let stranger = Stranger::start();
    let mut next = Command::new(example("cleaner"));
    let mut next = next.arg("start").arg(owner.dir()).stdin(Stdio::piped()).spawn().expect("owner");
    wait_for("nothing is left", || (owner.living() == 0).then_some(()));
    assert!(stranger.is_untouched());
    drop(next.stdin.take());
    assert!(next.wait().expect("wait").success());
    assert_eq!(everybody().filter(|who| who.name() == "sleep" && who.lives()).count(), 1);
}
