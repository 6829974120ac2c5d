//! Files of both versions as fixtures, and the move into a leaf in a cgroup of version 2 that has a controller.
#![expect(
    clippy::disallowed_methods,
    reason = "who stands in a cgroup is started by the test itself"
)]

use std::process::{Child, Command};

use super::*;
use crate::containment::Machine;

fn bounds(version: Means, files: &[(&str, &str)]) -> (tempfile::TempDir, Bounds) {
    let dir = tempfile::tempdir().expect("dir");
    for (name, text) in files {
        fs::write(dir.path().join(name), text).expect("write");
    }
    let bounds = Bounds { dir: dir.path().to_owned(), version };
    (dir, bounds)
}

fn read(bounds: &Bounds, file: &str) -> Option<String> {
    fs::read_to_string(bounds.dir.join(file)).ok()
}

const RATION: Ration = Ration {
    memory: Some(1 << 20),
    processes: Some(7),
    open_files: None,
    cpu: None,
    nice: None,
    cpu_weight: Some(20),
};

#[test]
fn each_version_has_its_own_files() {
    let cases = [
        (
            Means::CgroupV2,
            [
                ("memory.max", "1048576"),
                ("memory.swap.max", "0"),
                ("pids.max", "7"),
                ("cpu.weight", "20"),
            ],
        ),
        (
            Means::CgroupV1,
            [
                ("memory.limit_in_bytes", "1048576"),
                ("memory.memsw.limit_in_bytes", "1048576"),
                ("pids.max", "7"),
                ("cpu.shares", "204"),
            ],
        ),
    ];
    for (version, expected) in cases {
        let (_dir, bounds) = bounds(version, &[]);
        for limit in Limit::ALL {
            bounds.set(limit, &RATION).expect("set");
        }
        for (file, value) in expected {
            assert_eq!(read(&bounds, file).as_deref(), Some(value), "{file}");
        }
    }
}

#[test]
fn what_was_met_is_read_from_either() {
    let events = [
        ("memory.events", "low 0\nhigh 0\nmax 99\noom 4\noom_kill 3\noom_group_kill 8\n"),
        ("pids.events", "max 12\n"),
        ("cpu.stat", "usage_usec 1500000\nuser_usec 9\n"),
        ("pids.max", "12\n"),
        ("pids.current", "12\n"),
    ];
    let (_dir, two) = bounds(Means::CgroupV2, &events);
    assert_eq!(two.reached(), Reached { memory: 3, processes: 12, cpu: false });
    assert_eq!(two.cpu_micros(), Some(1_500_000));
    assert!(two.is_full());
    let control = ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
    let (_dir, one) =
        bounds(Means::CgroupV1, &[control, ("pids.max", "max\n"), ("pids.current", "9\n")]);
    assert_eq!(one.reached(), Reached { memory: 5, processes: 0, cpu: false });
    assert!(!one.is_full(), "no limit");
    let (_dir, none) = bounds(Means::CgroupV2, &[]);
    assert!(none.reached().is_nothing() && !none.is_full() && none.cpu_micros().is_none());
}

#[test]
fn weights_are_shares_as_the_kernel_maps_them() {
    assert_eq!([shares(1), shares(100), shares(10_000)], [10, 1024, 102_400]);
}

/// A process that ends with the test.
struct Standing(Child);

impl Standing {
    fn in_group(dir: &Path) -> Self {
        let child = Self(Command::new("sleep").arg("600").spawn().expect("sleep"));
        fs::write(dir.join("cgroup.procs"), child.0.id().to_string()).expect("moved");
        child
    }

    fn pid(&self) -> Pid {
        self.0.id().cast_signed()
    }

    fn path(&self) -> String {
        let text = fs::read_to_string(format!("/proc/{}/cgroup", self.0.id())).expect("cgroup");
        text.lines().find_map(|line| line.strip_prefix("0::")).expect("version 2").to_owned()
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A cgroup of version 2 for this test, with a controller, and its name; `None`, loudly, where there is none. That the
/// one around it hands the controller on stays so: another test may have come to need it.
fn with_controller(name: &str) -> Option<(PathBuf, String)> {
    let machine = Machine::look();
    let Some(base) = machine.cgroup.dir.filter(|_| machine.cgroup.made == Some(Ok(()))) else {
        eprintln!("SKIPPED: NO CGROUP OF VERSION 2 CAN BE MADE HERE");
        return None;
    };
    let own = Own::read(&base);
    // Whichever there is: the rule is the same for all that are not threaded.
    let threaded = ["cpu", "cpuset", "perf_event", "pids"];
    let usable = own.has.iter().find(|name| !threaded.contains(&name.as_str()));
    let handed_on = usable.filter(|controller| {
        own.hands_on.contains(controller)
            || fs::write(base.join("cgroup.subtree_control"), format!("+{controller}")).is_ok()
    });
    let Some(controller) = handed_on else {
        eprintln!("SKIPPED: VERSION 2 HAS NO CONTROLLER THAT COULD BE HANDED ON HERE");
        return None;
    };
    let dir = base.join(format!("ownership-look-leaf-{name}-{}", std::process::id()));
    fs::create_dir(&dir).expect("a cgroup");
    Some((dir, controller.clone()))
}

/// The kernel's rule, and what we do about it: refused while somebody stands there, done once he is in the leaf.
#[test]
fn who_stands_in_our_cgroup_moves_into_a_leaf_before_a_controller_is_handed_on() {
    let Some((dir, controller)) = with_controller("moves") else { return };
    let child = Standing::in_group(&dir);
    let refused = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
    assert_eq!(refused.expect_err("the rule").raw_os_error(), Some(libc::EBUSY));
    let way = hand_on_named(&dir, &controller, |pid| pid == child.pid()).expect("handed on");
    assert_eq!(way, Way::AfterLeaf);
    assert!(child.path().ends_with(&format!("/{LEAF}")), "{}", child.path());
    assert!(Own::read(&dir).hands_on.contains(&controller));
    // A cell inside has the controller, and may have processes.
    let cell = dir.join("cell");
    fs::create_dir(&cell).expect("a cell");
    assert!(Own::read(&cell).has.contains(&controller));
    let other = Standing::in_group(&cell);
    assert_eq!(hand_on_named(&dir, &controller, |_| false).expect("again"), Way::Already);
    // Another owner that begins in the leaf means the same cgroup by its own.
    assert_eq!(crate::containment::base_of(&dir.join(LEAF)), dir);
    drop((child, other));
    fs::remove_dir(&cell).expect("empty");
    remove_empty_leaf(&dir);
    assert!(!dir.join(LEAF).exists());
    fs::remove_dir(&dir).expect("empty");
}

#[test]
fn a_stranger_in_our_cgroup_is_not_moved() {
    let Some((dir, controller)) = with_controller("stranger") else { return };
    let (ours, stranger) = (Standing::in_group(&dir), Standing::in_group(&dir));
    let before = (ours.path(), stranger.path());
    let refused = hand_on_named(&dir, &controller, |pid| pid == ours.pid());
    assert_eq!(refused.expect_err("a stranger").raw_os_error(), Some(libc::EBUSY));
    assert_eq!((ours.path(), stranger.path()), before);
    assert!(!dir.join(LEAF).exists());
    drop((ours, stranger));
    fs::remove_dir(&dir).expect("empty");
}
