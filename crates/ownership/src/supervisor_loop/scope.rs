//! Before a keeper begins: a scope of a systemd, where that can give a cgroup and our own place cannot. The keeper
//! enters it while it has nobody, and everything that it starts is born in there; the owner stays where it is.
//! [`crate::containment`] decides whether to ask, [`crate::systemd`] asks.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::containment::asked;
use super::set_up::role_numbers;
use crate::containment::{Containment, Systemd, at_the_door};
use crate::identity::{self, Stat};
use crate::{hook, systemd};

/// What the first start of an owner may cost where nobody asked for a cgroup by name; usually a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// And where it is that or nothing. Below the time that an owner waits for its guards.
const LONG_PATIENCE: Duration = Duration::from_secs(5);

/// What such a scope is called: `owned-PID-START-NUMBER.scope`, after its owner. Guards that come later for the same one
/// join it again, and find in it what those before them had.
const HEAD: &str = "owned-";
const TAIL: &str = ".scope";

/// Enters one where that helps. Gives why there is none, if one was asked for.
pub(super) fn enter(owner: &OwnedFd) -> Option<String> {
    let (asked, _) = asked();
    let here = at_the_door();
    let systemd = here.door(asked).filter(|_| !hook::is_off("scope"))?;
    // Of a dead owner nobody will be started.
    let pid = identity::pid_of(owner.as_fd())?;
    let start = Stat::read(pid)?.start;
    let scope = format!("{HEAD}{pid}-{start}-{}{TAIL}", role_numbers().owner);
    let user = rustix::process::geteuid().as_raw();
    let places = systemd::places(systemd, user, |name| std::env::var(name).ok());
    let limit = if asked == Containment::Cgroup { LONG_PATIENCE } else { PATIENCE };
    let why = match systemd::enter(&places, &scope, limit) {
        Err(why) => why.to_string(),
        Ok(()) => at_the_door().cgroup.refusal()?.to_string(),
    };
    Some(format!("{systemd}: {why}{}", remedy(systemd, &why)))
}

/// What to do where nobody was found.
fn remedy(systemd: Systemd, why: &str) -> &'static str {
    match systemd {
        Systemd::Users if why.starts_with("nobody answers") => {
            "; a session bus (dbus-user-session) and XDG_RUNTIME_DIR of a login are needed"
        }
        Systemd::Users | Systemd::Machines => "",
    }
}

/// Where dead owners may have left something: our own cgroup, and beside a scope of ours those of other owners.
pub(super) fn bases(own: &Path) -> Vec<PathBuf> {
    let mut bases = vec![own.to_owned()];
    if is_scope(own) {
        let beside = own.parent().and_then(|slice| std::fs::read_dir(slice).ok());
        let beside = beside.into_iter().flatten().flatten().map(|entry| entry.path());
        bases.extend(beside.filter(|path| path != own && is_scope(path)).take(MOST));
    }
    bases
}

/// Scopes of others that are looked at.
const MOST: usize = 1024;

fn is_scope(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let numbers = name.strip_prefix(HEAD).and_then(|rest| rest.strip_suffix(TAIL));
    numbers.is_some_and(|numbers| {
        numbers.split('-').filter(|number| number.parse::<u64>().is_ok()).count() == 3
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scopes_of_owners_are_looked_into() {
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| dir.path().join(name);
        let all = ["owned-1-2-3.scope", "owned-4-5-6.scope", "owned-x.scope", "other.scope", "app"];
        for name in all {
            std::fs::create_dir(at(name)).expect("make");
        }
        assert_eq!(bases(&at("app")), [at("app")]);
        assert_eq!(bases(&at("owned-1-2-3.scope")), [at(all[0]), at(all[1])]);
    }
}
