//! Reads `/proc`: one picture of all processes, and what is asked about single ones. Signals nobody, and somebody who
//! vanishes while being read is left out. Everything else of [`crate::sight`] and [`crate::janitor`] is made of
//! this picture.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use super::ports::{self, Port};
use crate::exempt::{EXEMPT, SHIM_ROLE};
use crate::identity::{self, BootId, Identity, Stat};
use crate::launch::TAG;
use crate::program::{FIRST_ROLE, KEEPER_ROLE, SUPERVISOR_ROLE, is_role};

/// Most bytes of an environment or command line that are read: more than the kernel takes from most programs
/// (a quarter of the stack limit, man 2 execve).
const MAX_TEXT: u64 = 4 << 20;

/// Whose a process says it is: number and start time of an owner, which of its owners, and the scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Mark {
    pub(crate) pid: u32,
    pub(crate) start: u64,
    pub(crate) number: u64,
    pub(crate) scope: u64,
}

impl Mark {
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let (owner, scope) = std::str::from_utf8(text).ok()?.split_once(':')?;
        let mut parts = owner.split('.');
        let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let number = parts.next().map_or(Some(0), |number| number.parse().ok())?;
        Some(Self { pid, start, number, scope: scope.parse().unwrap_or(0) })
    }

    /// Its owner's number and start time.
    pub(crate) fn owner(self) -> (u32, u64) {
        (self.pid, self.start)
    }
}

/// What an environment says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Marks {
    /// It may not be read.
    #[default]
    Unreadable,
    /// What is in it.
    Read {
        mark: Option<Mark>,
        /// The id of an exempt job.
        exempt: Option<String>,
    },
}

impl Marks {
    pub(crate) fn mark(&self) -> Option<Mark> {
        match self {
            Self::Unreadable => None,
            Self::Read { mark, .. } => *mark,
        }
    }

    pub(crate) fn exempt(&self) -> Option<&str> {
        match self {
            Self::Unreadable => None,
            Self::Read { exempt, .. } => exempt.as_deref(),
        }
    }
}

/// A program of ours in one of its roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Keeper,
    Supervisor,
    Shim,
    /// Number 1 of a scope's pid namespace.
    First,
}

/// A process as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) pid: u32,
    pub(crate) stat: Stat,
    /// Who it may act as; root for one that must not be looked into.
    pub(crate) uid: u32,
    /// Memory that is resident, in bytes.
    pub(crate) rss: u64,
    /// Processor time so far.
    pub(crate) cpu: Duration,
    pub(crate) marks: Marks,
    pub(crate) role: Option<Role>,
    pub(crate) cgroup: Option<String>,
    /// The pid namespace that numbers in its mark are counted in, where it bears one.
    pub(crate) namespace: Option<u64>,
}

/// All processes of a moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) boot: Option<BootId>,
    pub(crate) namespace: Option<u64>,
    /// Since the boot, of which start times are counted; in clock ticks.
    pub(crate) uptime: u64,
    /// Clock ticks in a second.
    pub(crate) ticks: u64,
    pub(crate) own: u32,
    pub(crate) uid: u32,
    /// Whether processes of other users are shown (`hidepid`, man 5 proc).
    pub(crate) whole: bool,
    pub(crate) processes: HashMap<u32, Seen>,
}

impl Snapshot {
    /// Everybody, now.
    pub(crate) fn take() -> Self {
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
        let uid = rustix::process::geteuid().as_raw();
        let entries = fs::read_dir("/proc").into_iter().flatten();
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let seen = |pid: u32| Some((pid, look_at(pid, uid, ticks, page)?));
        Self {
            boot: BootId::current(),
            namespace: identity::own_namespace(),
            uptime: uptime(ticks),
            ticks,
            own: std::process::id(),
            uid,
            whole: uid == 0 || Stat::read(1).is_some(),
            processes: numbers.filter_map(seen).collect(),
        }
    }

    /// How long ago a process began.
    pub(crate) fn age(&self, start: u64) -> Duration {
        let ticks = self.uptime.saturating_sub(start);
        Duration::from_millis(ticks.saturating_mul(1000) / self.ticks.max(1))
    }

    /// This process and those above it.
    pub(crate) fn ancestors(&self) -> Vec<u32> {
        self.above(self.own)
    }

    /// A process and those above it.
    pub(crate) fn above(&self, pid: u32) -> Vec<u32> {
        let mut line = vec![pid];
        while let Some(parent) = line.last().and_then(|pid| self.parent(*pid)) {
            // A picture of a moving thing may hold a ring.
            if line.contains(&parent) {
                break;
            }
            line.push(parent);
        }
        line
    }

    pub(crate) fn parent(&self, pid: u32) -> Option<u32> {
        let parent = self.processes.get(&pid)?.stat.parent.cast_unsigned();
        (parent > 0).then_some(parent)
    }

    /// Children by their parents.
    pub(crate) fn children(&self) -> HashMap<u32, Vec<u32>> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for (pid, seen) in &self.processes {
            children.entry(seen.stat.parent.cast_unsigned()).or_default().push(*pid);
        }
        children.values_mut().for_each(|list| list.sort_unstable());
        children
    }

    /// Everybody, parents before children. Those in a ring of parents, which only a picture of a moving thing
    /// has, are left out.
    pub(crate) fn parents_first(&self) -> Vec<u32> {
        let children = self.children();
        let is_top = |seen: &&Seen| {
            let parent = seen.stat.parent.cast_unsigned();
            parent == seen.pid || !self.processes.contains_key(&parent)
        };
        let mut order: Vec<u32> =
            self.processes.values().filter(is_top).map(|seen| seen.pid).collect();
        order.sort_unstable();
        let mut met: HashSet<u32> = order.iter().copied().collect();
        let mut at = 0;
        while let Some(pid) = order.get(at).copied() {
            let below = children.get(&pid).into_iter().flatten();
            order.extend(below.copied().filter(|child| met.insert(*child)));
            at += 1;
        }
        order
    }

    /// Whether a number is the process that had it at this start.
    pub(crate) fn has(&self, pid: u32, start: u64) -> bool {
        self.processes.get(&pid).is_some_and(|seen| seen.stat.start == start)
    }
}

fn uptime(ticks: u64) -> u64 {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let mut parts = text.split_ascii_whitespace().next().unwrap_or("0").split('.');
    let mut next = || parts.next().and_then(|part| part.parse::<u64>().ok()).unwrap_or(0);
    let (seconds, hundredths) = (next(), next());
    seconds * ticks + hundredths * ticks / 100
}

fn look_at(pid: u32, own: u32, ticks: u64, page: u64) -> Option<Seen> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = Stat::parse(&text).filter(|stat| !stat.is_dead())?;
    let uid = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let (cpu, pages) = usage(&text).unwrap_or_default();
    let cpu = Duration::from_millis(cpu.saturating_mul(1000) / ticks);
    // What is another user's is none of ours, and costs nothing then.
    let (marks, role, cgroup) = if uid == own {
        let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok();
        let cgroup = cgroup
            .and_then(|text| text.lines().find_map(|l| l.strip_prefix("0::")).map(str::to_owned));
        (marks(pid), role(pid), cgroup)
    } else {
        (Marks::Unreadable, None, None)
    };
    let namespace = marks.mark().and_then(|_| namespace_of(pid));
    let rss = pages.saturating_mul(page);
    let seen = Seen { pid, uid, rss, cpu, marks, role, cgroup, namespace, stat };
    // Its number may have been handed on while it was read.
    let still = Stat::read(pid.cast_signed())?;
    (still.start == seen.stat.start).then_some(seen)
}

/// Processor time in ticks and resident pages: fields 14, 15 and 24 of `/proc/PID/stat`.
fn usage(text: &[u8]) -> Option<(u64, u64)> {
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let pages = fields.nth(8)?.parse().ok()?;
    Some((user + system, pages))
}

fn read(pid: u32, file: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(format!("/proc/{pid}/{file}")).ok()?;
    file.take(MAX_TEXT).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// What a process's environment says, now.
pub(crate) fn marks(pid: u32) -> Marks {
    let Some(environment) = read(pid, "environ") else { return Marks::Unreadable };
    let value = |name: &str| {
        let prefix = format!("{name}=");
        let mut entries = environment.split(|byte| *byte == 0);
        entries.find_map(|entry| entry.strip_prefix(prefix.as_bytes()).map(<[u8]>::to_vec))
    };
    let mark = value(TAG).and_then(|text| Mark::parse(&text));
    let exempt = value(EXEMPT).and_then(|text| String::from_utf8(text).ok());
    Marks::Read { mark, exempt }
}

/// The role that a process was started in, by its first argument.
pub(crate) fn role(pid: u32) -> Option<Role> {
    let line = read(pid, "cmdline")?;
    let argument = OsStr::from_bytes(line.split(|byte| *byte == 0).nth(1)?);
    let roles = [
        (KEEPER_ROLE, Role::Keeper),
        (SUPERVISOR_ROLE, Role::Supervisor),
        (SHIM_ROLE, Role::Shim),
        (FIRST_ROLE, Role::First),
    ];
    roles.into_iter().find_map(|(name, role)| is_role(argument, name).then_some(role))
}

/// The command line of a process, with what looks like a secret left out.
pub(crate) fn command(pid: u32) -> Vec<String> {
    let line = read(pid, "cmdline").unwrap_or_default();
    let words = line.strip_suffix(&[0]).unwrap_or(&line).split(|byte| *byte == 0);
    let words: Vec<_> = words.map(|word| OsStr::from_bytes(word).to_owned()).collect();
    if line.is_empty() { Vec::new() } else { crate::ledger::redact(&words) }
}

/// Its share of the memory that it has resident (PSS), in bytes. Costs the kernel a walk through its pages.
pub(crate) fn pss(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The pid namespace of a process, by its inode.
fn namespace_of(pid: u32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/pid")).ok().map(|file| file.ino())
}

/// Whether somebody has this number.
pub(crate) fn lives(pid: u32) -> bool {
    Stat::read(pid.cast_signed()).is_some_and(|stat| !stat.is_dead())
}

/// Who a process is, if it still is the one that was seen.
pub(crate) fn identify(seen: &Seen) -> Option<Identity> {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::os::fd::AsFd;
    let pid = Pid::from_raw(seen.pid.cast_signed())?;
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let identity = Identity::of(seen.pid, handle.as_fd());
    (identity.start == Some(seen.stat.start)).then_some(identity)
}

/// Where these processes listen. Each network namespace among them is read once.
pub(crate) fn listening(pids: &[u32]) -> HashMap<u32, Vec<Port>> {
    let mut tables: HashMap<u64, HashMap<u64, Port>> = HashMap::new();
    let mut found = HashMap::new();
    for pid in pids {
        let Ok(namespace) = fs::metadata(format!("/proc/{pid}/ns/net")) else { continue };
        let table = tables.entry(namespace.ino()).or_insert_with(|| table(*pid));
        let sockets = sockets(*pid);
        let mut own: Vec<_> =
            sockets.iter().filter_map(|inode| table.get(inode).cloned()).collect();
        own.sort();
        own.dedup();
        if !own.is_empty() {
            found.insert(*pid, own);
        }
    }
    found
}

/// What listens in the network namespace of a process, by the inode of the socket.
fn table(pid: u32) -> HashMap<u64, Port> {
    let mut table = HashMap::new();
    for kind in ports::Kind::ALL {
        let text =
            fs::read_to_string(format!("/proc/{pid}/net/{}", kind.file())).unwrap_or_default();
        table.extend(text.lines().skip(1).filter_map(|line| ports::parse(kind, line)));
    }
    table
}

fn sockets(pid: u32) -> Vec<u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    let links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let inode = |link: std::path::PathBuf| {
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    links.filter_map(inode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen_with_what_it_costs_and_where_it_listens() {
        let own = std::process::id();
        let snapshot = Snapshot::take();
        let seen = snapshot.processes.get(&own).expect("this process");
        assert!(seen.rss > 100_000 && seen.role.is_none(), "{seen:?}");
        assert!(snapshot.has(own, seen.stat.start) && !snapshot.has(own, seen.stat.start + 1));
        assert!(snapshot.age(seen.stat.start) < Duration::from_secs(3600));
        assert_eq!(snapshot.ancestors().first(), Some(&own));
        assert!(pss(own).is_some_and(|pss| pss > 0));
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let udp = std::net::UdpSocket::bind("[::1]:0").expect("bind");
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("a socket");
        let unix = std::os::unix::net::UnixListener::bind(&path).expect("bind");
        let found = listening(&[own, 1 << 30]).remove(&own).expect("it listens");
        let at = tcp.local_addr().expect("address");
        assert!(found.contains(&Port::Tcp(at.ip(), at.port())), "{found:?}");
        let at = udp.local_addr().expect("address");
        assert!(found.contains(&Port::Udp(at.ip(), at.port())), "{found:?}");
        assert!(found.contains(&Port::Unix(path.display().to_string())), "{found:?}");
        drop((tcp, unix, udp));
        let found = listening(&[own]).remove(&own).unwrap_or_default();
        assert!(!found.contains(&Port::Unix(path.display().to_string())), "{found:?}");
    }

    #[test]
    fn marks_are_read_with_care() {
        let mark = Mark { pid: 41, start: 99, number: 1, scope: 7 };
        assert_eq!(Mark::parse(b"41.99.1:7"), Some(mark));
        for wrong in [&b""[..], b"41.99", b"41:7", b"x.99:7", b"41.-9:7", b"\xff.1:2"] {
            assert_eq!(Mark::parse(wrong), None, "{wrong:?}");
        }
    }
}
