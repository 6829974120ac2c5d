//! Negative controls: each mechanism switched off lets somebody escape whom its test would miss. What
//! escapes is ended by handle afterwards.

#[path = "../examples/support/player.rs"]
mod player;
mod support;

use std::time::Duration;

use player::Player;
use rustix::process::Signal;
use support::process::{self, Guards};
use support::{Identity, TreeOwner, example, no_hooks, wait_for};

const GRACE: Duration = Duration::from_millis(300);

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// Kills the owner of a tree whose supervisor lacks this mechanism.
fn killed(grace: Duration, off: &str) -> TreeOwner {
    let owner = TreeOwner::start(grace, off);
    owner.signal(Signal::KILL);
    owner
}

#[test]
fn without_the_owners_pidfd_nothing_ends() {
    if no_hooks() {
        return;
    }
    let mut owner = killed(GRACE, "pidfd");
    owner.process.wait().expect("owner");
    // A whole owner's death, seen by its own supervisor, takes less time than this one has had.
    let other = killed(GRACE, "");
    wait_for("the other's end", || other.living().is_empty().then_some(()));
    assert!(owner.is_whole());
}

/// The daemon was re-parented away from us when the launcher died. A cgroup would know it.
#[test]
fn without_subreapers_the_double_forked_daemon_escapes() {
    if no_hooks() {
        return;
    }
    let owner = killed(GRACE, "subreaper,cgroup");
    wait_for("the supervisor thinks that it is done", || (!owner.supervisor.lives()).then_some(()));
    assert!(owner.living().contains(&"daemon"), "{:?}", owner.living());
    assert!(!owner.living().contains(&"launcher"));
}

#[test]
fn without_walks_only_known_groups_end() {
    if no_hooks() {
        return;
    }
    let owner = killed(GRACE, "walk");
    wait_for("the group has had TERM", || (!owner.living().contains(&"helper")).then_some(()));
    let living = owner.living();
    assert!(living.contains(&"session") && living.contains(&"daemon"), "{living:?}");
    assert!(owner.supervisor.lives(), "it knows that it is not done");
}

#[test]
fn without_cont_the_stopped_member_stays_until_kill() {
    if no_hooks() {
        return;
    }
    let with = killed(LONG, "");
    let without = killed(LONG, "cont");
    wait_for("TERM and CONT end it", || (!with.living().contains(&"stopped")).then_some(()));
    wait_for("TERM reaches the others", || (!without.living().contains(&"helper")).then_some(()));
    assert!(without.living().contains(&"stopped"));
    assert_eq!(without.member("stopped").state().as_deref(), Some("T"));
}

#[test]
fn without_kill_the_stubborn_member_stays() {
    if no_hooks() {
        return;
    }
    let with = killed(GRACE, "");
    let without = killed(GRACE, "kill");
    wait_for("KILL ends it", || (!with.living().contains(&"stubborn")).then_some(()));
    wait_for("TERM ends the others", || (without.living() == ["stubborn"]).then_some(()));
    assert!(without.supervisor.lives(), "it knows that it is not done");
}

/// A scripted owner whose guards lack this, and its first child.
fn scripted(off: &str, settings: &[(&str, &str)]) -> (Player, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("dir");
    let mut command = std::process::Command::new(example("scripted-owner"));
    command.env("DIR", dir.path()).env("OWNERSHIP_TEST_OFF", off).envs(settings.iter().copied());
    (Player::start(&mut command), dir)
}

fn first(player: &mut Player) -> (Identity, Guards) {
    player.say("spawn 1 50 exec sleep 600");
    player.until("it is there", |player| player.started.contains_key(&1)).expect("started");
    let child = player.started[&1];
    (child, wait_for("guards", || Guards::of(child).filter(|guards| guards.keeper.is_some())))
}

fn minder_below(guards: Guards) -> Option<Identity> {
    let keeper = guards.keeper?;
    let below = process::children_of(keeper.pid).into_iter().filter_map(Identity::of);
    below.into_iter().find(|who| who.name() == "minder" && who.lives() && *who != guards.supervisor)
}

fn kill_supervisor(guards: Guards) {
    guards.supervisor.kill();
    wait_for("it is gone", || (!guards.supervisor.lives()).then_some(()));
}

/// Ends what a test leaves, whatever its guards lack.
fn clean_up(mut player: Player, guards: Guards, others: &[Identity]) {
    player.process.kill().expect("kill");
    player.process.wait().expect("wait");
    let all = [Some(guards.supervisor), guards.keeper, minder_below(guards)];
    for who in all.into_iter().flatten().chain(others.iter().copied()).chain(player.alive()) {
        who.kill();
    }
}

#[test]
fn without_a_watch_on_the_other_guard_nobody_follows_it() {
    if no_hooks() {
        return;
    }
    let (mut with, _dir) = scripted("", &[]);
    let (mut without, _dir) = scripted("keeper-watch", &[]);
    let ((_, guarded), (child, alone)) = (first(&mut with), first(&mut without));
    kill_supervisor(alone);
    wait_for("the keeper has reaped it", || {
        Identity::of(alone.supervisor.pid).is_none().then_some(())
    });
    kill_supervisor(guarded);
    wait_for("the other one is replaced", || minder_below(guarded));
    assert_eq!(minder_below(alone), None);
    clean_up(without, alone, &[child]);
    clean_up(with, guarded, &[]);
}

#[test]
fn without_the_table_ends_are_not_told() {
    if no_hooks() {
        return;
    }
    let (mut with, _dir) = scripted("", &[]);
    let (mut without, _dir) = scripted("table", &[]);
    let ((known, guarded), (unknown, ignorant)) = (first(&mut with), first(&mut without));
    for guards in [guarded, ignorant] {
        kill_supervisor(guards);
        wait_for("it is replaced", || minder_below(guards));
    }
    unknown.kill();
    known.kill();
    with.until("its end", |player| player.told("emptied", 1) == 1).expect("told");
    // Everything that this owner was told before the answer is there.
    without.ping().expect("an answer");
    assert_eq!((without.told("exited", 1), without.told("emptied", 1)), (0, 0));
    clean_up(without, ignorant, &[]);
    clean_up(with, guarded, &[]);
}

/// A worker's line ends with the guard that had its only copy.
#[test]
fn without_mirrors_the_lines_of_children_end() {
    if no_hooks() {
        return;
    }
    let told = |off: &str| {
        let (mut player, dir) = scripted(off, &[]);
        player.say("worker 2 50");
        player.ping().expect("an answer");
        let worker = player.started[&2];
        let guards =
            wait_for("guards", || Guards::of(worker).filter(|guards| guards.keeper.is_some()));
        // It may be read while it is written.
        let note = || {
            let text = std::fs::read_to_string(dir.path().join("worker.2")).ok();
            text.filter(|text| !text.is_empty())
        };
        wait_for("it starts programs", note);
        kill_supervisor(guards);
        wait_for("it is replaced", || minder_below(guards));
        let before: Option<u64> = note().and_then(|count| count.parse().ok());
        let told = wait_for("it goes on, or has ended", || {
            let now = note()?;
            match (now.parse::<u64>(), before) {
                (Ok(now), Some(before)) if now < before + 3 => None,
                _ => Some(now),
            }
        });
        clean_up(player, guards, &[worker]);
        told
    };
    let (with, without) = (told(""), told("mirror"));
    assert!(with.parse::<u64>().is_ok(), "{with}");
    assert!(without.parse::<u64>().is_err(), "{without}");
}

/// The guard dies with a start that it has read and not done.
#[test]
fn without_the_question_a_lost_start_stays_lost() {
    if no_hooks() {
        return;
    }
    let settings = [("OWNERSHIP_TEST_DIE_AT", "claimed")];
    let (mut without, dir) = scripted("resync", &settings);
    without.say("spawn 1 50 exec sleep 600");
    let mark = format!("DIR={}", dir.path().display());
    let (mut with, _dir) = scripted("", &settings);
    let (_, guarded) = first(&mut with);
    let guards = wait_for("the other owner's guards are there too", || Guards::marked(&mark));
    without.listen_for(Duration::from_millis(100));
    assert_eq!(without.told("started", 1), 0);
    clean_up(without, guards, &[]);
    clean_up(with, guarded, &[]);
}

/// A supervisor that does not see the owner's death, as one does not that waits for a file system.
#[test]
fn without_the_mark_a_deaf_supervisor_keeps_everything() {
    if no_hooks() {
        return;
    }
    let without = killed(GRACE, "deaf,mark");
    let with = killed(GRACE, "deaf");
    wait_for("it is killed, and its keeper ends all", || with.living().is_empty().then_some(()));
    assert_eq!(without.living().len(), without.members.len());
    assert!(without.supervisor.lives());
}

#[test]
fn without_the_limit_of_silence_a_stopped_supervisor_is_waited_for() {
    if no_hooks() {
        return;
    }
    let (mut without, _dir) = scripted("silence", &[]);
    let (mut with, _dir) = scripted("", &[]);
    let ((child, alone), (_, guarded)) = (first(&mut without), first(&mut with));
    for (player, guards) in [(&mut without, alone), (&mut with, guarded)] {
        guards.supervisor.signal(Signal::STOP);
        player.say("spawn 2 50 exec sleep 600");
    }
    with.ping().expect("an answer, of the next supervisor");
    assert_eq!(with.told("started", 2), 1);
    without.listen_for(Duration::from_millis(100));
    assert_eq!(without.told("started", 2), 0);
    assert_eq!(alone.supervisor.state().as_deref(), Some("T"));
    clean_up(without, alone, &[child]);
    clean_up(with, guarded, &[]);
}

/// In a release build the same settings change nothing.
#[cfg(not(debug_assertions))]
#[test]
fn a_release_build_cannot_be_weakened() {
    let owner = killed(GRACE, "pidfd,subreaper,walk,kill,keeper-watch,table,mark");
    wait_for("everything ends", || owner.living().is_empty().then_some(()));
}
