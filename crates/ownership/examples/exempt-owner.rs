//! A fixture: an owner of jobs that outlive it.
//!
//! - `exempt-owner survive DIR` starts an owned child that holds a port and a lock, and exempt jobs of
//!   each kind in `DIR/jobs`, writes their ids into `DIR/plain`, `DIR/brief` and `DIR/gateway`, and waits to be killed.
//! - `exempt-owner hold DIR` is that child: its port stands in `DIR/port`, its lock is `DIR/lock`.
//! - `exempt-owner one DIR` starts one exempt job and writes its id into `DIR/id`.
//! - `exempt-owner gateway DIR` opens the gateway `main`, writes how many jobs it was handed into
//!   `DIR/handed`, starts one, and waits to be killed.
//! - `exempt-owner storm DIR`, in a pid namespace of its own, stops jobs that run `DIR/chain-link.exe`.
//! - `exempt-owner recycle DIR`, in a pid namespace of its own, gives a dead job's number to a
//!   stranger, and sees that nobody touches it.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ownership::exempt::Status;
use ownership::{Exemption, Gateway, Owner, Program, Spawn, reattach, spawn_exempt};

/// Beside itself a member with a session of its own and a double-forked daemon; writes a line, and another
/// one when it is told to finish.
const JOB: &str = r#"
echo "$NAME begins"
setsid sh -c 'echo $$ > "$DIR/$NAME.session"; exec sleep 600' &
(setsid sh -c 'echo $$ > "$DIR/$NAME.daemon"; exec sleep 600' &)
echo $$ > "$DIR/$NAME.pid"
until [ -e "$DIR/$NAME.finish" ]; do sleep 0.05; done
echo "$NAME finishes" >&2
exit 7
"#;

fn main() -> ExitCode {
    if let Some(code) = ownership::owner::run_if_asked() {
        return code;
    }
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [how, dir] = args.as_slice() else { return ExitCode::from(2) };
    let dir = Path::new(dir);
    match how.as_str() {
        "survive" => survive(dir),
        "hold" => hold(dir),
        "one" => one(dir),
        "gateway" => gateway(dir),
        "recycle" => recycle(dir),
        "storm" => storm(dir),
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

fn job(dir: &Path, name: &str) -> Spawn {
    let spawn = Spawn::new("/bin/sh").arg("-c").arg(JOB).env("DIR", dir).env("NAME", name);
    spawn.grace(Duration::from_millis(200))
}

fn forever() -> ! {
    loop {
        std::thread::park();
    }
}

/// Written under another name first: who sees the file sees all of it.
fn write(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("write");
    fs::rename(new, path).expect("rename");
}

fn survive(dir: &Path) {
    let owner = Owner::new(Program::current().expect("this program"), Vec::new());
    let holder = Spawn::program(Program::current().expect("this program")).arg("hold").arg(dir);
    let _holder = owner.spawn(holder, |_| {}).expect("holder");
    let _owned = owner.spawn(job(dir, "owned"), |_| {}).expect("owned");
    let jobs = dir.join("jobs");
    let plain = Exemption::new("it is to live on");
    let plain = spawn_exempt(job(dir, "plain"), plain, &jobs).expect("plain");
    let brief = Exemption::new("for a while").expires_after(Duration::from_secs(3));
    let brief = spawn_exempt(job(dir, "brief"), brief, &jobs).expect("brief");
    let (gateway, _) = Gateway::open(&jobs, "main").expect("gateway");
    let kept = gateway.spawn_background(job(dir, "kept"), "a background job").expect("kept");
    for (name, job) in [("plain", plain), ("brief", brief), ("gateway", kept)] {
        write(&dir.join(name), job.id());
    }
    forever();
}

fn hold(dir: &Path) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("port");
    let lock = fs::File::create(dir.join("lock")).expect("lock");
    lock.lock().expect("lock");
    write(&dir.join("port"), &listener.local_addr().expect("address").port().to_string());
    forever();
}

fn one(dir: &Path) {
    let exemption = Exemption::new("one");
    match spawn_exempt(job(dir, "one"), exemption, &dir.join("jobs")) {
        Ok(job) => write(&dir.join("id"), job.id()),
        Err(error) => write(&dir.join("error"), &error.to_string()),
    }
}

fn gateway(dir: &Path) {
    let (gateway, jobs) = Gateway::open(&dir.join("jobs"), "main").expect("gateway");
    let name = format!("job{}", jobs.len());
    gateway.spawn_background(job(dir, &name), "a background job").expect("job");
    write(&dir.join("handed"), &jobs.len().to_string());
    forever();
}

/// What storms or recycles numbers does it as init of a pid namespace of its own.
fn assert_fenced() {
    let own = fs::read_link("/proc/self").expect("proc");
    assert_eq!(own.to_str(), Some("1"), "only in a pid namespace of its own");
}

fn storm(dir: &Path) {
    assert_fenced();
    for millis in ["5", "2", "0"] {
        let chains =
            Spawn::new(dir.join("chain-link.exe")).arg(millis).env("CHAIN_ROOT_STAYS", "60");
        let job = spawn_exempt(chains, Exemption::new("a storm"), &dir.join("jobs")).expect("job");
        std::thread::park_timeout(Duration::from_millis(100));
        let stopped = job.stop(Duration::from_millis(100)).expect("stop");
        assert!(stopped.verified && stopped.left.is_empty(), "{millis}: {stopped:?}");
    }
    write(&dir.join("done"), "yes");
}

fn recycle(dir: &Path) {
    assert_fenced();
    let jobs = dir.join("jobs");
    let spawn = Spawn::new("sleep").arg("600");
    let job = spawn_exempt(spawn, Exemption::new("its number is taken"), &jobs).expect("job");
    let pid = job.pid().expect("pid");
    let record = jobs.join(format!("{}.job", job.id()));
    let shim = field(&record, "shim").split(' ').next().expect("pid").to_owned();
    kill(shim.parse().expect("pid"));
    kill(pid);
    gone(pid);
    gone(shim.parse().expect("pid"));
    for (key, number) in [("job", pid), ("shim", shim.parse().expect("pid"))] {
        let honest = field(&record, key);
        let start = honest.split(' ').nth(1).expect("start");
        let mut stranger = stranger_at(number, start);
        assert_eq!(stranger.id(), number);
        let again = reattach(&jobs, job.id()).expect("record");
        let spared = |what: &str, stranger: &mut std::process::Child| {
            assert!(matches!(again.status(), Status::Unknown { .. }), "{what}");
            let stopped = again.stop(Duration::ZERO).expect("stop");
            assert!(stopped.ended.is_empty() && stopped.left.is_empty(), "{what}: {stopped:?}");
            assert!(stranger.try_wait().expect("wait").is_none(), "{what}: the stranger lives");
        };
        spared("as it is", &mut stranger);
        let inode = honest.rsplit(' ').next().expect("inode").to_owned();
        replace(&record, key, &format!("{number} {start} -"));
        spared("by its start time alone, as on an older kernel", &mut stranger);
        if inode != "-" {
            // Two forks in one clock tick have the same start time: the inode tells them apart.
            let start = start_of(number);
            replace(&record, key, &format!("{number} {start} {inode}"));
            spared("with the same start time", &mut stranger);
            // The control: with nothing to tell them apart it is taken for the job.
            replace(&record, key, &format!("{number} {start} -"));
            assert_eq!(again.status(), Status::Running);
            replace(&record, key, &honest);
        }
        stranger.kill().expect("kill");
        stranger.wait().expect("wait");
    }
    write(&dir.join("done"), "yes");
}

fn field(record: &Path, key: &str) -> String {
    let text = fs::read_to_string(record).expect("record");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key} ")));
    line.expect("a field").to_owned()
}

fn replace(record: &Path, key: &str, value: &str) {
    let text = fs::read_to_string(record).expect("record");
    let line = format!("{key} {}", field(record, key));
    write(record, &text.replace(&line, &format!("{key} {value}")));
}

fn start_of(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let rest = &stat[stat.rfind(')').expect("name") + 2..];
    rest.split(' ').nth(19).expect("start").to_owned()
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
}

/// Waits until it is dead and buried: by us, or by the thread that waits for a shim.
fn gone(pid: u32) {
    let raw = rustix::process::Pid::from_raw(pid.cast_signed());
    while Path::new(&format!("/proc/{pid}")).exists() {
        let _ = rustix::process::waitpid(raw, rustix::process::WaitOptions::NOHANG);
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// Started in another clock tick. Threads of ours take numbers too: tried until it fits.
fn stranger_at(number: u32, not_at: &str) -> std::process::Child {
    for _ in 0..1000 {
        let last = (number - 1).to_string();
        fs::write("/proc/sys/kernel/ns_last_pid", last).expect("ns_last_pid");
        let mut command = std::process::Command::new("sleep");
        #[expect(clippy::disallowed_methods, reason = "a stranger is not owned")]
        let mut child = command.arg("600").spawn().expect("sleep");
        if child.id() == number && start_of(number) != not_at {
            return child;
        }
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
    panic!("number {number} is not to be had");
}
