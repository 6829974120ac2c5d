//! What holds a scope together, as a decision: from what was asked and what this machine offers
//! ([`Machine`], seen by [`Machine::look`]) to the tier that is used, and why the others are not.
//!
//! Pure but for `look`. The module `cgroup` acts on it, `supervisor_loop` asks.

#[cfg(target_os = "linux")]
mod look;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

#[cfg(target_os = "linux")]
pub(crate) use look::cgroup_of_guards;
#[cfg(all(target_os = "linux", feature = "ledger"))]
pub(crate) use look::dir_of_cgroup;
#[cfg(target_os = "linux")]
pub use look::{file_system, limits};

/// How a scope is held together, as asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Containment {
    /// The strongest that this machine offers.
    #[default]
    Auto,
    /// By descent: guards that are subreapers, above everything that they started. Works everywhere.
    Subreaper,
    /// By descent and by a cgroup for each scope. Where there can be none, nothing is started.
    Cgroup,
}

impl Containment {
    /// All of them, in the order of their numbers on the wire.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Subreaper, Self::Cgroup];

    /// The word for it in settings and messages.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Subreaper => "subreaper",
            Self::Cgroup => "cgroup",
        }
    }

    /// What counts where an owner has a setting and a spawn of it another.
    #[must_use]
    pub const fn or(self, owner: Self) -> Self {
        match self {
            Self::Auto => owner,
            Self::Subreaper | Self::Cgroup => self,
        }
    }
}

impl fmt::Display for Containment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Not the word for a containment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownContainment(String);

impl fmt::Display for UnknownContainment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no containment is called {:?}: auto, subreaper or cgroup", self.0)
    }
}

impl std::error::Error for UnknownContainment {}

impl FromStr for Containment {
    type Err = UnknownContainment;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|known| known.word() == word);
        found.ok_or_else(|| UnknownContainment(word.to_owned()))
    }
}

/// What does hold a scope together, from the weakest on; one that stands later includes those before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Tier {
    /// See [`Containment::Subreaper`].
    Subreaper,
    /// See [`Containment::Cgroup`].
    Cgroup,
    /// A pid namespace. This version does not use it; see [`Why::NotInThisVersion`].
    PidNamespace,
}

impl Tier {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Subreaper, Self::Cgroup, Self::PidNamespace];

    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Subreaper => "subreaper",
            Self::Cgroup => "cgroup",
            Self::PidNamespace => "pid-namespace",
        }
    }
}

/// What this machine has of cgroup v2, seen from one process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cgroup2 {
    /// Where the hierarchy is mounted. It may stand beside one of version 1 ("hybrid").
    pub mount: Option<PathBuf>,
    /// The process's own cgroup, as `/proc/self/cgroup` names it.
    pub own: Option<String>,
    /// The directory of that; `None` when it is not below the mount (another cgroup namespace).
    pub dir: Option<PathBuf>,
    /// Controllers that are handed on to the cgroups inside of it.
    pub handed_on: Vec<String>,
    /// Whether it is threaded or in a threaded subtree: then no process can be born inside.
    pub threaded: bool,
    /// What became of making a cgroup inside of it: the error number, if it could not be made.
    pub made: Option<Result<(), i32>>,
    /// Whether that had `cgroup.kill` (5.14).
    pub kill: bool,
    /// Whether that had `cgroup.freeze` (5.2).
    pub freeze: bool,
    /// Whether there is code for `clone3` on this processor.
    pub into: bool,
}

/// What this machine offers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// The kernel's release.
    pub kernel: String,
    /// Whether processes can be held by descriptors that do not mean another one later (5.3).
    pub pidfd: bool,
    /// Whether `/proc` is there and of this pid namespace.
    pub proc: bool,
    /// Whether `/proc` hides other users' processes (`hidepid`).
    pub hidepid: bool,
    /// Whether the kernel lists the children of a thread (`CONFIG_PROC_CHILDREN`).
    pub children: bool,
    /// Cgroups of version 2.
    pub cgroup: Cgroup2,
    /// Whether systemd is process 1.
    pub systemd: bool,
    /// The socket of this user's systemd, if it is there.
    pub systemd_user: Option<PathBuf>,
    /// How many user namespaces this user may have.
    pub user_namespaces: u64,
    /// How many pid namespaces this user may have.
    pub pid_namespaces: u64,
    /// Whether AppArmor restricts user namespaces of programs without a profile.
    pub restricted_namespaces: bool,
}

/// Limits that bound how much can be started and held; `None` for no limit, or where it is not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Open descriptors: soft and hard limit.
    pub open_files: (Option<u64>, Option<u64>),
    /// Processes of this user: soft and hard limit.
    pub processes: (Option<u64>, Option<u64>),
    /// The highest process number.
    pub pid_max: Option<u64>,
    /// What our own cgroup, or one above it, allows: processes and threads.
    pub cgroup_pids: Option<u64>,
}

/// Systems without ownership have nothing of it.
#[cfg(not(target_os = "linux"))]
impl Machine {
    /// What this process sees.
    #[must_use]
    pub fn look() -> Self {
        Self::default()
    }
}

/// The limits of this process.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn limits() -> Limits {
    Limits::default()
}

/// The kind of file system on which a path lies.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn file_system(_path: &std::path::Path) -> Option<String> {
    None
}

/// Why a tier is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// Another one was asked for.
    NotAsked,
    /// What only 5.3 and later have is missing.
    NoPidfd,
    /// `/proc` is missing or of another pid namespace.
    NoProc,
    /// No hierarchy of version 2 is mounted.
    NotMounted,
    /// Our own cgroup is not below the mount.
    OutOfSight,
    /// Our own cgroup is part of a threaded subtree.
    Threaded,
    /// No cgroup could be made in this directory.
    NotWritable {
        /// Our own cgroup.
        dir: PathBuf,
        /// The error number of making one inside.
        errno: i32,
    },
    /// The kernel is older than 5.14.
    NoKill,
    /// No code for this processor.
    NoInto,
    /// It is not built.
    NotInThisVersion,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAsked => f.write_str("another one was asked for"),
            Self::NoPidfd => f.write_str("the kernel has no pidfd_open (Linux 5.3)"),
            Self::NoProc => f.write_str("/proc is missing or of another pid namespace"),
            Self::NotMounted => f.write_str("no cgroup2 hierarchy is mounted"),
            Self::OutOfSight => f.write_str("our cgroup is not below the cgroup2 mount"),
            Self::Threaded => f.write_str("our cgroup is threaded: no process can be born in it"),
            Self::NotWritable { dir, errno } => {
                let error = std::io::Error::from_raw_os_error(*errno);
                write!(f, "no cgroup can be made in {}: {error}", dir.display())
            }
            Self::NoKill => f.write_str("the kernel has no cgroup.kill (Linux 5.14)"),
            Self::NoInto => f.write_str("clone3 into a cgroup is not built for this processor"),
            Self::NotInThisVersion => f.write_str("this version does not use it"),
        }
    }
}

/// What is used, and why not the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The tier that is used. `None` when not even the weakest can be had, or when what was asked for cannot:
    /// then nothing is started.
    pub used: Option<Tier>,
    /// Every tier that is not part of it.
    pub not: Vec<(Tier, Why)>,
}

impl Machine {
    /// What is used here when this is asked for.
    #[must_use]
    pub fn choose(&self, asked: Containment) -> Choice {
        let refusals = Tier::ALL.map(|tier| (tier, self.refusal(tier)));
        let offered = |tier: Tier| refusals.iter().any(|(t, why)| *t == tier && why.is_none());
        let wanted = match asked {
            Containment::Auto => {
                refusals.iter().rev().find(|(_, why)| why.is_none()).map(|(t, _)| *t)
            }
            Containment::Subreaper => Some(Tier::Subreaper),
            Containment::Cgroup => Some(Tier::Cgroup),
        };
        let used = wanted.filter(|tier| offered(*tier) && offered(Tier::Subreaper));
        let not = refusals.into_iter().filter(|(tier, _)| used.is_none_or(|used| *tier > used));
        let not = not.map(|(tier, why)| (tier, why.unwrap_or(Why::NotAsked))).collect();
        Choice { used, not }
    }

    /// Why this tier cannot be had here.
    #[must_use]
    pub fn refusal(&self, tier: Tier) -> Option<Why> {
        match tier {
            Tier::Subreaper if !self.pidfd => Some(Why::NoPidfd),
            Tier::Subreaper if !self.proc => Some(Why::NoProc),
            Tier::Subreaper => None,
            Tier::Cgroup => self.cgroup.refusal(),
            Tier::PidNamespace => Some(Why::NotInThisVersion),
        }
    }

    /// Whether a systemd of this user could give a cgroup that may be written, where ours may not.
    #[must_use]
    pub fn has_a_door(&self) -> bool {
        self.systemd_user.is_some()
            && matches!(self.cgroup.refusal(), Some(Why::NotWritable { .. } | Why::Threaded))
    }
}

impl Cgroup2 {
    /// Why no scope can have a cgroup here.
    #[must_use]
    pub fn refusal(&self) -> Option<Why> {
        if self.mount.is_none() {
            return Some(Why::NotMounted);
        }
        let Some(dir) = &self.dir else { return Some(Why::OutOfSight) };
        if self.threaded {
            return Some(Why::Threaded);
        }
        match self.made {
            Some(Ok(())) if !self.kill => Some(Why::NoKill),
            Some(Ok(())) if !self.into => Some(Why::NoInto),
            Some(Ok(())) => None,
            made => {
                let errno = made.and_then(Result::err).unwrap_or(NO_ENTRY);
                Some(Why::NotWritable { dir: dir.clone(), errno })
            }
        }
    }
}

/// `ENOENT`: nobody has tried.
const NO_ENTRY: i32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which everything can be had.
    fn best() -> Machine {
        Machine {
            pidfd: true,
            proc: true,
            cgroup: Cgroup2 {
                mount: Some("/m".into()),
                own: Some("/a".into()),
                dir: Some("/m/a".into()),
                made: Some(Ok(())),
                kill: true,
                freeze: true,
                into: true,
                ..Cgroup2::default()
            },
            ..Machine::default()
        }
    }

    #[test]
    fn the_strongest_that_is_offered_is_used() {
        let choice = best().choose(Containment::Auto);
        assert_eq!(choice.used, Some(Tier::Cgroup));
        assert_eq!(choice.not, [(Tier::PidNamespace, Why::NotInThisVersion)]);
        let choice = best().choose(Containment::Subreaper);
        assert_eq!(choice.used, Some(Tier::Subreaper));
        assert_eq!(choice.not[0], (Tier::Cgroup, Why::NotAsked));
    }

    type Spoil = fn(&mut Cgroup2);

    /// Every fact that can be missing, with what is said then.
    const SPOILED: [(Spoil, Why); 7] = [
        (|cgroup| cgroup.mount = None, Why::NotMounted),
        (|cgroup| cgroup.dir = None, Why::OutOfSight),
        (|cgroup| cgroup.threaded = true, Why::Threaded),
        (|cgroup| cgroup.kill = false, Why::NoKill),
        (|cgroup| cgroup.into = false, Why::NoInto),
        (|cgroup| cgroup.made = Some(Err(13)), Why::NotWritable { dir: PathBuf::new(), errno: 13 }),
        (|cgroup| cgroup.made = None, Why::NotWritable { dir: PathBuf::new(), errno: NO_ENTRY }),
    ];

    /// Every combination of what can be missing: the reason is that of the first, auto falls back, and what
    /// was asked for by name is refused.
    #[test]
    fn whatever_is_missing_is_said_and_auto_falls_back() {
        for missing in 1..1_u32 << SPOILED.len() {
            let mut machine = best();
            let mut kinds = Vec::new();
            for (at, (spoil, why)) in SPOILED.iter().enumerate() {
                if missing & 1 << at != 0 {
                    spoil(&mut machine.cgroup);
                    kinds.push(std::mem::discriminant(why));
                }
            }
            let refused = machine.refusal(Tier::Cgroup).expect("refused");
            assert!(kinds.contains(&std::mem::discriminant(&refused)), "{missing:b}: {refused:?}");
            let choice = machine.choose(Containment::Auto);
            assert_eq!(choice.used, Some(Tier::Subreaper), "{missing:b}");
            assert_eq!(choice.not[0], (Tier::Cgroup, refused.clone()));
            let choice = machine.choose(Containment::Cgroup);
            assert_eq!(choice.used, None, "{missing:b}");
            assert!(choice.not.contains(&(Tier::Cgroup, refused)));
        }
    }

    /// Freezing is a help, not a need; controllers that are handed on bind only the cgroup that does so.
    #[test]
    fn what_is_only_a_help_is_not_asked_for() {
        let mut machine = best();
        machine.cgroup.freeze = false;
        machine.cgroup.handed_on = vec!["pids".into()];
        assert_eq!(machine.choose(Containment::Auto).used, Some(Tier::Cgroup));
    }

    #[test]
    fn without_the_weakest_there_is_none() {
        for (pidfd, proc, why) in [(false, true, Why::NoPidfd), (true, false, Why::NoProc)] {
            let machine = Machine { pidfd, proc, ..best() };
            for asked in Containment::ALL {
                let choice = machine.choose(asked);
                assert_eq!(choice.used, None, "{asked}");
                assert!(choice.not.contains(&(Tier::Subreaper, why.clone())), "{asked}");
            }
        }
    }

    #[test]
    fn a_door_is_named_only_where_it_helps() {
        let mut machine = best();
        machine.systemd_user = Some("/run/user/1/systemd/private".into());
        assert!(!machine.has_a_door());
        machine.cgroup.made = Some(Err(13));
        assert!(machine.has_a_door());
        machine.cgroup.mount = None;
        assert!(!machine.has_a_door());
    }

    #[test]
    fn words_come_back() {
        for asked in Containment::ALL {
            assert_eq!(asked.word().parse(), Ok(asked));
            assert_eq!(
                asked.or(Containment::Cgroup) == Containment::Cgroup,
                asked != Containment::Subreaper
            );
        }
        assert!("jail".parse::<Containment>().is_err());
    }
}
