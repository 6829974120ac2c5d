//! What the model makes of pictures that nobody took.

use std::path::Path;

use super::super::scan::{Mark, Marks};
use super::*;
use crate::identity::{BootId, Stat};
use crate::ledger::Intent;

const OWNER: Owner = (100, 5);

struct Painter {
    snapshot: Snapshot,
    rows: Vec<Row>,
}

impl Painter {
    fn new() -> Self {
        let boot = BootId::parse(&"a".repeat(32));
        let snapshot = Snapshot {
            boot,
            namespace: Some(1),
            uptime: 1000,
            ticks: 100,
            own: 1,
            ..Snapshot::default()
        };
        Self { snapshot, rows: Vec::new() }
    }

    fn process(&mut self, pid: u32, parent: u32, mark: Option<(Owner, u64)>, role: Option<Role>) {
        let stat = Stat {
            name: format!("p{pid}"),
            state: b'S',
            parent: parent.cast_signed(),
            group: 1,
            session: 1,
            exiting: false,
            threads: 1,
            start: 5,
        };
        let mark = mark.map(|((pid, start), scope)| Mark { pid, start, number: 0, scope });
        let marks = Marks::Read { mark, exempt: None };
        let seen = Seen {
            pid,
            stat,
            uid: 0,
            rss: 10,
            cpu: Duration::from_secs(1),
            marks,
            role,
            cgroup: None,
            namespace: Some(1),
        };
        self.snapshot.processes.insert(pid, seen);
    }

    fn identity(&self, pid: u32) -> Identity {
        Identity {
            boot: self.snapshot.boot,
            pid,
            start: Some(5),
            inode: None,
            namespace: Some(1),
            cgroup: None,
        }
    }

    fn row(&mut self, spawn: u64, pid: u32) {
        let mut row = crate::ledger::row_of(
            Intent::new(spawn, Path::new("x"), &[]).purpose("a purpose"),
            &self.identity(OWNER.0),
        );
        row.identity = Some(self.identity(pid));
        self.rows.push(row);
    }

    fn owners(&self) -> Vec<OwnerView> {
        owners(&self.snapshot, &self.rows)
    }

    /// An owner that lives, both guards, a child with two below, of which one has no mark.
    fn usual() -> Self {
        let mut painter = Self::new();
        painter.process(1, 0, None, None);
        painter.process(OWNER.0, 1, None, None);
        painter.process(110, 1, None, Some(Role::Keeper));
        painter.process(111, 110, None, Some(Role::Supervisor));
        painter.process(120, 111, Some((OWNER, 7)), None);
        painter.process(121, 120, Some((OWNER, 7)), None);
        painter.process(122, 121, None, None);
        painter.process(500, 1, None, None);
        painter.row(7, 120);
        painter
    }
}

fn pids(child: &ChildView) -> Vec<(u32, usize)> {
    child.processes.iter().map(|process| (process.pid, process.depth)).collect()
}

#[test]
fn a_tree_is_its_owner_its_guards_its_child_and_all_below() {
    let painter = Painter::usual();
    let [owner] = &painter.owners()[..] else { panic!("one owner") };
    assert_eq!((owner.state, owner.guarding), (OwnerState::Lives, Guarding::Full));
    assert_eq!(owner.guards, [110, 111]);
    let [child] = &owner.children[..] else { panic!("one child: {owner:?}") };
    assert_eq!(pids(child), [(120, 0), (121, 1), (122, 2)]);
    assert_eq!(child.why, WhyAlive::OwnerLives);
    assert_eq!((child.rss(), child.cpu()), (30, Duration::from_secs(3)));
    let known: Vec<_> = child.processes.iter().map(|process| process.known_by).collect();
    assert_eq!(known, [KnownBy::Row, KnownBy::Place, KnownBy::Place]);
}

#[test]
fn without_a_ledger_marks_tell_as_much_as_they_can() {
    let mut painter = Painter::usual();
    painter.rows.clear();
    let [owner] = &painter.owners()[..] else { panic!("one owner") };
    assert!(!owner.in_ledger && owner.state == OwnerState::Lives);
    assert_eq!(pids(&owner.children[0]), [(120, 0), (121, 1), (122, 2)]);
    assert!(owner.children[0].row.is_none());
}

#[test]
fn why_it_is_alive_follows_from_owner_and_guards() {
    for (gone, guarding, why) in [
        (&[][..], Guarding::Full, WhyAlive::OwnerLives),
        (&[110], Guarding::Degraded, WhyAlive::OwnerLives),
        (&[OWNER.0], Guarding::Full, WhyAlive::Ending),
        (&[OWNER.0, 110, 111], Guarding::Nobody, WhyAlive::LeftOver),
    ] {
        let mut painter = Painter::usual();
        painter.snapshot.processes.retain(|pid, _| !gone.contains(pid));
        let [owner] = &painter.owners()[..] else { panic!("one owner") };
        assert_eq!(owner.guarding, guarding, "{gone:?}");
        assert_eq!(owner.children[0].why, why, "{gone:?}");
        assert_eq!(owner.children[0].processes.len(), 3, "{gone:?}");
    }
}

#[test]
fn a_row_of_another_process_takes_nobody() {
    let mut painter = Painter::usual();
    let identity = painter.rows[0].identity.as_mut().expect("identity");
    identity.pid = 500;
    identity.start = Some(6);
    let [owner] = &painter.owners()[..] else { panic!("one owner") };
    assert_eq!(pids(&owner.children[0])[0], (120, 0), "the mark names the same child");
    let mut painter = Painter::usual();
    painter.rows[0].owner.boot = BootId::parse(&"b".repeat(32));
    painter.rows[0].identity.as_mut().expect("identity").boot = painter.rows[0].owner.boot;
    let owners = painter.owners();
    assert_eq!(owners[0].state, OwnerState::Dead, "of another boot");
}

#[test]
fn an_owner_below_an_owner_has_its_own_tree() {
    let mut painter = Painter::usual();
    let inner = (121, 5);
    painter.process(130, 1, Some((OWNER, 7)), Some(Role::Keeper));
    painter.process(131, 130, Some((OWNER, 7)), Some(Role::Supervisor));
    painter.process(140, 131, Some((inner, 3)), None);
    let owners = painter.owners();
    assert_eq!(owners.len(), 2, "{owners:?}");
    let inner = owners.iter().find(|owner| owner.identity.pid == 121).expect("inner");
    assert_eq!((inner.below, inner.guards.clone()), (Some(OWNER.0), vec![130, 131]));
    assert_eq!(pids(&inner.children[0]), [(140, 0)]);
    assert_eq!(inner.children[0].processes[0].known_by, KnownBy::Place);
}

#[test]
fn rings_and_thousands_are_no_trouble() {
    let mut painter = Painter::usual();
    painter.process(300, 301, None, None);
    painter.process(301, 300, None, None);
    for pid in 1000..5000 {
        // A chain: the worst that a walk upwards can meet.
        painter.process(pid, if pid == 1000 { 122 } else { pid - 1 }, None, None);
    }
    let [owner] = &painter.owners()[..] else { panic!("one owner") };
    assert_eq!(owner.children[0].processes.len(), 4003);
    assert_eq!(owner.children[0].processes.last().map(|last| last.depth), Some(4002));
}

#[test]
fn a_number_of_another_pid_namespace_is_looked_up_nowhere() {
    let mut painter = Painter::usual();
    painter.rows.clear();
    for pid in [120, 121] {
        painter.snapshot.processes.get_mut(&pid).expect("it").namespace = Some(2);
    }
    let [owner] = &painter.owners()[..] else { panic!("one owner") };
    assert_eq!(owner.state, OwnerState::Elsewhere, "whoever has its number here is another");
    assert_eq!(owner.children[0].why, WhyAlive::Unknown);
}
