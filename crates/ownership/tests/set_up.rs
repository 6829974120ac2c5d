//! Guards that are killed while they set themselves up: others are started, but not for ever.
//!
//! `OWNERSHIP_TEST_SET_UP=POINT:COUNT:DIR` kills the first COUNT guards that come to a point of their start.

#[path = "../examples/support/player.rs"]
mod player;
mod support;

use player::Player;
use support::process::{self, Guards, Identity, everybody};
use support::{example, no_hooks, wait_for, wait_for_nobody};

struct Scene {
    player: Player,
    dir: tempfile::TempDir,
}

impl Scene {
    fn start(point: &str, deaths: u32, off: &str) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let mut command = std::process::Command::new(example("scripted-owner"));
        let set_up = format!("{point}:{deaths}:{}", dir.path().display());
        command.env("DIR", dir.path()).env("OWNERSHIP_TEST_SET_UP", set_up);
        command.env("OWNERSHIP_TEST_OFF", off);
        Self { player: Player::start(&mut command), dir }
    }

    /// How many guards have died so.
    fn deaths(&self) -> usize {
        let files = std::fs::read_dir(self.dir.path()).expect("dir").flatten();
        files.filter(|file| file.file_name().to_string_lossy().starts_with("death-")).count()
    }

    /// Asks for a child; gives what is said of it.
    fn spawn(&mut self, id: u32) -> Vec<String> {
        self.player.say(&format!("spawn {id} 50 exec sleep 600"));
        self.player.ping().expect("it is answered");
        self.player.of(id)
    }

    fn marked(&self) -> Vec<Identity> {
        let mark = format!("DIR={}", self.dir.path().display());
        let marked = everybody().filter(|who| who.lives() && who.has_variable(&mark));
        marked.filter(|who| *who != self.player.identity).collect()
    }

    /// The owner dies, and nothing is left of it.
    fn end(self) {
        self.player.identity.kill();
        wait_for_nobody(|| self.marked());
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.player.identity.kill();
        for who in self.marked() {
            who.kill();
        }
    }
}

#[test]
fn a_guard_that_is_killed_in_its_set_up_has_a_successor() {
    if no_hooks() {
        return;
    }
    for point in ["stage", "keeper", "supervisor"] {
        for deaths in [1, 2] {
            let case = format!("{point} {deaths}");
            let mut control = Scene::start("nobody", 0, "");
            assert!(control.spawn(1)[0].starts_with("started"), "the control owner");
            let mut scene = Scene::start(point, deaths, "");
            let said = scene.spawn(1);
            assert!(said[0].starts_with("started"), "{case}: {said:?}");
            assert_eq!(scene.deaths(), deaths as usize, "{case}: they have died");
            let mark = format!("DIR={}", scene.dir.path().display());
            wait_for("a pair", || Guards::marked(&mark));
            assert_eq!(scene.player.alive().len(), 1, "{case}");
            scene.end();
            assert_eq!(control.player.alive().len(), 1, "{case}: a stranger's child lives");
            control.end();
        }
    }
}

/// It says so, with the reason and within the time of the starts; the next request starts others.
#[test]
fn c54_guards_that_always_die_are_a_clear_error_and_the_next_request_asks_again() {
    if no_hooks() {
        return;
    }
    for point in ["stage", "keeper"] {
        let mut scene = Scene::start(point, 3, "");
        let said = scene.spawn(1);
        assert!(said[0].starts_with("failed") && said[0].contains("3 of them died"), "{said:?}");
        assert_eq!((said.len(), scene.deaths(), scene.marked().len()), (1, 3, 0), "{point}");
        let said = scene.spawn(2);
        assert!(said[0].starts_with("started"), "{point}: {said:?}");
        scene.end();
    }
}

/// Negative control.
#[test]
fn without_another_start_one_death_is_a_failed_spawn() {
    if no_hooks() {
        return;
    }
    let mut scene = Scene::start("keeper", 1, "start-again");
    let said = scene.spawn(1);
    assert!(said[0].starts_with("failed"), "{said:?}");
    scene.end();
}
