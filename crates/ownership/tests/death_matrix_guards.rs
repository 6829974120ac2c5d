//! The rows of the death matrix in which guards die: alone, one after the other, with each other, and with
//! the owner.

mod support;

use ownership::containment::Tier;
use rustix::process::Signal;
use support::matrix::{Bystanders, Case, GRACE, run};
use support::process::Guards;
use support::tier;
use support::{Identity, TreeOwner, wait_for, wait_for_nobody};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Owner,
    Keeper,
    Supervisor,
}

/// A step of a case.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// These get KILL, one right after the other.
    Kill(&'static [Who]),
    /// This one is stopped, and stays so.
    Stop(Who),
}

use Step::{Kill, Stop};
use Who::{Keeper, Owner, Supervisor};

/// Who may be left on the weakest tier where the guard that is the parent of the tree is killed while it ends it:
/// the tree is known by handle and mark then, and this member has no mark, and may have lost whoever stood
/// above it. A cgroup knows it.
const UNMARKED: &[&str] = &["cleared"];
const NOBODY: &[&str] = &[];

/// What is done, each step after the guards are two again, and who may be left. The owner is killed at the
/// end in any case.
const CASES: [(&str, &[Step], &[&str]); 19] = [
    ("supervisor", &[Kill(&[Supervisor])], NOBODY),
    ("keeper", &[Kill(&[Keeper])], NOBODY),
    ("supervisor, later supervisor", &[Kill(&[Supervisor]), Kill(&[Supervisor])], NOBODY),
    ("keeper, later keeper", &[Kill(&[Keeper]), Kill(&[Keeper])], NOBODY),
    ("supervisor, later keeper", &[Kill(&[Supervisor]), Kill(&[Keeper])], NOBODY),
    ("keeper, later supervisor", &[Kill(&[Keeper]), Kill(&[Supervisor])], NOBODY),
    ("three supervisors", &[Kill(&[Supervisor]), Kill(&[Supervisor]), Kill(&[Supervisor])], NOBODY),
    ("three keepers", &[Kill(&[Keeper]), Kill(&[Keeper]), Kill(&[Keeper])], NOBODY),
    ("supervisor and keeper", &[Kill(&[Supervisor, Keeper])], NOBODY),
    ("keeper and supervisor", &[Kill(&[Keeper, Supervisor])], NOBODY),
    ("both, later keeper", &[Kill(&[Supervisor, Keeper]), Kill(&[Keeper])], NOBODY),
    ("owner and supervisor", &[Kill(&[Owner, Supervisor])], NOBODY),
    ("supervisor and owner", &[Kill(&[Supervisor, Owner])], NOBODY),
    ("owner and keeper", &[Kill(&[Owner, Keeper])], NOBODY),
    ("keeper and owner", &[Kill(&[Keeper, Owner])], NOBODY),
    (
        "supervisor, later owner and keeper",
        &[Kill(&[Supervisor]), Kill(&[Owner, Keeper])],
        UNMARKED,
    ),
    ("keeper, later owner and supervisor", &[Kill(&[Keeper]), Kill(&[Owner, Supervisor])], NOBODY),
    ("supervisor stopped", &[Stop(Supervisor)], NOBODY),
    ("keeper stopped", &[Stop(Keeper)], NOBODY),
];

/// Guards of a living owner that are killed are replaced, its tree stays whole and its requests are
/// answered; and whoever was killed before: once the owner is dead nothing is left.
#[test]
fn whoever_dies_nothing_is_lost_while_the_owner_lives_and_nothing_left_after() {
    run(CASES
        .iter()
        .map(|(name, steps, free)| Case::new(name, move || play(steps, free)))
        .collect());
}

/// What was handed to a pair that dies before it has all of it is not handed to the next one.
#[test]
fn both_die_and_both_die_again() {
    play(&[Kill(&[Supervisor, Keeper]), Kill(&[Keeper, Supervisor])], NOBODY);
}

fn play(steps: &[Step], may_be_left: &[&str]) {
    let around = Bystanders::start();
    let mut owner = TreeOwner::start(GRACE, "");
    for step in steps {
        let guards = two_guards(&owner);
        let find = |who: &Who| match who {
            Owner => owner.identity(),
            Keeper => guards.keeper.expect("a keeper"),
            Supervisor => guards.supervisor,
        };
        match step {
            Kill(whom) => {
                kill_at_once(&whom.iter().map(find).collect::<Vec<_>>());
                if whom.contains(&Owner) {
                    break;
                }
                wait_for("another pair of guards", || {
                    let now = owner.guards().filter(|now| now.keeper.is_some())?;
                    (now != guards && now.supervisor.lives()).then_some(())
                });
                assert!(owner.is_whole(), "after {whom:?} the owner keeps {:?}", owner.living());
            }
            Stop(who) => {
                assert!(find(who).signal(Signal::STOP));
            }
        }
    }
    if steps.iter().all(|step| matches!(step, Kill(whom) if !whom.contains(&Owner))) {
        owner.tell("more");
        let more = owner.other("more");
        assert!(more.lives() && owner.is_whole(), "its requests are answered");
    }
    owner.signal(Signal::KILL);
    owner.process.wait().expect("the owner ends");
    let may_be_left = if tier::used() >= Tier::Cgroup { NOBODY } else { may_be_left };
    let free: Vec<_> = may_be_left.iter().map(|name| owner.member(name)).collect();
    wait_for_nobody(|| {
        let mut left = owner.left();
        left.retain(|who| !free.contains(who));
        left
    });
    around.assert_untouched();
}

/// The one case without an heir but in a pid namespace: the owner and whoever guards it die at once. What they leave lives on until the
/// next owner finds it by its cgroup (`containment`), and each of it bears the mark of its owner or stands below somebody who does.
#[test]
fn whoever_outlives_all_of_them_can_be_told_by_its_mark() {
    let around = Bystanders::start();
    let owner = TreeOwner::start(GRACE, "");
    let guards = owner.guards().expect("guards");
    let keeper = guards.keeper.into_iter();
    let all: Vec<_> = keeper.chain([guards.supervisor, owner.identity()]).collect();
    for who in &all {
        // Nobody does anything between the first death and the last.
        assert!(who.signal(Signal::STOP));
        wait_for("stopped", || (who.state()? == "T").then_some(()));
    }
    kill_at_once(&all);
    if tier::is_inside() {
        // Number 1 of their namespace is there, and has seen it.
        wait_for_nobody(|| owner.left());
        return around.assert_untouched();
    }
    for (name, member) in &owner.members {
        let above = std::iter::successors(Some(*member), |who| Identity::of(who.parent()?));
        let above: Vec<_> = above.take(8).collect();
        let marked = above.iter().any(|who| who.has_key("OWNERSHIP_TAG"));
        // The kernel continues what is stopped when its session loses its last tie to another one, so a guard
        // may have begun to end the tree after all.
        let begun = !owner.member("program").lives();
        assert!(
            marked || begun || !member.lives(),
            "nothing tells whose {name} is, below {above:?}"
        );
    }
    around.assert_untouched();
}

/// All handles are there before the first one is used, so that nothing lies between the signals.
fn kill_at_once(whom: &[Identity]) {
    let handles: Vec<_> = whom.iter().map(|who| who.handle().expect("it lives")).collect();
    for handle in handles {
        rustix::process::pidfd_send_signal(handle, Signal::KILL).expect("a signal");
    }
}

fn two_guards(owner: &TreeOwner) -> Guards {
    wait_for("two guards", || owner.guards().filter(|guards| guards.keeper.is_some()))
}
