//! Cgroups of scopes, as files: made, read, frozen, killed and removed. Decides nothing and keeps nothing;
//! [`crate::supervisor_loop`] does.
//!
//! ```text
//! our own cgroup                     guards and owner stand here, or wherever they were put
//!   ownership-PID.START.NUMBER-NS    one owner; each living guard holds a shared lock on it
//!     SCOPE                          what was started under that number, and all that came of it
//!     limit-SCOPE.SECONDS            a pen: who is held to the ration of that scope together
//!       SCOPE                        that scope, and each that was started in it
//! ```
//!
//! The name says whose it is: number, start time and pid namespace of the owner, and which of its owners.
//! Nothing here needs a controller, so the rule that only leaves have processes does not bind: it binds
//! cgroups that hand controllers on.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, open, openat, unlinkat,
};

use crate::identity::Stat;
use crate::registry::ScopeId;
use crate::sys::Pid;

pub(crate) mod rationed;

const PREFIX: &str = "ownership-";

/// Name of a pen: its scope, and how many seconds of processor time it has (0: no limit), so that a guard that takes
/// over needs nobody to tell it.
const PEN: &str = "limit-";

/// Cgroups inside of one that are looked at: what a child makes in its own must not keep a guard busy.
const MAX_INSIDE: usize = 1024;

/// Cgroups that are removed in one go: each look removes so many, until nothing is left.
const MAX_REMOVED: usize = 4096;

/// Looks for `frozen 1`, and the time until the next one at most: what does not stand still by then (a
/// process in state D) does not fork either.
const FREEZE_LOOKS: u32 = 3;
const FREEZE_PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// The cgroup of one owner.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    /// Says that a guard lives; nobody else's files are copies of it.
    lock: OwnedFd,
}

impl Place {
    /// The path of an owner's place inside of `base`.
    pub(crate) fn path(base: &Path, owner: &str) -> PathBuf {
        base.join(format!("{PREFIX}{owner}-{}", namespace()))
    }

    /// Makes it, or takes it over from a guard that made it.
    ///
    /// Guards of other owners remove what is empty, and hold its lock for that moment ([`stale`]): then it is made again.
    /// Once it is ours nobody else does.
    pub(crate) fn make(path: PathBuf) -> io::Result<Self> {
        let mut last = io::ErrorKind::NotFound.into();
        for made in 0..MAKES {
            make_dir(&path)?;
            match Self::open(path.clone()) {
                Ok(place) => return Ok(place),
                Err(error) => {
                    let passes = [io::ErrorKind::NotFound, io::ErrorKind::WouldBlock];
                    if !passes.contains(&error.kind()) {
                        return Err(error);
                    }
                    last = error;
                }
            }
            pause(made);
        }
        Err(last)
    }

    /// One that is there.
    pub(crate) fn open(path: PathBuf) -> io::Result<Self> {
        let lock = open_dir(&path)?;
        // Who holds it otherwise has found the owner dead: then nothing is started any more.
        flock(&lock, FlockOperation::NonBlockingLockShared)?;
        let place = Self { path, lock };
        // It may have been removed before it was locked.
        if place.is_there() { Ok(place) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Whether it has not been removed since it was opened.
    pub(crate) fn is_there(&self) -> bool {
        has_name(&self.lock, &self.path)
    }

    /// Whether the kernel can end what is in it (5.14).
    pub(crate) fn has_kill(&self) -> bool {
        self.path.join("cgroup.kill").exists()
    }

    pub(crate) fn cell(&self, scope: ScopeId) -> Cell {
        Cell { path: self.path.join(scope.0.to_string()) }
    }

    /// The scope in whose cgroup a process stands, however deep inside.
    pub(crate) fn scope_of(&self, pid: Pid) -> Option<ScopeId> {
        let own = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let path = Path::new(own.lines().find_map(|line| line.strip_prefix("0::"))?);
        let mut parts = path.iter().skip_while(|part| Some(*part) != self.path.file_name());
        let first = parts.nth(1)?;
        let cell = if pen_of_name(first).is_some() { parts.next()? } else { first };
        cell.to_str()?.parse().ok().map(ScopeId)
    }

    /// The directory of a pen.
    pub(crate) fn pen(&self, scope: ScopeId, seconds: u64) -> PathBuf {
        self.path.join(format!("{PEN}{}.{seconds}", scope.0))
    }

    /// All pens: whose, with how many seconds, and the scopes that have a cgroup in it.
    pub(crate) fn pens(&self) -> Vec<(ScopeId, u64, PathBuf, Vec<ScopeId>)> {
        let found = inside(&self.path).into_iter().filter_map(|path| {
            let (scope, seconds) = pen_of_name(path.file_name()?)?;
            let cells = inside(&path).iter().filter_map(|path| number_of(path)).collect();
            Some((scope, seconds, path, cells))
        });
        found.collect()
    }

    /// What of this place is a directory of its own: for a group of version 1.
    pub(crate) fn dir(&self) -> &Path {
        &self.path
    }

    /// Makes a scope's cgroup, in a pen or beside, and gives its directory to be born in.
    pub(crate) fn make_cell(&self, scope: ScopeId, pen: Option<&Path>) -> io::Result<OwnedFd> {
        let cell = pen.map_or_else(|| self.cell(scope), |pen| Cell::within(pen, scope));
        make_dir(&cell.path)?;
        open_dir(&cell.path)
    }

    /// The scopes that have a group of version 1 in the place of this path.
    pub(crate) fn scopes_in(path: &Path) -> Vec<(ScopeId, Cell)> {
        let cell = |path: PathBuf| Some((number_of(&path)?, Cell { path }));
        inside(path).into_iter().filter_map(cell).collect()
    }

    /// The scopes that have a cgroup.
    pub(crate) fn scopes(&self) -> Vec<(ScopeId, Cell)> {
        let cell = |path: PathBuf| Some((number_of(&path)?, Cell { path }));
        let penned = self.pens().into_iter().flat_map(|(_, _, path, _)| inside(&path));
        inside(&self.path).into_iter().chain(penned).filter_map(cell).collect()
    }

    /// Removes it where nothing is in it.
    pub(crate) fn remove(self) {
        Cell { path: self.path }.remove();
    }
}

/// The cgroup of one scope, or what a dead owner left as a whole.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    path: PathBuf,
}

impl Cell {
    /// A directory as it is.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// That of a scope in a pen.
    pub(crate) fn within(pen: &Path, scope: ScopeId) -> Self {
        Self { path: pen.join(scope.0.to_string()) }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.path
    }

    pub(crate) fn exists(&self) -> bool {
        self.path.is_dir()
    }

    /// Who lives in it and in what it has inside. Zombies are not in it.
    pub(crate) fn pids(&self) -> Vec<Pid> {
        let lists = self.all().into_iter();
        let lists = lists.filter_map(|dir| fs::read_to_string(dir.join("cgroup.procs")).ok());
        let mut pids: Vec<Pid> = lists
            .flat_map(|list| list.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect();
        // One of a namespace that we do not see is written as 0.
        pids.retain(|pid| *pid > 0);
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// What the kernel says: somebody lives in it.
    pub(crate) fn is_populated(&self) -> bool {
        match fs::read_to_string(self.path.join("cgroup.events")) {
            Ok(events) => events.lines().any(|line| line == "populated 1"),
            // Version 1 has no such file.
            Err(_) => self.all().iter().any(|dir| {
                fs::read_to_string(dir.join("cgroup.procs")).is_ok_and(|list| !list.is_empty())
            }),
        }
    }

    /// Asks all of it to stand still, which takes the time that each of its processes needs to get to it, and waits for
    /// nobody. Whether it may be asked.
    pub(crate) fn begin_freezing(&self) -> bool {
        fs::write(self.path.join("cgroup.freeze"), "1").is_ok()
    }

    /// All of it stands still, or will before it runs again. Where it cannot be frozen, nothing happens.
    pub(crate) fn freeze(&self) {
        if !self.begin_freezing() {
            return;
        }
        let Ok(events) = fs::File::open(self.path.join("cgroup.events")) else { return };
        for _ in 0..FREEZE_LOOKS {
            let mut text = [0; 256];
            let read = events.read_at(&mut text, 0).unwrap_or(0);
            if !String::from_utf8_lossy(&text[..read]).lines().any(|line| line == "frozen 0") {
                return;
            }
            // Tells of a change since it was read.
            let mut asked = [PollFd::new(&events, PollFlags::PRI)];
            let _ = poll(&mut asked, Some(&FREEZE_PATIENCE));
        }
    }

    pub(crate) fn thaw(&self) {
        // Fails where it could not be frozen, or is gone.
        drop(fs::write(self.path.join("cgroup.freeze"), "0"));
    }

    /// KILL to everybody in it, whoever forks meanwhile and whoever's they are.
    /// Whether there is such a thing: version 1 has none.
    pub(crate) fn kill(&self) -> bool {
        // Fails where it is gone, too.
        fs::write(self.path.join("cgroup.kill"), "1").is_ok()
    }

    /// Removes it and what it has inside, the innermost first. `false` while somebody lives in it.
    pub(crate) fn remove(&self) -> bool {
        match fs::remove_dir(&self.path) {
            Ok(()) => return true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return true,
            Err(_) => {}
        }
        if let Ok(dir) = open_dir(&self.path) {
            remove_inside(dir);
        }
        drop(fs::remove_dir(&self.path));
        !self.exists()
    }

    /// It and every cgroup inside, outer ones first.
    fn all(&self) -> Vec<PathBuf> {
        let mut all = vec![self.path.clone()];
        let mut at = 0;
        while at < all.len() && all.len() < MAX_INSIDE {
            all.extend(inside(&all[at]));
            at += 1;
        }
        all
    }
}

/// What an owner left that is dead, as its guards are.
#[derive(Debug)]
pub(crate) struct Stale {
    pub(crate) cell: Cell,
    /// Nobody else cleans it meanwhile.
    _lock: OwnedFd,
}

/// What dead owners left inside of `base`. An owner is dead when no process has its number and start time, and
/// its guards are when nobody holds a lock on its place. Of owners of another pid namespace nothing can be
/// said: of theirs only what is empty is given.
pub(crate) fn stale(base: &Path) -> Vec<Stale> {
    let own_user = rustix::process::geteuid().as_raw();
    let mut found = Vec::new();
    for path in inside(base) {
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(owner) = name.and_then(|name| name.strip_prefix(PREFIX)).and_then(Owner::parse)
        else {
            continue;
        };
        let ours = fs::metadata(&path).is_ok_and(|meta| meta.uid() == own_user);
        if !ours || owner.lives() {
            continue;
        }
        let Some(lock) = lock_alone(&path) else { continue };
        let cell = Cell { path };
        if owner.namespace == namespace() || !cell.is_populated() {
            found.push(Stale { cell, _lock: lock });
        }
    }
    found
}

/// The place of a dead owner in which a cgroup stands, as far as its path tells.
#[cfg(feature = "ledger")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grave {
    /// Of the place itself, as `/proc/PID/cgroup` writes it.
    pub(crate) path: String,
    /// The owner's number, start time and pid namespace.
    pub(crate) pid: u32,
    pub(crate) start: u64,
    pub(crate) namespace: u64,
}

/// Places inside of `base` in which nobody is, of owners that do not live, as far as that can be told from here, and whose
/// guards hold none of them. Holds nothing itself.
#[cfg(feature = "ledger")]
pub(crate) fn empty(base: &Path) -> Vec<(PathBuf, Grave)> {
    let empty = stale(base).into_iter().filter(|left| !left.cell.is_populated());
    let named = empty.filter_map(|left| {
        let (grave, _) = place_in(left.cell.dir().to_str()?)?;
        Some((left.cell.dir().to_owned(), grave))
    });
    named.collect()
}

/// Removes such a place, unless somebody is in it or holds it by now. Whether it is gone.
#[cfg(feature = "ledger")]
pub(crate) fn remove_empty(dir: &Path) -> bool {
    let cell = Cell::at(dir.to_owned());
    let Some(_lock) = lock_alone(dir) else { return !cell.exists() };
    !cell.is_populated() && cell.remove()
}

/// The innermost place of an owner in the path of a cgroup, and the paths of those around it.
#[cfg(feature = "ledger")]
pub(crate) fn place_in(path: &str) -> Option<(Grave, Vec<String>)> {
    let mut places = Vec::new();
    let mut at = String::new();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        at = format!("{at}/{part}");
        if let Some(owner) = part.strip_prefix(PREFIX).and_then(Owner::parse) {
            let Owner { pid, start, namespace } = owner;
            places.push(Grave { path: at.clone(), pid: pid.cast_unsigned(), start, namespace });
        }
    }
    let place = places.pop()?;
    Some((place, places.into_iter().map(|around| around.path).collect()))
}

/// Whether a place is this user's and no guard holds it any more.
#[cfg(feature = "ledger")]
pub(crate) fn is_deserted(dir: &Path) -> bool {
    let own_user = rustix::process::geteuid().as_raw();
    let ours = fs::metadata(dir).is_ok_and(|meta| meta.uid() == own_user);
    ours && open_dir(dir)
        .is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// What the name of a place says.
#[derive(Debug, PartialEq, Eq)]
struct Owner {
    pid: Pid,
    start: u64,
    namespace: u64,
}

impl Owner {
    fn parse(name: &str) -> Option<Self> {
        let (owner, namespace) = name.rsplit_once('-')?;
        let mut numbers = owner.split('.');
        let (pid, start) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        numbers.next()?.parse::<u64>().ok()?;
        Some(Self { pid, start, namespace: namespace.parse().ok()? })
            .filter(|owner| owner.pid > 0 && numbers.next().is_none())
    }

    /// Whether it may live: one of another namespace may.
    fn lives(&self) -> bool {
        self.namespace == namespace()
            && Stat::read(self.pid).is_some_and(|stat| stat.start == self.start && !stat.is_dead())
    }
}

/// The pid namespace of this process: numbers of another one mean others. 0 where it is not told.
fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino())
}

/// Whose pen has this name, and with how many seconds.
fn pen_of_name(name: &std::ffi::OsStr) -> Option<(ScopeId, u64)> {
    let (scope, seconds) = name.to_str()?.strip_prefix(PEN)?.split_once('.')?;
    Some((ScopeId(scope.parse().ok()?), seconds.parse().ok()?))
}

/// The scope whose cgroup has this path.
fn number_of(path: &Path) -> Option<ScopeId> {
    path.file_name()?.to_str()?.parse().ok().map(ScopeId)
}

/// Cgroups directly inside of one.
fn inside(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.take(MAX_INSIDE).map(|entry| entry.path()).collect()
}

/// Removes what is inside of a cgroup, the innermost first; who lives somewhere keeps that and what is around it. Goes
/// by descriptors, one at a time: how deep a child has nested them is its choice, and a path has an end.
fn remove_inside(mut dir: OwnedFd) {
    let (mut waiting, mut came_by, mut removed) = (vec![names_inside(&dir)], Vec::new(), 0);
    while removed < MAX_REMOVED {
        let Some(level) = waiting.last_mut() else { return };
        if let Some(name) = level.pop() {
            if unlinkat(&dir, &*name, AtFlags::REMOVEDIR).is_ok() {
                removed += 1;
                continue;
            }
            let Ok(below) = openat(&dir, &*name, DIR_FLAGS, Mode::empty()) else { continue };
            waiting.push(names_inside(&below));
            came_by.push(name);
            dir = below;
        } else {
            waiting.pop();
            let Some(name) = came_by.pop() else { return };
            let Ok(above) = openat(&dir, c"..", DIR_FLAGS, Mode::empty()) else { return };
            dir = above;
            removed += usize::from(unlinkat(&dir, &*name, AtFlags::REMOVEDIR).is_ok());
        }
    }
}

fn names_inside(dir: &OwnedFd) -> Vec<CString> {
    let entries = Dir::read_from(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type() == FileType::Directory);
    let names = dirs.map(|entry| entry.file_name().to_owned());
    names.filter(|name| ![c".", c".."].contains(&&**name)).take(MAX_REMOVED).collect()
}

pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Holds a place in which no guard lives. What has its name by now is another one, and not to be touched.
fn lock_alone(path: &Path) -> Option<OwnedFd> {
    let lock = open_dir(path).ok()?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    has_name(&lock, path).then_some(lock)
}

/// Whether this directory is what has the name.
fn has_name(dir: &OwnedFd, path: &Path) -> bool {
    let held = rustix::fs::fstat(dir).map(|stat| (stat.st_dev, stat.st_ino));
    let named = rustix::fs::stat(path).map(|stat| (stat.st_dev, stat.st_ino));
    held.is_ok() && held == named
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, DIR_FLAGS, Mode::empty())?)
}

const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Tries of making a place that others remove, or look at under its lock.
const MAKES: usize = 256;

/// After so many tries whoever is in the way has lost the processor, and for longer than a few microseconds.
const QUICK: usize = 64;
const SLOW: Duration = Duration::from_micros(100);

/// Between two tries of something that others have for a moment.
pub(crate) fn pause(tried: usize) {
    if tried < QUICK { std::thread::yield_now() } else { std::thread::park_timeout(SLOW) }
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
