//! Which tier a test program runs on. The same suites run on the best that there is, and again in
//! `subreaper_tier` on the weakest.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ownership::containment::{Containment, Machine, Tier};

/// What owners of this test program ask for: its name says so.
pub(crate) fn asked() -> Containment {
    static ASKED: OnceLock<Containment> = OnceLock::new();
    *ASKED.get_or_init(|| {
        let own = std::env::current_exe().expect("this program");
        let name = own.file_name().and_then(|name| name.to_str()).expect("a name");
        match name {
            name if name.starts_with("subreaper_tier") => Containment::Subreaper,
            name if name.starts_with("namespace_tier") => Containment::PidNamespace,
            _ => Containment::Auto,
        }
    })
}

/// What they get.
pub(crate) fn used() -> Tier {
    static USED: OnceLock<Tier> = OnceLock::new();
    *USED.get_or_init(|| Machine::look().choose(asked()).used.expect("the weakest at least"))
}

/// Whether scopes have pid namespaces: then what writes its own number writes one that means another outside.
pub(crate) fn is_inside() -> bool {
    asked() == Containment::PidNamespace
}

/// Our own cgroup, where scopes can have theirs. Skips loudly where they cannot.
#[expect(clippy::print_stderr, reason = "skips loudly")]
pub(crate) fn cgroup() -> Option<PathBuf> {
    let machine = Machine::look();
    if let Some(why) = machine.refusal(Tier::Cgroup) {
        eprintln!("SKIPPED: NO CGROUPS FOR SCOPES ON THIS MACHINE: {why}");
        return None;
    }
    machine.cgroup.dir
}

/// Removes the empty cgroups of an owner that was killed with its guards; the next owner would.
pub(crate) fn remove_cgroups_of(owner: super::Identity) {
    let Some(base) = Machine::look().cgroup.dir else { return };
    let head = format!("ownership-{}.{}.", owner.pid, owner.start);
    for place in std::fs::read_dir(base).into_iter().flatten().flatten() {
        if !place.file_name().to_string_lossy().starts_with(&head) {
            continue;
        }
        let cells = std::fs::read_dir(place.path()).into_iter().flatten().flatten();
        for cell in cells.filter(|cell| cell.path().is_dir()) {
            std::fs::remove_dir(cell.path()).ok();
        }
        std::fs::remove_dir(place.path()).ok();
    }
}

/// The directory of the cgroup that a child was born in.
pub(crate) fn cell(base: &Path, child: &ownership::Owned) -> PathBuf {
    let path = child.cgroup().expect("a cgroup of its own");
    let own = Machine::look().cgroup.own.expect("our own");
    let inside = path.strip_prefix(&own).expect("inside of ours");
    base.join(inside)
}

/// The directory of the cgroup in which somebody stands that an owner in ours has started.
pub(crate) fn cell_of(base: &Path, who: super::Identity) -> PathBuf {
    let own = std::fs::read_to_string(format!("/proc/{}/cgroup", who.pid)).expect("read");
    let path = own.lines().find_map(|line| line.strip_prefix("0::")).expect("version 2");
    let (_, inside) = path.rsplit_once("ownership-").expect("ours");
    base.join(format!("ownership-{inside}"))
}

pub(crate) fn is_gone(dir: &Path) {
    super::wait_for(&format!("{} is gone", dir.display()), || (!dir.exists()).then_some(()));
}
