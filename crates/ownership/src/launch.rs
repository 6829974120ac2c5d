//! From a description to a running process: `PATH` lookup, environment, descriptors, and then
//! [`sys::start`](crate::sys::start). The only place that starts anything: [`crate::supervisor_loop`]
//! starts children here, [`crate::client`] a supervisor.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use crate::program::{Kind, Program, Stand};
use crate::protocol::{Failure, Image, Order};
use crate::registry::ScopeId;
use crate::spawn::{Joins, Phase};
use crate::sys::Pid;
use crate::sys::burden::Burden;
use crate::sys::namespace::{Maps, Namespace};
use crate::sys::signal::IGNORED;
use crate::sys::start::{self, Plan};

/// Variable in each child's environment: `<owner pid>.<owner start time>.<number>:<scope>`, where one
/// process may have several owners. Evidence of whose it is, for processes that lost their ancestors.
pub(crate) const TAG: &str = "OWNERSHIP_TAG";

/// Variable in the environment of guards, and of nobody else: the directory of their journal.
pub(crate) const JOURNAL: &str = "OWNERSHIP_JOURNAL";

/// Variable in the environment of guards, and of nobody else: the containment that their owner asks for, and behind it
/// [`LEAVES_STALE`] where it is so.
pub(crate) const CONTAINMENT: &str = "OWNERSHIP_CONTAINMENT";

/// What dead owners left in cgroups is not the guards' to end.
pub(crate) const LEAVES_STALE: &str = "+leave";

/// Variable in the environment of guards, and of nobody else: the rules of what they are to keep ([`crate::keep`]).
pub(crate) const KEEP: &str = "OWNERSHIP_KEEP";

/// Variable in the environment of a supervisor, and of nobody else: why a systemd gave its keeper no scope.
pub(crate) const NO_SCOPE: &str = "OWNERSHIP_NO_SCOPE";

/// The scope that a process's environment names, if its owner has this identity.
pub(crate) fn tag_of(pid: Pid, owner: &str) -> Option<ScopeId> {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let prefix = format!("{TAG}={owner}:");
    let tag = environ.split(|byte| *byte == 0).find_map(|e| e.strip_prefix(prefix.as_bytes()))?;
    std::str::from_utf8(tag).ok()?.parse().ok().map(ScopeId)
}

/// Where programs are looked for when the child has no `PATH`, as `execvp` does.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// Highest number that a child may be given; above, the limit of open descriptors (RLIMIT_NOFILE,
/// commonly 1024) decides, and with what error would depend on the machine.
const LAST_FD: RawFd = 1023;

/// What a supervisor gives to each of its children.
#[derive(Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) null: BorrowedFd<'a>,
    pub(crate) open_files: Option<(u64, u64)>,
    pub(crate) subreaper: bool,
    /// What the supervisor itself had before it lowered it.
    pub(crate) oom_score: Option<&'a CStr>,
    /// Where its number goes, and why it failed.
    pub(crate) words: (*mut Pid, &'a AtomicU64),
    /// The cgroup that it is born in.
    pub(crate) cgroup: Option<BorrowedFd<'a>>,
    /// What it has of its scope's ration.
    pub(crate) burden: Option<&'a Burden>,
    /// Number 1 of the pid namespace that it is born in, and whether that has a user namespace.
    pub(crate) first: Option<(BorrowedFd<'a>, bool)>,
}

/// Starts what was ordered. `line` is the child's end of its line, if it gets one, and `control` that of a template's.
pub(crate) fn start_order(
    order: &Order,
    fds: &[OwnedFd],
    (line, control): (Option<&OwnedFd>, Option<(RawFd, &OwnedFd)>),
    tag: &str,
    setting: &Setting<'_>,
) -> Result<(Pid, OwnedFd), Failure> {
    let mut given = fds.iter().map(AsFd::as_fd);
    let cwd = given.next();
    let argv = terminated(&order.argv)?;
    let mut env = order.env.clone();
    env.retain(|entry| !entry.starts_with(format!("{TAG}=").as_bytes()));
    env.push(format!("{TAG}={tag}").into_bytes());
    let dir = order.dir.as_deref().map(text).transpose()?;
    let paths = match &order.image {
        Image::Named(name) => terminated(&candidates(name, path_of(&order.env)))?,
        Image::Open | Image::Fork(_) => Vec::new(),
    };
    let image = match order.image {
        Image::Fork(_) => return Err(refused(libc::EINVAL)),
        Image::Named(_) => start::Image::Paths(&paths),
        Image::Open => start::Image::Open(given.next().ok_or(refused(libc::EBADF))?),
    };
    let named = order.fds.iter().copied().zip(given);
    // Of what is passed on as it was found the numbers are somebody else's choice.
    let last = if order.joins.is_some() { RawFd::MAX - 1 } else { LAST_FD };
    let control = control.map(|(number, fd)| (number, fd.as_fd()));
    let line = order.line.zip(line.map(AsFd::as_fd));
    let fds = descriptors(named.chain(control), line, setting.null, last)?;
    let env = terminated(&env)?;
    let plan = Plan {
        cwd,
        dir: dir.as_deref(),
        // Orphans would come to a program that does not know of them.
        subreaper: setting.subreaper && order.joins.is_none(),
        joins: order.joins,
        open_files: setting.open_files,
        oom_score: setting.oom_score,
        pid_word: Some(setting.words.0),
        failed_word: Some(setting.words.1),
        cgroup: setting.cgroup,
        burden: setting.burden,
        namespace: setting.first.map(|(first, user)| Namespace::Inside { first, user }),
        ..Plan::new(image, &argv, &env, fds)
    };
    Ok(start::start(&plan)?)
}

/// Starts `program` as a keeper, or as the stage of one that stands apart, with its line and its owner's handle as 3 and 4.
pub(crate) fn start_stage(
    program: &Program,
    argv: &[Vec<u8>],
    [control, owner]: [BorrowedFd<'_>; 2],
    (journal, containment, keep, stand): (Option<&Path>, &str, Option<&str>, Stand),
    null: BorrowedFd<'_>,
) -> Result<OwnedFd, Failure> {
    let ours = |key: &std::ffi::OsString| {
        [JOURNAL, CONTAINMENT, KEEP, NO_SCOPE].iter().any(|own| key == own)
    };
    let inherited = std::env::vars_os().filter(|(key, _)| !ours(key));
    let containment = (CONTAINMENT.into(), containment.into());
    let journal = journal.map(|dir| (JOURNAL.into(), dir.into()));
    let keep = keep.map(|rules| (KEEP.into(), rules.into()));
    let env = entries(inherited.chain(journal).chain(keep).chain([containment]));
    let paths = match &program.kind {
        Kind::Named(name) => terminated(&candidates(name.as_bytes(), path_of(&env)))?,
        Kind::Open(_) => Vec::new(),
    };
    let image = match &program.kind {
        Kind::Named(_) => start::Image::Paths(&paths),
        Kind::Open(fd) => start::Image::Open(fd.as_fd()),
    };
    let (argv, env) = (terminated(argv)?, terminated(&env)?);
    let fds = vec![(0, null), (1, null), (2, null), (3, control), (4, owner)];
    // Until it has left our group, what a terminal sends comes to it as well.
    let ignored = IGNORED.iter().fold(0, |set, number| set | 1 << (number - 1));
    let near = Joins { group: 0, ignored, blocked: 0 };
    let joins = (stand == Stand::Near).then_some(near);
    let plan = Plan { joins, ..Plan::new(image, &argv, &env, fds) };
    let (_, pidfd) = start::start(&plan)
        .map_err(|failed| Failure { phase: Phase::Supervisor, errno: failed.errno })?;
    Ok(pidfd)
}

/// Starts the process that is number 1 of a new pid namespace, with these descriptors from 3 on: `image` again, in a
/// session of its own, with the mark of the scope whose namespace it is.
pub(crate) fn start_first(
    image: BorrowedFd<'_>,
    argv: &[Vec<u8>],
    fds: &[BorrowedFd<'_>],
    tag: &str,
    setting: &Setting<'_>,
    user: bool,
) -> Result<(Pid, OwnedFd), Failure> {
    let standard = [setting.null; 3];
    let fds = (0..).zip(standard.iter().chain(fds).copied()).collect();
    let mut env = vec![format!("{TAG}={tag}").into_bytes()];
    // What tests switch off.
    env.extend(crate::hook::inherited().map(String::into_bytes));
    let (argv, env) = (terminated(argv)?, terminated(&env)?);
    let image = start::Image::Open(image);
    let plan = Plan {
        open_files: setting.open_files,
        pid_word: Some(setting.words.0),
        cgroup: setting.cgroup,
        namespace: Some(Namespace::First(user.then(Maps::own))),
        ..Plan::new(image, &argv, &env, fds)
    };
    Ok(start::start(&plan)?)
}

/// Starts the supervisor below its keeper: `image` again, with these descriptors from 3 on. It stays in the
/// keeper's session, in a group of its own.
pub(crate) fn start_guard(
    image: BorrowedFd<'_>,
    argv: &[Vec<u8>],
    fds: &[BorrowedFd<'_>],
    null: BorrowedFd<'_>,
    (open_files, oom_score): (Option<(u64, u64)>, Option<&CStr>),
    no_scope: Option<&str>,
) -> Result<(Pid, OwnedFd), Failure> {
    let standard = [null; 3];
    let fds = (0..).zip(standard.iter().chain(fds).copied()).collect();
    let inherited = std::env::vars_os().filter(|(key, _)| key != NO_SCOPE);
    let no_scope = no_scope.map(|why| (NO_SCOPE.into(), why.into()));
    let (argv, env) = (terminated(argv)?, terminated(&entries(inherited.chain(no_scope)))?);
    let image = start::Image::Open(image);
    let plan = Plan { session: false, open_files, oom_score, ..Plan::new(image, &argv, &env, fds) };
    Ok(start::start(&plan)?)
}

/// `NAME=value` entries.
pub(crate) fn entries<K: AsRef<std::ffi::OsStr>, V: AsRef<std::ffi::OsStr>>(
    variables: impl IntoIterator<Item = (K, V)>,
) -> Vec<Vec<u8>> {
    let entry =
        |(key, value): (K, V)| [key.as_ref().as_bytes(), b"=", value.as_ref().as_bytes()].concat();
    variables.into_iter().map(entry).collect()
}

fn refused(errno: i32) -> Failure {
    Failure { phase: Phase::Request, errno }
}

/// A NUL byte inside is refused: what follows it would silently be lost.
fn text(bytes: &[u8]) -> Result<CString, Failure> {
    CString::new(bytes).map_err(|_| refused(libc::EINVAL))
}

pub(crate) fn terminated(texts: &[Vec<u8>]) -> Result<Vec<CString>, Failure> {
    texts.iter().map(|bytes| text(bytes)).collect()
}

pub(crate) fn path_of(env: &[Vec<u8>]) -> &[u8] {
    env.iter().find_map(|entry| entry.strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH)
}

/// The files that `name` may mean, with the rules of `execvp` (man 3 exec): a slash means a path, an
/// empty element of `PATH` the working directory.
pub(crate) fn candidates(name: &[u8], path: &[u8]) -> Vec<Vec<u8>> {
    if name.is_empty() {
        return Vec::new();
    }
    if name.contains(&b'/') {
        return vec![name.to_vec()];
    }
    let join = |dir: &[u8]| match dir {
        [] => [b"./", name].concat(),
        dir => [dir, b"/", name].concat(),
    };
    path.split(|byte| *byte == b':').map(join).collect()
}

/// All descriptors of a child, 0 to 2 included; a number named twice is refused.
fn descriptors<'a>(
    named: impl Iterator<Item = (RawFd, BorrowedFd<'a>)>,
    line: Option<(RawFd, BorrowedFd<'a>)>,
    null: BorrowedFd<'a>,
    last: RawFd,
) -> Result<Vec<(RawFd, BorrowedFd<'a>)>, Failure> {
    let mut all: Vec<_> = named.chain(line).collect();
    all.sort_by_key(|(number, _)| *number);
    let twice = all.windows(2).any(|pair| pair[0].0 == pair[1].0);
    let outside = all.iter().any(|(number, _)| !(0..=last).contains(number));
    if twice || outside {
        return Err(refused(libc::EBADF));
    }
    for standard in 0..3 {
        if !all.iter().any(|(number, _)| *number == standard) {
            all.push((standard, null));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up_as_execvp_does() {
        let listed = |name: &str, path: &str| {
            candidates(name.as_bytes(), path.as_bytes())
                .into_iter()
                .map(|path| String::from_utf8(path).expect("text"))
                .collect::<Vec<_>>()
        };
        assert_eq!(listed("ls", "/a:/b"), ["/a/ls", "/b/ls"]);
        assert_eq!(listed("ls", ":/b:"), ["./ls", "/b/ls", "./ls"]);
        assert_eq!(listed("./ls", "/a"), ["./ls"]);
        assert!(listed("", "/a").is_empty());
    }

    #[test]
    fn numbers_outside_or_twice_are_refused() {
        let file = std::fs::File::open("/dev/null").expect("null");
        let null = file.as_fd();
        for bad in [vec![-1], vec![LAST_FD + 1], vec![5, 5]] {
            let named = bad.iter().map(|number| (*number, null));
            assert!(descriptors(named, None, null, LAST_FD).is_err(), "{bad:?}");
        }
        let named = [(1, null)].into_iter();
        let all = descriptors(named, Some((4, null)), null, LAST_FD).expect("good");
        let mut numbers: Vec<_> = all.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2, 4]);
    }
}
