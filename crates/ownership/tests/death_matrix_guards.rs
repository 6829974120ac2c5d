//! The rows of the death matrix in which guards die: alone, one after the other, with each other, and with
//! the owner. Needs a keeper above the supervisor; one that stands alone has no heir, and these rows skip.

mod support;

use std::time::Duration;

use rustix::process::Signal;
use support::matrix::{Bystanders, Case, GRACE, run};
use support::process::Guards;
use support::{Identity, TreeOwner, wait_for};

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

/// What is done, each step after the guards are two again; the owner is killed at the end in any case.
const CASES: [(&str, &[Step]); 20] = [
    ("supervisor", &[Kill(&[Supervisor])]),
    ("keeper", &[Kill(&[Keeper])]),
    ("supervisor, later supervisor", &[Kill(&[Supervisor]), Kill(&[Supervisor])]),
    ("keeper, later keeper", &[Kill(&[Keeper]), Kill(&[Keeper])]),
    ("supervisor, later keeper", &[Kill(&[Supervisor]), Kill(&[Keeper])]),
    ("keeper, later supervisor", &[Kill(&[Keeper]), Kill(&[Supervisor])]),
    ("three supervisors", &[Kill(&[Supervisor]), Kill(&[Supervisor]), Kill(&[Supervisor])]),
    ("three keepers", &[Kill(&[Keeper]), Kill(&[Keeper]), Kill(&[Keeper])]),
    ("supervisor and keeper", &[Kill(&[Supervisor, Keeper])]),
    ("keeper and supervisor", &[Kill(&[Keeper, Supervisor])]),
    ("both, later both", &[Kill(&[Supervisor, Keeper]), Kill(&[Keeper, Supervisor])]),
    ("both, later keeper", &[Kill(&[Supervisor, Keeper]), Kill(&[Keeper])]),
    ("owner and supervisor", &[Kill(&[Owner, Supervisor])]),
    ("supervisor and owner", &[Kill(&[Supervisor, Owner])]),
    ("owner and keeper", &[Kill(&[Owner, Keeper])]),
    ("keeper and owner", &[Kill(&[Keeper, Owner])]),
    ("supervisor, later owner and keeper", &[Kill(&[Supervisor]), Kill(&[Owner, Keeper])]),
    ("keeper, later owner and supervisor", &[Kill(&[Keeper]), Kill(&[Owner, Supervisor])]),
    ("supervisor stopped", &[Stop(Supervisor)]),
    ("keeper stopped", &[Stop(Keeper)]),
];

/// Guards of a living owner that are killed are replaced, its tree stays whole and its requests are
/// answered; and whoever was killed before: once the owner is dead nothing is left.
#[test]
fn whoever_dies_nothing_is_lost_while_the_owner_lives_and_nothing_left_after() {
    if !there_is_a_keeper() {
        return;
    }
    run(CASES.iter().map(|(name, steps)| Case::new(name, move || play(steps))).collect());
}

fn play(steps: &[Step]) {
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
    around.assert_all_gone(&owner);
}

/// The one case without an heir: the owner and whoever guards it die at once. What they leave lives on, and
/// each of it bears the mark of its owner or stands below somebody who does.
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
    for (name, member) in &owner.members {
        let above = std::iter::successors(Some(*member), |who| Identity::of(who.parent()?));
        let above: Vec<_> = above.take(8).collect();
        let marked = above.iter().any(|who| who.has_key("OWNERSHIP_TAG"));
        assert!(marked || !member.lives(), "nothing tells whose {name} is, below {above:?}");
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

#[expect(clippy::print_stderr, reason = "skips loudly")]
fn there_is_a_keeper() -> bool {
    let owner = TreeOwner::start(Duration::ZERO, "");
    let keeper = owner.guards().expect("guards").keeper.is_some();
    if !keeper {
        eprintln!("SKIPPED: one supervisor stands alone here, without a keeper above it");
    }
    keeper
}
