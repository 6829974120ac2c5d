//! Looks at the machine for [`super`]: which controllers of which version can be had from where this process
//! stands. Whether a group of version 1 can be made is tried.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::leaf::{Own, Way};
use super::{Controller, Lack, Offer, Offers};
use crate::containment::{Containment, Machine, Tier, base_of, group_v1};
use crate::program::{KEEPER_ROLE, SUPERVISOR_ROLE, is_role};
use crate::sys::Pid;

impl Offers {
    /// What this process sees. Makes groups for a moment, where it may.
    #[must_use]
    pub fn look(asked: Containment) -> Self {
        let machine = Machine::look();
        let cell = match asked {
            Containment::Subreaper => Err(Lack::NoCell(crate::containment::Why::NotAsked)),
            Containment::Auto | Containment::Cgroup | Containment::PidNamespace => {
                machine.refusal(Tier::Cgroup).map_or(Ok(()), |why| Err(Lack::NoCell(why)))
            }
        };
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let base = machine.cgroup.dir.as_deref().map(base_of);
        let mut needs_leaf = false;
        let controllers = Controller::ALL.map(|controller| {
            let v2 = cell.clone().and_then(|()| {
                let base = base.as_deref().unwrap_or_else(|| Path::new(""));
                let way = handed_on(base, controller, own)?;
                needs_leaf |= way == Way::AfterLeaf;
                Ok(())
            });
            Offer { v2, v1: try_version_1(controller) }
        });
        Self { controllers, counts: cell, needs_leaf }
    }
}

/// How a controller is handed on from this cgroup, by whoever belongs to this owner.
fn handed_on(base: &Path, controller: Controller, owner: Pid) -> Result<Way, Lack> {
    let seen = Own::read(base);
    let way = seen.way(controller.word(), |pid| pid == owner || is_guard(pid));
    way.map_err(|refusal| refusal.lack(controller, is_anywhere(base, controller)))
}

/// Guards stand where their owner stands, so those of others come with these.
pub(crate) fn is_guard(pid: Pid) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let role = line.split(|byte| *byte == 0).nth(1).unwrap_or_default();
    let role = std::ffi::OsStr::from_bytes(role);
    [KEEPER_ROLE, SUPERVISOR_ROLE].iter().any(|known| is_role(role, known))
}

/// Whether a cgroup above this one, as far as it is mounted, has the controller.
fn is_anywhere(base: &Path, controller: Controller) -> bool {
    let above = base.ancestors().skip(1).map(|dir| dir.join("cgroup.controllers"));
    let lists = above.map_while(|path| fs::read_to_string(path).ok());
    let mut lists =
        lists.filter(|list| list.split_ascii_whitespace().any(|w| w == controller.word()));
    lists.next().is_some()
}

/// Our own group of version 1 for a controller.
pub(crate) fn group_of_version_1(controller: Controller) -> Result<PathBuf, Lack> {
    match group_v1(controller.word()) {
        None => Err(Lack::NotInVersion1(controller)),
        Some(dir) => dir.ok_or(Lack::OutOfSight),
    }
}

fn try_version_1(controller: Controller) -> Result<(), Lack> {
    let dir = group_of_version_1(controller)?;
    let dir = dir.join(format!("ownership-look-{}", std::process::id()));
    match fs::create_dir(&dir) {
        Ok(()) => {}
        // Another thread looks too.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(Lack::NotWritable(error.raw_os_error().unwrap_or(libc::EIO))),
    }
    // Fails only where another thread was quicker.
    drop(fs::remove_dir(&dir));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_no_guard() {
        assert!(!is_guard(rustix::process::getpid().as_raw_nonzero().get()));
    }

    /// What cannot be had says so for each means, and never for what is offered.
    #[test]
    fn each_limit_of_this_machine_has_a_means_or_reasons() {
        for asked in [Containment::Auto, Containment::Subreaper] {
            let offers = Offers::look(asked);
            for limit in super::super::Limit::ALL {
                let held = offers.decide(limit);
                assert!(held.means.is_some() || !held.not.is_empty(), "{asked}: {held:?}");
            }
        }
    }
}
