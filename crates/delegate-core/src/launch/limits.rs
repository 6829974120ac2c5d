//! By what the limits of children are held on this machine, in the words of the settings; and whether they can
//! be. What is held how decides [`ownership::ration`].

use ownership::ration::{Held, Limit, Means, Offers};
use ownership::{Containment, Ration};

use crate::config::{MOST_PROCESSES, Settings};
use crate::plan::StartError;

/// The setting of a limit.
#[must_use]
pub const fn key(limit: Limit) -> &'static str {
    match limit {
        Limit::Memory => "max_memory",
        Limit::Processes => "max_processes",
        Limit::OpenFiles => "max_open_files",
        Limit::Cpu => "max_cpu_seconds",
        Limit::Nice => "child_nice",
        Limit::CpuWeight => "child_cpu_weight",
        _ => "a limit",
    }
}

/// Whether what is to hold children, and what they may use where they are `processes`, can be had here.
pub(crate) fn check(settings: &Settings, processes: bool) -> Result<(), StartError> {
    check_containment(settings.containment)?;
    // Of the other limits there is always a weaker form, and a weight is a wish.
    if !cfg!(target_os = "linux") || !processes || settings.ration.processes.is_none() {
        return Ok(());
    }
    let most = settings.ration.processes.filter(|count| *count > MOST_PROCESSES);
    if let Some(count) = most {
        let why = format!("{count} is more than the {MOST_PROCESSES} that the kernel takes");
        return Err(StartError::NoLimit { key: key(Limit::Processes), why });
    }
    let held = Offers::look(settings.containment).decide(Limit::Processes);
    match held.means {
        Some(_) => Ok(()),
        None => Err(StartError::NoLimit { key: key(held.limit), why: reasons(&held) }),
    }
}

/// Whether it can be had where it was asked for by name. The best that there is always can.
fn check_containment(asked: ownership::Containment) -> Result<(), StartError> {
    use ownership::containment::Tier;
    let tier = match asked {
        Containment::Cgroup => Tier::Cgroup,
        Containment::PidNamespace => Tier::PidNamespace,
        Containment::Auto | Containment::Subreaper | _ => return Ok(()),
    };
    let machine = ownership::Machine::look();
    match machine.refusal(tier) {
        None => Ok(()),
        // Guards ask for it when they start, and what comes of it is known then.
        Some(_) if tier == Tier::Cgroup && machine.door(asked).is_some() => Ok(()),
        Some(why) => Err(StartError::NoContainment { asked: asked.word(), why: why.to_string() }),
    }
}

/// A sentence on each limit that is asked for: by what it is held, and why not by what is better.
pub(crate) fn sentences(ration: Ration, containment: Containment) -> Vec<String> {
    if ration.is_empty() {
        return Vec::new();
    }
    let offers = Offers::look(containment);
    let sentence = |limit| {
        let held = offers.decide(limit);
        let how = held.means.map_or("without effect", Means::word);
        match reasons(&held) {
            reasons if reasons.is_empty() => format!("{}: {how}", key(limit)),
            reasons => format!("{}: {how} ({reasons})", key(limit)),
        }
    };
    ration.asked().map(sentence).collect()
}

fn reasons(held: &Held) -> String {
    held.not.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
