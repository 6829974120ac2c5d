//! What holds a scope together, as a decision: from what was asked and what this machine offers
//! ([`Machine`], seen by [`Machine::look`]) to the tier that is used, and why the others are not.
//!
//! Pure but for `look`. The module `cgroup` acts on it, `supervisor_loop` asks.

#[cfg(target_os = "linux")]
mod look;
mod why;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

#[cfg(all(target_os = "linux", feature = "ledger"))]
pub(crate) use look::dir_of_cgroup;
#[cfg(target_os = "linux")]
pub(crate) use look::{at_the_door, base_of, cgroup_of_guards, group_v1};
#[cfg(target_os = "linux")]
pub use look::{dir_of, file_system, limits};

pub use why::{Refusal, Why};

/// The cgroup inside of its own one into which an owner moves with its guards where controllers are to be handed on
/// ([`crate::ration`]).
pub(crate) const LEAF: &str = "ownership-leaf";

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
    /// By descent, by a pid namespace for each scope, and by a cgroup where there can be one. Never what
    /// [`Self::Auto`] takes: it changes what a child sees. Where there can be no namespace, nothing is started.
    PidNamespace,
}

impl Containment {
    /// All of them, in the order of their numbers on the wire.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Subreaper, Self::Cgroup, Self::PidNamespace];

    /// The word for it in settings and messages.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Subreaper => "subreaper",
            Self::Cgroup => "cgroup",
            Self::PidNamespace => "pid-namespace",
        }
    }

    /// What counts where an owner has a setting and a spawn of it another.
    #[must_use]
    pub const fn or(self, owner: Self) -> Self {
        match self {
            Self::Auto => owner,
            Self::Subreaper | Self::Cgroup | Self::PidNamespace => self,
        }
    }
}

impl fmt::Display for Containment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The words for a containment, as help and errors say them.
pub const CHOICES: &str = "auto, subreaper, cgroup or pid-namespace";

/// Not the word for a containment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownContainment(String);

impl fmt::Display for UnknownContainment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no containment is called {:?}: {CHOICES}", self.0)
    }
}

impl std::error::Error for UnknownContainment {}

impl FromStr for Containment {
    type Err = UnknownContainment;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        // Keys of a configuration are written with underscores.
        let word_of = word.replace('_', "-");
        let found = Self::ALL.into_iter().find(|known| known.word() == word_of);
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
    /// See [`Containment::PidNamespace`]. It has a cgroup only where there can be one.
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
    /// Whether this process is root.
    pub root: bool,
    /// What became of asking a systemd for a scope ([`Machine::door`]): its cgroup, or why there is none. Guards ask when
    /// they start ([`crate::Owner::no_scope`]); `None` where nobody has asked.
    pub scope: Option<Result<PathBuf, String>>,
    /// How many user namespaces this user may have.
    pub user_namespaces: u64,
    /// How many pid namespaces this user may have.
    pub pid_namespaces: u64,
    /// Whether AppArmor restricts user namespaces of programs without a profile.
    pub restricted_namespaces: bool,
    /// Whether this process has no root directory of its own (`chroot`): then it may make no user namespace.
    pub rooted: bool,
    /// What became of making a pid namespace as a scope gets one, with its own `/proc`. `None` where nobody tried.
    pub namespace: Option<Result<Namespaces, NoNamespace>>,
}

/// Which systemd can be asked for a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Systemd {
    /// That of our user.
    Users,
    /// That of the machine.
    Machines,
}

impl fmt::Display for Systemd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Users => "this user's systemd",
            Self::Machines => "the machine's systemd",
        })
    }
}

/// How a pid namespace is had here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Namespaces {
    /// Alone: we have the right to.
    Alone,
    /// In a user namespace, which gives anybody that right over what is inside.
    InUserNamespace,
}

/// The step at which a pid namespace could not be had, and the error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoNamespace {
    /// The step.
    pub step: NamespaceStep,
    /// The error number.
    pub errno: i32,
}

/// The steps to a pid namespace, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NamespaceStep {
    /// A process in a new one, and in a new user namespace where we have no right of our own.
    Clone,
    /// Our own user and group, inside.
    Map,
    /// A process with mounts of its own.
    Mounts,
    /// `/proc` for what is inside.
    Proc,
}

impl NamespaceStep {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Clone, Self::Map, Self::Mounts, Self::Proc];

    const fn words(self) -> &'static str {
        match self {
            Self::Clone => "no process can be started in a new pid namespace",
            Self::Map => "our user cannot be had in a new user namespace",
            Self::Mounts => "no process can be started with mounts of its own",
            Self::Proc => "/proc cannot be mounted in a new pid namespace",
        }
    }
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
                let mut taken = refusals.iter().rev().filter(|(t, _)| *t != Tier::PidNamespace);
                taken.find(|(_, why)| why.is_none()).map(|(t, _)| *t)
            }
            Containment::PidNamespace => Some(Tier::PidNamespace),
            Containment::Subreaper => Some(Tier::Subreaper),
            Containment::Cgroup => Some(Tier::Cgroup),
        };
        let used = wanted.filter(|tier| offered(*tier) && offered(Tier::Subreaper));
        // A pid namespace does not need a cgroup, and takes one where it can.
        let without =
            |tier: Tier, used: Tier| tier > used || used == Tier::PidNamespace && !offered(tier);
        let not = refusals
            .iter()
            .filter(|(tier, _)| used.is_none_or(|used| without(*tier, used)))
            .cloned()
            .collect::<Vec<_>>()
            .into_iter();
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
            Tier::Cgroup => match (self.cgroup.refusal(), &self.scope) {
                (Some(_), Some(Ok(_))) => None,
                (Some(own), Some(Err(said))) => {
                    Some(Why::NoScope { own: Box::new(own), said: said.clone() })
                }
                (own, _) => own,
            },
            Tier::PidNamespace => match self.namespace {
                Some(Ok(_)) => None,
                Some(Err(failed)) => {
                    Some(Why::NoNamespace { failed, reason: self.reason(failed.step) })
                }
                None => Some(Why::NotTried),
            },
        }
    }

    /// Why it failed at this step, as far as it can be seen.
    fn reason(&self, step: NamespaceStep) -> Refusal {
        let none = self.pid_namespaces == 0 || self.user_namespaces == 0;
        if none && step == NamespaceStep::Clone {
            Refusal::Limit
        } else if self.restricted_namespaces {
            Refusal::AppArmor
        } else if self.rooted && step == NamespaceStep::Clone {
            Refusal::Root
        } else if step == NamespaceStep::Proc {
            Refusal::Covered
        } else {
            Refusal::Unseen
        }
    }

    /// Which systemd guards ask for a cgroup that may be written, where ours may not. That of the machine is asked only
    /// by root, and only for what was asked for by name.
    #[must_use]
    pub fn door(&self, asked: Containment) -> Option<Systemd> {
        let shut = matches!(self.cgroup.refusal(), Some(Why::NotWritable { .. } | Why::Threaded));
        match asked {
            _ if !shut || !self.cgroup.into => None,
            Containment::Subreaper => None,
            _ if self.systemd_user.is_some() => Some(Systemd::Users),
            Containment::Cgroup if self.root && self.systemd => Some(Systemd::Machines),
            Containment::Auto | Containment::Cgroup | Containment::PidNamespace => None,
        }
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
            user_namespaces: 9,
            pid_namespaces: 9,
            namespace: Some(Ok(Namespaces::Alone)),
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
        assert_eq!(choice.not, [(Tier::PidNamespace, Why::NotAsked)]);
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

    /// It is never taken unasked, and where it is refused it says the step and the remedy. A cgroup is beside it where
    /// there can be one.
    #[test]
    fn a_pid_namespace_is_had_by_name_alone() {
        let mut machine = best();
        assert_eq!(machine.choose(Containment::Auto).used, Some(Tier::Cgroup));
        let choice = machine.choose(Containment::PidNamespace);
        assert_eq!((choice.used, choice.not), (Some(Tier::PidNamespace), Vec::new()));
        machine.cgroup.mount = None;
        let choice = machine.choose(Containment::PidNamespace);
        assert_eq!(choice.used, Some(Tier::PidNamespace));
        assert_eq!(choice.not, [(Tier::Cgroup, Why::NotMounted)]);
        let unseen = |step| match step {
            NamespaceStep::Proc => Refusal::Covered,
            NamespaceStep::Clone | NamespaceStep::Map | NamespaceStep::Mounts => Refusal::Unseen,
        };
        let limit = |step| match step {
            NamespaceStep::Clone => Refusal::Limit,
            NamespaceStep::Map | NamespaceStep::Mounts | NamespaceStep::Proc => unseen(step),
        };
        for step in NamespaceStep::ALL {
            let failed = NoNamespace { step, errno: 1 };
            machine.namespace = Some(Err(failed));
            for (spoil, reason) in [
                ((|m| m.pid_namespaces = 0) as fn(&mut Machine), limit(step)),
                (|m| m.restricted_namespaces = true, Refusal::AppArmor),
                (|_| (), unseen(step)),
            ] {
                let mut machine = machine.clone();
                spoil(&mut machine);
                let choice = machine.choose(Containment::PidNamespace);
                let why = Why::NoNamespace { failed, reason };
                assert!(why.to_string().contains(step.words()), "{why}");
                assert_eq!(choice.used, None, "{step:?}");
                assert!(choice.not.contains(&(Tier::PidNamespace, why)), "{step:?}");
                assert_eq!(machine.choose(Containment::Auto).used, Some(Tier::Subreaper));
            }
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

    /// Every machine that differs in what decides, and everything that can be asked for.
    #[test]
    fn a_door_is_where_it_helps_and_the_machines_only_when_asked() {
        let both = [false, true];
        for asked in Containment::ALL {
            for (users, machines, root) in
                both.iter().flat_map(|u| both.iter().flat_map(|m| both.map(|r| (*u, *m, r))))
            {
                for (made, threaded) in
                    [(None, true), (Some(Err(13)), false), (Some(Ok(())), false)]
                {
                    let mut machine = best();
                    machine.systemd_user = users.then(|| "/r/systemd/private".into());
                    (machine.systemd, machine.root) = (machines, root);
                    (machine.cgroup.made, machine.cgroup.threaded) = (made, threaded);
                    let helps = made != Some(Ok(())) && asked != Containment::Subreaper;
                    let by_name = asked == Containment::Cgroup && root && machines;
                    let expected = match (helps, users, by_name) {
                        (true, true, _) => Some(Systemd::Users),
                        (true, false, true) => Some(Systemd::Machines),
                        _ => None,
                    };
                    assert_eq!(machine.door(asked), expected, "{asked} {machine:?}");
                }
            }
        }
        let mut machine = best();
        machine.systemd_user = Some("/r/systemd/private".into());
        machine.cgroup.made = Some(Err(13));
        machine.cgroup.into = false;
        assert_eq!(machine.door(Containment::Auto), None, "nobody could be born in it");
        machine.cgroup.into = true;
        machine.cgroup.mount = None;
        assert_eq!(machine.door(Containment::Auto), None, "nobody could see it");
    }

    #[test]
    fn what_a_systemd_gave_is_used_and_what_it_said_is_told() {
        let mut machine = best();
        machine.cgroup.made = Some(Err(13));
        assert_eq!(machine.choose(Containment::Auto).used, Some(Tier::Subreaper));
        machine.scope = Some(Ok("/m/x.scope".into()));
        assert_eq!(machine.choose(Containment::Auto).used, Some(Tier::Cgroup));
        assert_eq!(machine.choose(Containment::Cgroup).used, Some(Tier::Cgroup));
        machine.scope = Some(Err("it hung up".into()));
        let choice = machine.choose(Containment::Cgroup);
        assert_eq!(choice.used, None);
        let (_, why) = &choice.not[1];
        let why = why.to_string();
        assert!(why.contains("no cgroup can be made in /m/a"), "{why}");
        assert!(why.ends_with("there is none: it hung up"), "{why}");
    }

    #[test]
    fn words_come_back() {
        for asked in Containment::ALL {
            assert_eq!(asked.word().parse(), Ok(asked));
            assert_eq!(asked.word().replace('-', "_").parse(), Ok(asked));
            let or = asked.or(Containment::Cgroup);
            let wanted = if asked == Containment::Auto { Containment::Cgroup } else { asked };
            assert_eq!(or, wanted);
        }
        assert!("jail".parse::<Containment>().is_err());
    }
}
