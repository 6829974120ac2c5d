//! Looks at the machine: the one file of [`super`] that does. Whether a cgroup can be had is tried and not
//! guessed, by making one and removing it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{PidfdFlags, Resource, getrlimit, pidfd_open};

use super::LEAF;
use super::NoNamespace;
use super::{Cgroup2, Limits, Machine};
use crate::hook;
use crate::sys::namespace;

impl Machine {
    /// What this process sees. Makes a cgroup beside its own for a moment, where it may.
    #[must_use]
    pub fn look() -> Self {
        let cgroup = cgroup_tried();
        let own = rustix::process::getpid();
        Self {
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_default(),
            pidfd: pidfd_open(own, PidfdFlags::empty()).is_ok(),
            proc: fs::read_link("/proc/self")
                .is_ok_and(|to| to.to_str() == Some(&own.as_raw_nonzero().to_string())),
            hidepid: mounts().any(|mount| mount.kind == "proc" && hides(&mount.options)),
            children: Path::new("/proc/thread-self/children").exists() && !hook::is_off("lists"),
            cgroup,
            systemd: Path::new(BOOTED).is_dir(),
            systemd_user: systemd_user(),
            root: rustix::process::geteuid().is_root(),
            scope: None,
            user_namespaces: number("/proc/sys/user/max_user_namespaces"),
            pid_namespaces: number("/proc/sys/user/max_pid_namespaces"),
            restricted_namespaces: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
                != 0,
            rooted: has_another_root(),
            namespace: (!hook::is_off("namespace")).then(try_namespace),
        }
    }
}

/// As much of it as says whether a systemd is to be asked for a cgroup ([`Machine::door`]).
pub(crate) fn at_the_door() -> Machine {
    let systemd_user = systemd_user();
    let systemd = Path::new(BOOTED).is_dir();
    // Where there is nobody to ask nothing is tried.
    let cgroup =
        if systemd || systemd_user.is_some() { cgroup_tried() } else { Cgroup2::default() };
    let root = rustix::process::geteuid().is_root();
    Machine { cgroup, systemd, systemd_user, root, ..Machine::default() }
}

/// Facts about cgroups, and whether one can be made.
fn cgroup_tried() -> Cgroup2 {
    let mut cgroup = cgroup_of_guards();
    try_to_make(&mut cgroup);
    cgroup
}

/// Is there where systemd is process 1 (man 3 sd_booted).
const BOOTED: &str = "/run/systemd/system";

/// All steps that a scope takes, with processes that end at once. Tried for each look: it takes a millisecond, and what an
/// administrator changes counts from then on.
fn try_namespace() -> Result<super::Namespaces, NoNamespace> {
    match namespace::probe(false) {
        Ok(()) => Ok(super::Namespaces::Alone),
        // With the right to, the user namespace is not what is missing.
        Err(failed) if rustix::process::geteuid().is_root() && failed.errno != libc::EPERM => {
            Err(failed)
        }
        Err(_) => namespace::probe(true).map(|()| super::Namespaces::InUserNamespace),
    }
}

/// Whether our root is not that of the first process of our mounts: `chroot`.
fn has_another_root() -> bool {
    fs::read_to_string("/proc/self/mountinfo")
        .is_ok_and(|text| !text.lines().filter_map(mount).any(|mount| mount.at == Path::new("/")))
}

/// The limits of this process.
#[must_use]
pub fn limits() -> Limits {
    let of = |resource| {
        let limit = getrlimit(resource);
        (limit.current, limit.maximum)
    };
    Limits {
        open_files: of(Resource::Nofile),
        processes: of(Resource::Nproc),
        pid_max: line("/proc/sys/kernel/pid_max").and_then(|text| text.parse().ok()),
        cgroup_pids: cgroup_pids(),
    }
}

/// The kind of file system on which a path lies, as `/proc/self/mountinfo` names it.
#[must_use]
pub fn file_system(path: &Path) -> Option<String> {
    let path = path.ancestors().find_map(|path| path.canonicalize().ok())?;
    let around = mounts().filter(|mount| path.starts_with(&mount.at));
    // Of several at one place the last one hides the others.
    around.max_by_key(|mount| mount.at.components().count()).map(|mount| mount.kind)
}

/// The lowest `pids.max` from our own cgroup up, of whichever version has that controller.
fn cgroup_pids() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let names_it = controllers.split(',').any(|name| name == "pids");
        names_it.then(|| path.to_owned())
    });
    let (kind, path) = match path {
        Some(path) => ("cgroup", path),
        None => ("cgroup2", own_path(&own)?),
    };
    let is_it = |mount: &Mount| {
        mount.kind == kind && (kind == "cgroup2" || mount.options.split(',').any(|o| o == "pids"))
    };
    let mount = mounts().find(is_it)?;
    let dir = joined(&mount.at, &mount.root, &path)?;
    let up = dir.ancestors().take_while(|dir| dir.starts_with(&mount.at));
    up.filter_map(|dir| line(dir.join("pids.max"))?.parse().ok()).min()
}

/// The processors for which `sys::into_cgroup` has code.
const HAS_CODE: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// Facts about cgroups that cost nothing but reading.
pub(crate) fn cgroup_of_guards() -> Cgroup2 {
    let mut seen = Cgroup2 { into: HAS_CODE, ..Cgroup2::default() };
    let mount = mounts().find(|mount| mount.kind == "cgroup2");
    seen.own = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| own_path(&text));
    let Some(mount) = mount else { return seen };
    if let Some(own) = &seen.own {
        let dir = joined(&mount.at, &mount.root, own).filter(|dir| dir.is_dir());
        seen.dir = dir.map(|dir| base_of(&dir));
    }
    seen.mount = Some(mount.at);
    if let Some(dir) = &seen.dir {
        // The root of the hierarchy has no such file, and is no threaded one.
        seen.threaded = line(dir.join("cgroup.type")).is_some_and(|kind| kind != "domain");
        let handed_on = line(dir.join("cgroup.subtree_control")).unwrap_or_default();
        seen.handed_on = handed_on.split_ascii_whitespace().map(str::to_owned).collect();
    }
    seen
}

/// The directory of a cgroup of version 2, whose path is as `/proc/PID/cgroup` writes it. `None` where it is not mounted.
#[must_use]
pub fn dir_of(path: &Path) -> Option<PathBuf> {
    dir_of_cgroup(path.to_str()?)
}

pub(crate) fn dir_of_cgroup(path: &str) -> Option<PathBuf> {
    let mount = mounts().find(|mount| mount.kind == "cgroup2")?;
    joined(&mount.at, &mount.root, path)
}

/// The cgroup in which owner and guards began: they may have moved into a leaf of it.
pub(crate) fn base_of(dir: &Path) -> PathBuf {
    let parent = dir.parent().filter(|_| dir.file_name().is_some_and(|name| name == LEAF));
    parent.unwrap_or(dir).to_owned()
}

/// Our own cgroup of version 1 for this controller: `None` where none has it, `Some(None)` where ours is not
/// below its mount.
pub(crate) fn group_v1(controller: &str) -> Option<Option<PathBuf>> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let names = |list: &str| list.split(',').any(|name| name == controller);
    let path = own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        names(controllers).then_some(path)
    })?;
    let mount = mounts().find(|mount| mount.kind == "cgroup" && names(&mount.options));
    let dir = mount.and_then(|mount| joined(&mount.at, &mount.root, path));
    Some(dir.filter(|dir| dir.is_dir()))
}

/// Makes a cgroup, sees what it has and removes it.
fn try_to_make(seen: &mut Cgroup2) {
    let Some(dir) = seen.dir.as_ref().filter(|_| !seen.threaded) else { return };
    let dir = dir.join(format!("ownership-look-{}", std::process::id()));
    match fs::create_dir(&dir) {
        Ok(()) => {}
        // Another thread looks too, or one of this number did not come to removing it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => {
            seen.made = Some(Err(error.raw_os_error().unwrap_or(libc::EIO)));
            return;
        }
    }
    seen.made = Some(Ok(()));
    seen.kill = dir.join("cgroup.kill").exists();
    seen.freeze = dir.join("cgroup.freeze").exists();
    // Fails only where another thread was quicker.
    drop(fs::remove_dir(&dir));
}

/// Our cgroup of version 2: the line that names no controller.
fn own_path(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// The directory of a cgroup below a mount whose root it has. `None` when it is not below it.
fn joined(mount: &Path, root: &str, own: &str) -> Option<PathBuf> {
    let inside = own.strip_prefix(root.trim_end_matches('/'))?;
    let inside = inside.trim_start_matches('/');
    // One of another namespace is written with dots.
    let foreign = Path::new(inside).components().any(|part| part.as_os_str() == "..");
    (!foreign && (root == "/" || own.len() == root.len() || own[root.len()..].starts_with('/')))
        .then(|| if inside.is_empty() { mount.to_owned() } else { mount.join(inside) })
}

struct Mount {
    /// What of the file system stands there.
    root: String,
    at: PathBuf,
    kind: String,
    /// Of the mount and of the file system.
    options: String,
}

/// `/proc/self/mountinfo` (man 5 proc_pid_mountinfo).
fn mounts() -> impl Iterator<Item = Mount> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(mount).collect::<Vec<_>>().into_iter()
}

fn mount(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (root, at, own) = (before.next()?, before.next()?, before.next()?);
    let mut after = after.split(' ');
    let kind = after.next()?.to_owned();
    let options = format!("{own},{}", after.nth(1)?);
    Some(Mount { root: unescaped(root), at: unescaped(at).into(), kind, options })
}

/// Blanks and backslashes are written as three octal digits.
fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let digits = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(digits.map_or('\\', char::from));
        rest = if digits.is_some() { &after[3..] } else { after };
    }
    out + rest
}

/// Whether a `/proc` shows only our own processes.
fn hides(options: &str) -> bool {
    let hidden = options.split(',').find_map(|option| option.strip_prefix("hidepid="));
    hidden.is_some_and(|how| !matches!(how, "0" | "off"))
}

fn systemd_user() -> Option<PathBuf> {
    let socket = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?).join("systemd/private");
    socket.exists().then_some(socket)
}

fn line(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// 0 where it is not told.
fn number(path: &str) -> u64 {
    line(path).and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_read_with_its_blanks() {
        let line =
            r"31 24 0:27 / /sys/fs/cg\040two rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        let mount = mount(line).expect("a mount");
        assert_eq!((mount.kind.as_str(), mount.root.as_str()), ("cgroup2", "/"));
        assert_eq!(mount.at, Path::new("/sys/fs/cg two"));
        assert_eq!(mount.options, "rw,nosuid,rw,nsdelegate");
        assert!(super::mount("31 24 0:27 / /sys").is_none());
        assert_eq!(unescaped(r"a\134b\"), r"a\b\");
    }

    #[test]
    fn only_what_is_below_the_mount_is_found() {
        let found = |root, own| joined(Path::new("/m"), root, own);
        assert_eq!(found("/", "/"), Some("/m".into()));
        assert_eq!(found("/", "/a/b"), Some("/m/a/b".into()));
        // A container: its cgroup is what is mounted.
        assert_eq!(found("/a", "/a"), Some("/m".into()));
        assert_eq!(found("/a", "/a/b"), Some("/m/b".into()));
        assert_eq!(found("/a", "/ab"), None);
        assert_eq!(found("/a", "/b"), None);
        assert_eq!(found("/", "/../x"), None);
    }

    #[test]
    fn hidden_processes_are_seen_by_the_options() {
        assert!(hides("rw,hidepid=2") && hides("hidepid=invisible"));
        assert!(!hides("rw,hidepid=off") && !hides("rw"));
    }

    #[test]
    fn this_machine_has_the_weakest() {
        let machine = Machine::look();
        assert!(machine.pidfd && machine.proc, "{machine:?}");
        assert!(limits().open_files.0.is_some_and(|files| files > 0));
    }
}
