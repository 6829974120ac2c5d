//! Which tier a test program runs on. The same suites run on the best that there is, and again in
//! `subreaper_tier` on the weakest.

use std::path::PathBuf;
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
