//! Exempt jobs: they outlive their owner with everything that they started, a later process takes them
//! up again, and nobody else is touched. Beside each owner that dies, one lives on, and a stranger.
#![expect(clippy::disallowed_methods, reason = "owners and strangers are processes of the test")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use ownership::exempt::{Cause, Ended, Outer, Status, spawn_exempt_by};
use ownership::{ExemptJob, Exemption, ExitStatus, Gateway, Phase, Program, Spawn};
use ownership::{list_exempt, reattach};
use support::{DEADLINE, Identity, TreeOwner, children_of, example, recorded, shell, wait_for};

const GRACE: Duration = Duration::from_millis(300);

fn helper() -> Program {
    Program::named(env!("CARGO_BIN_EXE_ownership-supervisor"))
}

/// A directory whose jobs are ended with the test, however that ends.
struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("dir"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn jobs(&self) -> PathBuf {
        self.path().join("jobs")
    }

    fn start(&self, script: &str) -> ExemptJob {
        self.start_for(script, Exemption::new("a test"))
    }

    fn start_for(&self, script: &str, exemption: Exemption) -> ExemptJob {
        let spawn = shell(script).env("DIR", self.path()).grace(Duration::from_millis(100));
        spawn_exempt_by(&helper(), spawn, exemption, &self.jobs()).expect("job")
    }

    fn job(&self, file: &str) -> ExemptJob {
        let id = wait_for(file, || fs::read_to_string(self.path().join(file)).ok());
        reattach(&self.jobs(), &id).expect("record")
    }

    fn owner(&self, how: &str) -> Command {
        let mut command = Command::new(example("exempt-owner"));
        command.arg(how).arg(self.path());
        command
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for job in list_exempt(&self.jobs()).unwrap_or_default().into_iter().flatten() {
            let stopped = job.stop(Duration::ZERO);
            for process in stopped.map(|stopped| stopped.left).unwrap_or_default() {
                Identity::of(process.pid.cast_signed()).into_iter().for_each(Identity::kill);
            }
        }
    }
}

fn identity(job: &ExemptJob) -> Identity {
    Identity::of(job.pid().expect("pid").cast_signed()).expect("job")
}

/// The shim of a job, from its record.
fn shim_of(scene: &Scene, job: &ExemptJob) -> Identity {
    let record = fs::read_to_string(scene.jobs().join(format!("{}.job", job.id())));
    let record = record.expect("record");
    let line = record.lines().find_map(|line| line.strip_prefix("shim ")).expect("shim");
    Identity::of(line.split(' ').next().expect("pid").parse().expect("pid")).expect("shim")
}

fn kill_shim(scene: &Scene, job: &ExemptJob) {
    let shim = shim_of(scene, job);
    shim.kill();
    wait_for("the shim is dead", || (!shim.lives()).then_some(()));
}

fn exited(job: &ExemptJob) -> Option<Ended> {
    if let Status::Exited(ended) = job.status() { Some(ended) } else { None }
}

fn ended(job: &ExemptJob) -> Ended {
    wait_for("it has ended with all that it started", || {
        exited(job).filter(|ended| ended.empty == Some(true))
    })
}

fn has_logged(job: &ExemptJob, text: &str) {
    wait_for(text, || {
        String::from_utf8(job.tail(1000).expect("log")).expect("text").contains(text).then_some(())
    });
}

/// A child of the test that ends with it: a stranger, or an owner.
struct Guarded(Child);

impl Guarded {
    fn stranger() -> Self {
        Self(Command::new("sleep").arg("600").spawn().expect("sleep"))
    }

    fn kill(&mut self) {
        self.0.kill().expect("kill");
        self.0.wait().expect("wait");
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().expect("wait").is_none()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// What an owner leaves when it is killed.
#[test]
fn what_is_owned_ends_with_its_owner_and_what_is_exempt_lives_on() {
    let mut stranger = Guarded::stranger();
    let control = TreeOwner::start(GRACE, "");
    let scene = Scene::new();
    let mut owner = Guarded(scene.owner("survive").spawn().expect("owner"));
    let (plain, brief, kept) = (scene.job("plain"), scene.job("brief"), scene.job("gateway"));
    let port = wait_for("port", || fs::read_to_string(scene.path().join("port")).ok());
    let lock = fs::File::open(scene.path().join("lock")).expect("lock");
    assert!(lock.try_lock().is_err(), "the lock is held");
    let members = |name: &str| {
        ["pid", "session", "daemon"].map(|kind| recorded(scene.path(), &format!("{name}.{kind}")))
    };
    let (owned, lasting) = (members("owned"), [members("plain"), members("kept")].concat());
    let expiring = members("brief");

    owner.kill();

    wait_for("owned ones are gone", || (!owned.iter().any(|who| who.lives())).then_some(()));
    wait_for("their port is free", || {
        std::net::TcpListener::bind(format!("127.0.0.1:{port}")).ok()
    });
    wait_for("their lock is free", || lock.try_lock().ok());
    assert!(lasting.iter().all(|who| who.lives()), "exempt ones live on, with all they started");
    assert_eq!((plain.status(), kept.status()), (Status::Running, Status::Running));

    has_logged(&plain, "plain begins\n");
    fs::write(scene.path().join("plain.finish"), "").expect("finish");
    let status = wait_for("its exit", || exited(&plain));
    assert_eq!((status.status, status.cause), (ExitStatus::Code(7), Cause::Itself));
    assert_eq!(status.empty, Some(false), "what it started still runs");
    has_logged(&plain, "plain finishes\n");

    let expired = ended(&brief);
    assert_eq!(expired.cause, Cause::Expired);
    assert!(!expiring.iter().any(|who| who.lives()), "its time is over for all that it started");

    let (gateway, survivors) = Gateway::open(&scene.jobs(), "main").expect("its lock died with it");
    assert_eq!(survivors.iter().map(ExemptJob::id).collect::<Vec<_>>(), [kept.id()]);
    assert_eq!(survivors[0].reason(), "a background job");
    let stopped = survivors[0].stop(Duration::from_secs(5)).expect("stop");
    assert!(stopped.verified && stopped.left.is_empty(), "{stopped:?}");
    let by = std::process::id();
    assert_eq!(ended(&kept).cause, Cause::Stopped { by });
    assert!(plain.stop(GRACE).expect("stop").verified);
    assert!(!lasting.iter().any(|who| who.lives()), "stopped with everything");
    drop(gateway);

    assert_eq!(control.living().len(), 8, "the other owner's tree lives on");
    assert!(stranger.lives(), "the stranger lives on");
}

/// Each next owner of the name is handed all that its predecessors left.
#[test]
fn a_gateway_is_handed_the_jobs_of_its_predecessors() {
    let scene = Scene::new();
    for round in 0..3 {
        let mut owner = Guarded(scene.owner("gateway").spawn().expect("owner"));
        wait_for("it was handed its jobs", || {
            let handed = fs::read_to_string(scene.path().join("handed")).ok()?;
            (handed == round.to_string()).then_some(())
        });
        let error = Gateway::open(&scene.jobs(), "main").expect_err("one owner at a time");
        assert!(error.to_string().contains(&owner.0.id().to_string()), "{error}");
        owner.kill();
    }
    let running = list_exempt(&scene.jobs()).expect("list").into_iter().flatten();
    assert_eq!(running.filter(|job| job.status() == Status::Running).count(), 3);
}

#[test]
fn a_job_gets_its_log_and_its_mark_and_nothing_else() {
    let scene = Scene::new();
    let job = scene.start("exec sleep 600");
    let own = identity(&job);
    let streams: BTreeSet<_> = ["0", "1", "2"].map(str::to_owned).into();
    // A program that is being loaded holds its libraries for a moment.
    wait_for("it holds its streams and nothing else", || {
        let fds = fs::read_dir(format!("/proc/{}/fd", own.pid)).ok()?;
        let fds = fds.map(|fd| Some(fd.ok()?.file_name().into_string().expect("number")));
        (fds.collect::<Option<BTreeSet<_>>>()? == streams).then_some(())
    });
    for fd in ["1", "2"] {
        assert_eq!(fs::read_link(format!("/proc/{}/fd/{fd}", own.pid)).expect("fd"), job.log());
    }
    let status = fs::read_to_string(format!("/proc/{}/status", own.pid)).expect("status");
    for clean in ["SigIgn:\t0000000000000000", "SigBlk:\t0000000000000000"] {
        assert!(status.contains(clean), "{clean}");
    }
    // It is empty while the shell becomes the program.
    let environ = wait_for("its environment", || {
        let environ = fs::read(format!("/proc/{}/environ", own.pid)).ok()?;
        (!environ.is_empty()).then(|| String::from_utf8_lossy(&environ).into_owned())
    });
    assert!(environ.contains(&format!("OWNERSHIP_EXEMPT={}", job.id())));
    assert!(!environ.contains("OWNERSHIP_TAG="));
    let mode = |path: &Path| fs::metadata(path).expect("meta").permissions().mode() & 0o777;
    let record = scene.jobs().join(format!("{}.job", job.id()));
    assert_eq!((mode(job.log()), mode(&record), mode(&scene.jobs())), (0o600, 0o600, 0o700));
    let text = fs::read_to_string(record).expect("record");
    assert!(text.contains("program /bin/sh\n") && !text.contains("exec sleep"), "{text}");
}

/// Neither does the host see a child that it did not start, nor is anything left of a stage.
#[test]
fn its_owner_has_no_child_of_it() {
    let scene = Scene::new();
    let job = scene.start("exec sleep 600");
    let (own, shim) = (identity(&job), shim_of(&scene, &job));
    assert_eq!(own.parent(), Some(shim.pid), "its parent is its shim");
    let children = children_of(std::process::id().cast_signed());
    assert!(!children.contains(&shim.pid) && !children.contains(&own.pid));
    wait_for("streams and the deaths of children; the line is closed", || {
        let fds = fs::read_dir(format!("/proc/{}/fd", shim.pid)).expect("fds").count();
        (fds == 3 + 1).then_some(())
    });
}

#[test]
fn a_start_that_fails_leaves_nothing_and_says_why() {
    let scene = Scene::new();
    let start = |spawn| {
        let error = spawn_exempt_by(&helper(), spawn, Exemption::new("a test"), &scene.jobs());
        error.expect_err("it fails")
    };
    let missing = start(Spawn::new("no-such-program"));
    assert_eq!((missing.phase, missing.errno), (Phase::Exec, Some(2)));
    let nowhere = start(Spawn::new("true").dir("/no/such/dir"));
    assert_eq!((nowhere.phase, nowhere.errno), (Phase::Chdir, Some(2)));
    assert_eq!(nowhere.path.as_deref(), Some(Path::new("/no/such/dir")));
    assert_eq!(fs::read_dir(scene.jobs()).expect("dir").count(), 0, "nothing is left");
}

#[test]
fn what_cannot_be_exempt_is_refused() {
    let scene = Scene::new();
    let start = |spawn: Spawn, reason: &str, dir: &Path| {
        let error = spawn_exempt_by(&helper(), spawn, Exemption::new(reason), dir);
        error.expect_err("refused").phase
    };
    let jobs = scene.jobs();
    assert_eq!(start(Spawn::new("true"), " ", &jobs), Phase::Request);
    assert_eq!(start(Spawn::new("true"), &"x".repeat(1001), &jobs), Phase::Request);
    assert_eq!(start(Spawn::new("true").line(4), "why", &jobs), Phase::Request);
    let fd = fs::File::open("/dev/null").expect("null").into();
    assert_eq!(start(Spawn::new("true").fd(5, fd), "why", &jobs), Phase::Request);
    let open = scene.path().join("open");
    fs::create_dir(&open).expect("dir");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).expect("chmod");
    assert_eq!(start(Spawn::new("true"), "why", &open), Phase::Request);
    let no_shim = Program::named("true");
    let error = spawn_exempt_by(&no_shim, Spawn::new("true"), Exemption::new("why"), &jobs);
    assert_eq!(error.expect_err("no shim").phase, Phase::Supervisor);
}

/// Stopped ones, those that ignore TERM, and those with a session of their own.
#[test]
fn stopping_reaches_all_that_a_job_started() {
    let scene = Scene::new();
    let job = scene.start(
        "trap '' TERM
        (setsid sh -c 'echo $$ > $DIR/daemon; exec sleep 600' &)
        sh -c 'echo $$ > $DIR/stopped; kill -STOP $$; exec sleep 600' &
        echo $$ > $DIR/root
        while true; do sleep 1; done",
    );
    let members = ["root", "daemon", "stopped"].map(|name| recorded(scene.path(), name));
    wait_for("stopped", || (members[2].state()? == "T").then_some(()));
    let stopped = job.stop(Duration::from_millis(100)).expect("stop");
    assert!(stopped.verified && stopped.left.is_empty(), "{stopped:?}");
    assert!(!members.iter().any(|who| who.lives()));
    for who in members {
        let named = stopped.ended.iter().any(|process| process.pid == who.pid.cast_unsigned());
        assert!(named, "{who:?} in {stopped:?}");
    }
    let killed = ExitStatus::Signal { signal: 9, core_dumped: false };
    assert_eq!(ended(&job).status, killed);
    assert_eq!(job.stop(GRACE).expect("again").ended, [], "nothing is left to stop");
    let id = job.id().to_owned();
    job.forget().expect("forget");
    assert!(reattach(&scene.jobs(), &id).is_err());
    assert_eq!(fs::read_dir(scene.jobs()).expect("dir").count(), 0);
}

/// TERM alone would wait for the end of the grace.
#[test]
fn a_stopped_job_gets_to_its_term() {
    let scene = Scene::new();
    let job = scene.start("kill -STOP $$");
    let own = identity(&job);
    wait_for("stopped", || (own.state()? == "T").then_some(()));
    let began = std::time::Instant::now();
    assert!(job.stop(DEADLINE).expect("stop").verified);
    assert!(began.elapsed() < DEADLINE, "it did not take the whole grace");
    let terminated = ExitStatus::Signal { signal: 15, core_dumped: false };
    assert_eq!(ended(&job).status, terminated);
}

#[test]
fn a_log_can_be_followed_to_its_end() {
    let scene = Scene::new();
    let job = scene.start("echo one; until [ -e $DIR/go ]; do sleep 0.02; done; echo two >&2");
    let mut follow = job.follow(true).expect("follow");
    let mut text = Vec::new();
    while let Some(more) = follow.more(DEADLINE).expect("more") {
        text.extend(more);
        if text == b"one\n" {
            assert!(job.clone().forget().is_err(), "what runs is not forgotten");
            fs::write(scene.path().join("go"), "").expect("go");
        }
    }
    assert_eq!(text, b"one\ntwo\n");
    assert_eq!(ended(&job).status, ExitStatus::Code(0));
    assert_eq!(job.tail(4).expect("tail"), b"two\n");
}

/// The job lives on, and how it ended is said to be unknown.
#[test]
fn a_job_whose_shim_was_killed_lives_on_and_can_be_stopped() {
    let scene = Scene::new();
    let script = "setsid sh -c 'echo $$ > $DIR/session; exec sleep 600' &
        echo $$ > $DIR/root; until [ -e $DIR/go ]; do sleep 0.02; done";
    let job = scene.start(script);
    let members = ["root", "session"].map(|name| recorded(scene.path(), name));
    kill_shim(&scene, &job);
    assert!(members.iter().all(|who| who.lives()));
    assert_eq!(job.status(), Status::Running);
    fs::write(scene.path().join("go"), "").expect("go");
    wait_for("its end", || (!members[0].lives()).then_some(()));
    assert!(matches!(job.status(), Status::Unknown { .. }), "{:?}", job.status());
    // Its orphan bears the mark, and that alone is no proof.
    let stopped = job.stop(GRACE).expect("stop");
    assert_eq!((stopped.verified, stopped.ended.len(), stopped.left.len()), (false, 0, 1));
    assert!(members[1].lives());
    assert!(job.clone().forget().is_err(), "while something bears its mark");

    fs::remove_file(scene.path().join("go")).expect("go");
    fs::remove_file(scene.path().join("session")).expect("session");
    let other = scene.start(script);
    let members = ["root", "session"].map(|name| recorded(scene.path(), name));
    kill_shim(&scene, &other);
    let stopped = other.stop(GRACE).expect("stop");
    assert!(
        !stopped.verified && stopped.left.is_empty() && !members.iter().any(|who| who.lives()),
        "{stopped:?}"
    );
}

/// Its death is not taken for the word that nothing is left, and whom it held is ended all the same.
#[test]
fn a_shim_killed_while_its_job_is_being_stopped_changes_nothing() {
    let scene = Scene::new();
    let job = scene.start(
        "trap ': > $DIR/termed' TERM
        (setsid sh -c 'trap \"\" TERM; echo $$ > $DIR/daemon; exec sleep 600' &)
        echo $$ > $DIR/root
        while true; do sleep 0.02; done",
    );
    let members = ["root", "daemon"].map(|name| recorded(scene.path(), name));
    let stopping = {
        let job = job.clone();
        std::thread::spawn(move || job.stop(Duration::from_millis(500)).expect("stop"))
    };
    wait_for("TERM has come", || scene.path().join("termed").exists().then_some(()));
    kill_shim(&scene, &job);
    let stopped = stopping.join().expect("stopped");
    assert!(!stopped.verified && stopped.left.is_empty(), "{stopped:?}");
    assert!(!members.iter().any(|who| who.lives()));
}

/// A job below another owner's guards belongs to that owner, and says so.
#[test]
fn under_an_outer_owner_a_job_says_whose_it_is_and_ends_with_it() {
    let scene = Scene::new();
    let outer = support::owner();
    // The root of a scope collects its orphans.
    let inner = shell("\"$0\" one \"$1\"; exec sleep 600");
    let inner = inner.arg(example("exempt-owner")).arg(scene.path());
    let inner = outer.spawn(inner, |_| {}).expect("inner");
    let job = scene.job("id");
    let (own, shim) = (identity(&job), shim_of(&scene, &job));
    let Outer { tag, adopter } = job.outer().expect("outer").clone();
    assert!(tag.expect("tag").starts_with(&format!("{}.", std::process::id())));
    assert_eq!(adopter.map(|adopter| adopter.pid), Some(inner.pid()));
    assert_eq!(shim.parent(), Some(inner.pid().cast_signed()));
    inner.kill();
    wait_for("it went with the outer owner's child", || (!own.lives()).then_some(()));
}

/// Processes that bear this variable.
fn bearing(mark: &str) -> Vec<Identity> {
    let pids = fs::read_dir("/proc").expect("proc").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let bears = |pid: &i32| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
    };
    let found = pids.filter(bears).filter_map(Identity::of);
    found.filter(|who| who.lives()).collect()
}

/// Runs `exempt-owner one` with a death at `step`.
fn crash(step: &str) -> Option<Identity> {
    let scene = Scene::new();
    let mut command = scene.owner("one");
    let mark = case(&mut command, step);
    let status = command.env("OWNERSHIP_TEST_EXEMPT_CRASH", step).status().expect("owner");
    assert_eq!(status.success(), step.starts_with("shim"), "{step}: {status}");
    settled(&scene, step, &mark)
}

/// A mark for all that comes of a command: owner, shim and job.
fn case(command: &mut Command, step: &str) -> String {
    let value = format!("{step}.{}", std::process::id());
    command.env("CRASH_CASE", &value);
    format!("CRASH_CASE={value}")
}

/// What lives once nobody is at work any more: the job that the one record names, or nothing. Ends it.
fn settled(scene: &Scene, step: &str, mark: &str) -> Option<Identity> {
    let list = || list_exempt(&scene.jobs()).expect("list").into_iter().flatten();
    // A picture of moving things may deceive; one that stays the same does not.
    let (mut before, mut same) = (None, 0);
    let job = wait_for(&format!("{step}: quiet, and what runs is recorded"), || {
        let living = bearing(mark);
        let running: Vec<_> = list().filter(|job| job.status() == Status::Running).collect();
        let recorded = running.iter().find_map(|job| Identity::of(job.pid()?.cast_signed()));
        let ready = scene.path().join("one.daemon").exists();
        let fits = match recorded {
            Some(job) => running.len() == 1 && ready && living.contains(&job),
            None => running.is_empty() && living.is_empty(),
        };
        same = if fits && before == Some(recorded) { same + 1 } else { 0 };
        before = fits.then_some(recorded);
        (same > 10).then_some(recorded)
    });
    let jobs: Vec<_> = list().collect();
    if !step.starts_with("shim") && job.is_none() {
        assert_eq!(jobs.len(), 0, "{step}: no record of what does not run");
    }
    for job in &jobs {
        let stopped = job.stop(Duration::ZERO).expect("stop");
        assert!(step.starts_with("shim") || stopped.verified, "{step}: {stopped:?}");
        for process in stopped.left {
            Identity::of(process.pid.cast_signed()).into_iter().for_each(Identity::kill);
        }
    }
    wait_for(&format!("{step}: nothing is left"), || bearing(mark).is_empty().then_some(()));
    job
}

/// Either nothing runs, or a recorded job runs.
#[test]
fn an_owner_killed_at_any_step_leaves_nothing_unrecorded() {
    if support::no_hooks() {
        return;
    }
    for step in ["stage-started", "stage-left", "terms-sent"] {
        assert_eq!(crash(step), None, "{step}");
    }
    // The shim may have answered before it.
    crash("order-sent");
    assert!(crash("answered").is_some());
}

/// The same at moments that nobody chose.
#[test]
fn an_owner_killed_at_any_moment_leaves_nothing_unrecorded() {
    for micros in (0..24).map(|round| round * 700) {
        let scene = Scene::new();
        let mut command = scene.owner("one");
        let mark = case(&mut command, &micros.to_string());
        let mut owner = Guarded(command.spawn().expect("owner"));
        std::thread::sleep(Duration::from_micros(micros));
        owner.kill();
        settled(&scene, &format!("{micros} µs"), &mark);
    }
}

#[test]
fn a_shim_killed_at_any_step_leaves_nothing_unrecorded() {
    if support::no_hooks() {
        return;
    }
    for step in ["shim-ordered", "shim-recorded"] {
        assert_eq!(crash(step), None, "{step}");
    }
    for step in ["shim-started", "shim-named"] {
        assert!(crash(step).is_some(), "{step}: it is found by its mark");
    }
}

/// In a pid namespace of its own; `false` where none may be made.
#[expect(clippy::print_stderr, reason = "skips loudly")]
fn fenced(command: &mut Command) -> bool {
    let mut fence = Command::new("setsid");
    fence.args(["-w", "timeout", "-s", "KILL", "60"]);
    fence.args(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    fence.arg(command.get_program()).args(command.get_args());
    let output = fence.output().expect("unshare");
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("Operation not permitted") {
        eprintln!("SKIPPED: no pid namespace may be made here: {text}");
        return false;
    }
    assert!(output.status.success(), "{text}");
    true
}

/// Chains whose links fork, set a session and exit all the time, and ignore TERM.
#[test]
fn stopping_ends_chains_that_fork_and_exit_all_the_time() {
    let scene = Scene::new();
    support::compile(scene.path(), "chain-link", include_str!("support/chains.c"));
    if fenced(&mut scene.owner("storm")) {
        assert!(scene.path().join("done").exists());
    }
}

#[test]
fn a_number_that_was_handed_out_again_is_never_signalled() {
    let scene = Scene::new();
    if !fenced(&mut scene.owner("recycle")) {
        return;
    }
    assert!(scene.path().join("done").exists());
    // From here the numbers of that namespace mean nothing.
    let jobs = list_exempt(&scene.jobs()).expect("list").into_iter().flatten();
    for job in jobs {
        assert!(matches!(job.status(), Status::Unknown { .. }));
        assert!(job.stop(Duration::ZERO).is_err(), "nobody here is signalled for it");
    }
}

/// A record that cannot be trusted is listed as such, and nothing is done on its word.
#[test]
fn a_corrupt_record_kills_nobody() {
    let scene = Scene::new();
    let job = scene.start("exec sleep 600");
    let (own, path) = (identity(&job), scene.jobs().join(format!("{}.job", job.id())));
    let whole = fs::read(&path).expect("record");
    fs::write(&path, &whole[..whole.len() / 2]).expect("cut");
    let listed = list_exempt(&scene.jobs()).expect("list");
    assert!(matches!(listed.as_slice(), [Err(_)]), "{listed:?}");
    assert!(matches!(job.status(), Status::Unknown { .. }));
    assert!(job.stop(Duration::ZERO).is_err());
    assert!(own.lives());
    fs::write(&path, &whole).expect("restore");
    assert!(job.stop(Duration::ZERO).expect("stop").verified);
}

/// What stands in the records survives: the rows of an owner that lives are its own, those of a dead one are taken up
/// once however many come for them, and a number that is somebody else's by now is refused.
#[test]
fn c60_a_checkpoint_keeps_a_live_writers_rows_and_hands_a_dead_ones_on_once() {
    let scene = Scene::new();
    let open = |name: &str| Gateway::open_with(helper(), &scene.jobs(), name);
    let (live, none) = open("live").expect("free");
    assert!(none.is_empty());
    let sleep = || shell("exec sleep 600").grace(GRACE);
    let its = live.spawn_background(sleep(), "of one that lives").expect("job");
    let mut owner = Guarded(scene.owner("gateway").spawn().expect("owner"));
    wait_for("it has its first job", || {
        (fs::read_to_string(scene.path().join("handed")).ok()? == "0").then_some(())
    });
    owner.kill();

    let start = std::sync::Barrier::new(8);
    let mut winners = std::thread::scope(|scope| {
        let comers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    open("main").ok()
                })
            })
            .collect();
        comers.into_iter().filter_map(|comer| comer.join().expect("no panic")).collect::<Vec<_>>()
    });
    assert_eq!(winners.len(), 1, "two profiles adopt it once");
    let (next, survivors) = winners.pop().expect("one");
    let [left] = &survivors[..] else { panic!("{survivors:?}") };
    assert_ne!(left.id(), its.id());
    assert_eq!(
        live.jobs().expect("list").iter().map(ExemptJob::id).collect::<Vec<_>>(),
        [its.id()]
    );
    assert_eq!((its.status(), left.status()), (Status::Running, Status::Running));

    // Its number is somebody else's by now: not its start time.
    let (own, record) = (identity(left), scene.jobs().join(format!("{}.job", left.id())));
    let whole = fs::read_to_string(&record).expect("record");
    let other = |line: &str| match line.strip_prefix("job ").or(line.strip_prefix("shim ")) {
        Some(rest) => {
            let mut words: Vec<String> = rest.split(' ').map(str::to_owned).collect();
            words[1] = (words[1].parse::<u64>().expect("a time") + 1).to_string();
            format!("{} {}\n", line.split(' ').next().expect("a word"), words.join(" "))
        }
        None => format!("{line}\n"),
    };
    fs::write(&record, whole.lines().map(other).collect::<String>()).expect("write");
    drop(next);
    let (next, survivors) = open("main").expect("free again");
    assert!(survivors.is_empty(), "{survivors:?}");
    drop(left.stop(Duration::ZERO));
    assert!(own.lives(), "nobody is ended on that word");
    fs::write(&record, &whole).expect("restore");
    assert!(left.stop(Duration::ZERO).expect("stop").verified);
    drop((next, live));
}
