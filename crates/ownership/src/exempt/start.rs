//! Starts a shim, gives it its orders, and starts the job for it. The order of steps leaves no window: the
//! shim writes the record before it starts the job, and a job of which the owner does not hear is undone.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::record::{self, Record};
use super::{EXEMPT, Exemption, Outer, SHIM_ROLE, files, look};
use crate::child::{request_error, supervisor_error};
use crate::launch::{TAG, candidates, entries, path_of, terminated};
use crate::line::{self, Received};
use crate::order::order;
use crate::program::{Kind, Program};
use crate::protocol::{Failure, Image, Order, Request, phase_number, phase_of};
use crate::spawn::{Phase, Spawn, SpawnError};
use crate::sys::start::{self, Plan};
use crate::sys::{Pid, signal, wait};

/// A stage that has not left by then is none; a start takes a few milliseconds.
const STAGE_LIMIT: Duration = Duration::from_secs(10);

/// A job that is not executed by then is given up: its file system hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// For tests only: the step after which this process kills itself.
const TEST_CRASH: &str = "OWNERSHIP_TEST_EXEMPT_CRASH";

/// Dies here, if a test says so.
pub(super) fn crash_at(step: &str) {
    if crate::hook::setting(TEST_CRASH).is_some_and(|at| at == step)
        && let Ok(own) = crate::identity::own_pidfd()
    {
        let _ = signal::send(own.as_fd(), libc::SIGKILL);
    }
}

/// What a shim says, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Started(Pid),
    Failed(Failure),
}

impl Answer {
    /// Kind, phase, and the number in four bytes.
    pub(super) fn encode(self) -> [u8; 6] {
        let (kind, phase, number) = match self {
            Self::Started(pid) => (0, 0, pid),
            Self::Failed(failure) => (1, phase_number(failure.phase), failure.errno),
        };
        let [a, b, c, d] = number.to_le_bytes();
        [kind, phase, a, b, c, d]
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let [kind, phase, number @ ..] = bytes else { return None };
        let number = i32::from_le_bytes(number.try_into().ok()?);
        match kind {
            0 => Some(Self::Started(number)),
            1 => Some(Self::Failed(Failure { phase: phase_of(*phase)?, errno: number })),
            _ => None,
        }
    }
}

pub(super) fn setup_failure(error: &io::Error) -> Failure {
    Failure { phase: Phase::Setup, errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

/// Starts a job; gives the directory of its record, and the record.
pub(super) fn start(
    shim: &Program,
    spawn: Spawn,
    exemption: Exemption,
    dir: &Path,
    gateway: Option<&str>,
) -> Result<(PathBuf, Record), SpawnError> {
    let at_dir = |error: io::Error| SpawnError {
        path: Some(dir.to_owned()),
        errno: error.raw_os_error(),
        ..request_error(&error.to_string(), libc::EACCES)
    };
    if !crate::identity::proc_is_ours() {
        return Err(supervisor_error("/proc is missing or of another pid namespace", None));
    }
    let about = About::of(&spawn);
    let (mut order, mut fds) = order(spawn)?;
    let dir = files::prepare(dir).map_err(at_dir)?;
    let record = terms(&order, exemption, &dir, gateway).map_err(at_dir)?;
    mark(&mut order.env, Some(&record.id));
    let packed = line::pack(Request::Spawn(Box::new(order)).encode(), 0, &mut fds)
        .map_err(|errno| request_error("arguments and environment", errno.raw_os_error()))?;
    let control = start_shim(shim)?;
    crash_at("stage-left");
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    // What cannot be sent is not answered.
    let _ = line::send(control.as_fd(), &record.encode(), &[], true);
    crash_at("terms-sent");
    let _ = line::send(control.as_fd(), &packed, &fds, true);
    crash_at("order-sent");
    let answer = answer(&control)?;
    crash_at("answered");
    match answer {
        Answer::Started(pid) => {
            tracing::debug!(pid, id = record.id, "exempt job");
            // It runs, whether its record can be read here or not.
            let record = files::load(&dir, &record.id).unwrap_or(record);
            reap_if_ours(&record);
            Ok((dir, record))
        }
        Answer::Failed(failure) => Err(about.error(failure)),
    }
}

/// What the record says before there is a shim.
fn terms(
    order: &Order,
    exemption: Exemption,
    dir: &Path,
    gateway: Option<&str>,
) -> io::Result<Record> {
    let id = files::new_id()?;
    let started = record::now();
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let tag = std::env::var_os(TAG).map(|tag| tag.to_string_lossy().into_owned());
    let unknown = || io::Error::other("this process cannot be found in /proc");
    Ok(Record {
        reason: exemption.reason,
        gateway: gateway.map(str::to_owned),
        started,
        expires: exemption.expires.map(|time| started.saturating_add(millis(time))),
        place: look::here()?,
        owner: look::own().ok_or_else(unknown)?,
        shim: None,
        job: None,
        program: record::redact(&order.argv),
        log: files::log_path(dir, &id),
        outer: tag.map(|tag| Outer { tag: Some(tag), adopter: None }),
        end: None,
        empty: false,
        id,
    })
}

/// Takes an owner's mark away, and gives a job its own.
fn mark(env: &mut Vec<Vec<u8>>, id: Option<&str>) {
    let bears = |entry: &[u8], name: &str| {
        entry.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
    };
    env.retain(|entry| !bears(entry, TAG) && !bears(entry, EXEMPT));
    env.extend(id.map(|id| format!("{EXEMPT}={id}").into_bytes()));
}

/// Starts a shim and gives our end of its line. Its stage is reaped here: by then the shim is somebody
/// else's, and this process has no child that its program did not start.
fn start_shim(program: &Program) -> Result<OwnedFd, SpawnError> {
    let failed = |errno: i32| {
        supervisor_error(&io::Error::from_raw_os_error(errno).to_string(), Some(errno))
    };
    let (ours, theirs) = line::pair().map_err(|errno| failed(errno.raw_os_error()))?;
    let null = open_null().map_err(|error| failed(error.raw_os_error().unwrap_or(libc::EIO)))?;
    let mut env = entries(std::env::vars_os());
    mark(&mut env, None);
    let name = program.argv0.as_ref().map_or(&b"steward"[..], |name| name.as_bytes());
    let argv = [name.to_vec(), SHIM_ROLE.into()];
    let stage = || {
        let paths = match &program.kind {
            Kind::Named(name) => terminated(&candidates(name.as_bytes(), path_of(&env)))?,
            Kind::Open(_) => Vec::new(),
        };
        let null = null.as_fd();
        let image = match &program.kind {
            Kind::Named(_) => start::Image::Paths(&paths),
            Kind::Open(fd) => start::Image::Open(fd.as_fd()),
        };
        let fds = vec![(0, null), (1, null), (2, null), (3, theirs.as_fd())];
        let (argv, env) = (terminated(&argv)?, terminated(&env)?);
        Ok(start::start(&Plan::new(image, &argv, &env, fds))?)
    };
    let (_, stage) = stage().map_err(|failure: Failure| failed(failure.errno))?;
    drop(theirs);
    crash_at("stage-started");
    let left = look::readable(stage.as_fd(), STAGE_LIMIT);
    if !left {
        let _ = signal::send(stage.as_fd(), libc::SIGKILL);
    }
    wait::reap_handle(&stage);
    if left { Ok(ours) } else { Err(supervisor_error("the program has no such role", None)) }
}

fn answer(control: &OwnedFd) -> Result<Answer, SpawnError> {
    if !look::readable(control.as_fd(), ANSWER_LIMIT) {
        // Closing the line undoes it.
        return Err(supervisor_error("the job was not executed in time", Some(libc::ETIMEDOUT)));
    }
    let received = line::receive(control.as_fd(), &mut [0; 64], false);
    let decoded = match received {
        Ok(Received::Record { bytes, .. }) => Answer::decode(&bytes),
        Ok(Received::Bodiless { .. } | Received::Junk | Received::End) | Err(_) => None,
    };
    decoded.ok_or_else(|| {
        let detail = "the shim left: does the program call run_if_asked first?";
        supervisor_error(detail, Some(libc::EPIPE))
    })
}

/// Where this process is init or a collector of orphans, the shim is its child now, of which nobody
/// else here may know.
fn reap_if_ours(record: &Record) {
    let own = crate::identity::own_pid();
    let ours = |shim: &look::Held| {
        crate::identity::Stat::read(shim.who.pid).is_some_and(|stat| stat.parent == own)
    };
    if let Some(shim) = record.shim.as_ref().and_then(look::Held::open).filter(ours) {
        let reaper = std::thread::Builder::new().name("ownership-shim".into());
        // Without a thread it stays a zombie after its end, and harms nobody.
        let _thread = reaper.spawn(move || wait::reap_handle(&shim.pidfd));
    }
}

/// What an error is about.
struct About {
    program: PathBuf,
    dir: Option<PathBuf>,
}

impl About {
    fn of(spawn: &Spawn) -> Self {
        let program = match &spawn.program.kind {
            Kind::Named(name) => PathBuf::from(name),
            Kind::Open(_) => PathBuf::from("/proc/self/exe"),
        };
        Self { program, dir: spawn.dir.clone() }
    }

    fn error(self, failure: Failure) -> SpawnError {
        let path = match failure.phase {
            Phase::Chdir => self.dir,
            Phase::Exec | Phase::Contain | Phase::Ration => Some(self.program),
            Phase::Request | Phase::Supervisor | Phase::Clone | Phase::Setup => None,
        };
        SpawnError {
            phase: failure.phase,
            errno: Some(failure.errno),
            path,
            detail: io::Error::from_raw_os_error(failure.errno).to_string(),
        }
    }
}

fn open_null() -> io::Result<OwnedFd> {
    Ok(File::options().read(true).write(true).open("/dev/null")?.into())
}

/// A job to be started by its shim.
pub(super) struct Job<'a> {
    pub(super) order: &'a Order,
    /// As [`Order`] says; the job gets none of them.
    pub(super) fds: &'a [OwnedFd],
    pub(super) log: &'a File,
}

/// Starts the job as a child of this process, in a session of its own.
pub(super) fn start_job(job: &Job<'_>) -> Result<(Pid, OwnedFd), Failure> {
    let Job { order, fds, log } = job;
    let mut given = fds.iter().map(AsFd::as_fd);
    let cwd = given.next();
    let dir = order.dir.clone().map(|dir| terminated(&[dir])).transpose()?;
    let paths = match &order.image {
        Image::Named(name) => terminated(&candidates(name, path_of(&order.env)))?,
        Image::Open | Image::Fork(_) => Vec::new(),
    };
    let unopened = Failure { phase: Phase::Request, errno: libc::EBADF };
    let image = match order.image {
        Image::Named(_) => start::Image::Paths(&paths),
        Image::Open => start::Image::Open(given.next().ok_or(unopened)?),
        Image::Fork(_) => return Err(unopened),
    };
    let null = open_null().map_err(|error| setup_failure(&error))?;
    let (argv, env) = (terminated(&order.argv)?, terminated(&order.env)?);
    let dir = dir.as_ref().and_then(|dir| dir.first()).map(|dir| dir.as_c_str());
    let fds = vec![(0, null.as_fd()), (1, log.as_fd()), (2, log.as_fd())];
    Ok(start::start(&Plan { cwd, dir, ..Plan::new(image, &argv, &env, fds) })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_arrive_as_they_were_and_anything_else_is_none() {
        let failure = Failure { phase: Phase::Chdir, errno: libc::ENOENT };
        for answer in [Answer::Started(77), Answer::Failed(failure)] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
        for junk in
            [&[][..], &[0], &[0, 0, 1, 2, 3], &[0; 7], &[2, 0, 0, 0, 0, 0], &[1, 99, 0, 0, 0, 0]]
        {
            assert_eq!(Answer::decode(junk), None, "{junk:?}");
        }
    }

    #[test]
    fn marks_of_owners_are_taken_away() {
        let mut env = vec![
            format!("{TAG}=1.2:3").into_bytes(),
            format!("{EXEMPT}=old").into_bytes(),
            format!("{TAG}X=stays").into_bytes(),
        ];
        mark(&mut env, Some("new"));
        let texts: Vec<_> = env.iter().map(|entry| String::from_utf8_lossy(entry)).collect();
        assert_eq!(texts, [format!("{TAG}X=stays"), format!("{EXEMPT}=new")]);
    }
}
