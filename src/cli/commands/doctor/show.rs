//! The findings of [`super`] for people.

use std::io::{self, Write};

use ownership::containment::Tier;

use super::{Bounds, Contained, Directory, Findings, Guards, LimitRow, TierRow};
use crate::cli::render::text::escape;

pub(super) fn show(to: &mut dyn Write, findings: &Findings) -> io::Result<()> {
    let mut row = |name: &str, text: String| writeln!(to, "{name:<15} {}", escape(&text));
    let Contained { asked, used, tiers, cgroup, asks } = &findings.containment;
    row("containment", format!("{} ({asked} was asked for)", used.unwrap_or("none")))?;
    for TierRow { tier, used, why, .. } in tiers {
        let place = cgroup.as_ref().filter(|_| *tier == Tier::Cgroup.word());
        let of = asks.as_ref().map_or_else(String::new, |who| format!(", a scope of {who}"));
        let place = place.map(|dir| format!(", inside of {}{of}", dir.display()));
        let place = place.unwrap_or_default();
        let text = match why {
            Some(why) => format!("not used: {why}"),
            None if *used => format!("used{place}"),
            None => "not used".to_owned(),
        };
        row(&format!("  {tier}"), text)?;
    }
    let Guards { program, kind, linked, error, .. } = &findings.guards;
    let linked = linked.map_or_else(String::new, |linked| format!(" ({linked})"));
    let program = match (program, kind) {
        (Some(path), Some("self")) => {
            format!("this program, executed again: {}{linked}", path.display())
        }
        (Some(path), _) => format!("{}{linked}", path.display()),
        (None, _) => "none".to_owned(),
    };
    row("guards", program)?;
    row("", error.clone().unwrap_or_else(|| "a program was started, held and ended".to_owned()))?;
    row("state", described(&findings.state_dir))?;
    let runtime = findings.runtime_dir.as_ref();
    row("runtime", runtime.map_or_else(|| "XDG_RUNTIME_DIR is not set".to_owned(), described))?;
    let Bounds { open_files, open_files_max, processes, pid_max, cgroup_pids } = findings.limits;
    row("limits", format!("descriptors {} (up to {})", bound(open_files), bound(open_files_max)))?;
    let (processes, cgroup_pids) = (bound(processes), bound(cgroup_pids));
    let pid_max = pid_max.map_or_else(|| "unknown".to_owned(), |max| max.to_string());
    row("", format!("processes {processes}, in our cgroup {cgroup_pids}, numbers to {pid_max}"))?;
    for (at, LimitRow { key, means, not }) in findings.child_limits.iter().enumerate() {
        let why = if not.is_empty() { String::new() } else { format!(" ({})", not.join("; ")) };
        let name = if at == 0 { "of a child" } else { "" };
        row(name, format!("{key}: {}{why}", means.unwrap_or("cannot be held")))?;
    }
    let kernel = &findings.kernel;
    row("kernel", kernel.release.clone())?;
    let has = [
        ("pidfd", kernel.pidfd),
        ("lists of children", kernel.children_lists),
        ("cgroup.kill", kernel.cgroup_kill),
        ("cgroup.freeze", kernel.cgroup_freeze),
        ("hidepid", kernel.hidepid),
        ("systemd", kernel.systemd),
    ];
    let has = has.map(|(name, has)| format!("{name} {}", if has { "yes" } else { "no" }));
    row("", has.join(", "))?;
    let namespaces = if kernel.restricted_namespaces { ", restricted by AppArmor" } else { "" };
    row("", format!("user namespaces up to {}{namespaces}", kernel.user_namespaces))?;
    for remark in &findings.remarks {
        row("remark", remark.clone())?;
    }
    for problem in &findings.problems {
        row("PROBLEM", problem.clone())?;
    }
    if findings.ok {
        writeln!(to, "everything that is needed works")?;
    }
    Ok(())
}

fn described(directory: &Directory) -> String {
    let Directory { path, exists, writable, file_system, local } = directory;
    let words = [
        (!exists).then_some("not there yet"),
        Some(if *writable { "writable" } else { "NOT WRITABLE" }),
        file_system.as_deref(),
        local.map(|local| if local { "local" } else { "NOT LOCAL" }),
    ];
    let words: Vec<_> = words.into_iter().flatten().collect();
    format!("{} ({})", path.display(), words.join(", "))
}

fn bound(limit: Option<u64>) -> String {
    limit.map_or_else(|| "without limit".to_owned(), |limit| limit.to_string())
}
