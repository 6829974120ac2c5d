//! Worktrees of a `delegate run` that is killed, and a machine without git.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::rig::{Rig, Running};
use crate::support::wait_for;

fn git(dir: &Path, args: &[&str]) -> String {
    let identity = ["-c", "user.name=t", "-c", "user.email=t@t"];
    let output = Command::new("git").current_dir(dir).args(identity).args(args).output().unwrap();
    assert!(output.status.success(), "git {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The home is a repository with one commit, and its runs are isolated.
fn rig() -> Rig {
    let rig = Rig::new();
    git(rig.dir(), &["init", "-q", "-b", "main"]);
    rig.file(".git/info/exclude", "*\n!/tracked\n");
    rig.file("tracked", "1\n");
    git(rig.dir(), &["add", "tracked"]);
    git(rig.dir(), &["commit", "-q", "-m", "first"]);
    rig
}

const ISOLATED: [&str; 2] = ["--set", "worktree_isolation=true"];

fn start(rig: &Rig, batch: &str) -> Running {
    rig.start([&["run", batch], &ISOLATED[..]].concat())
}

/// Branches of children.
fn branches(rig: &Rig) -> usize {
    git(rig.dir(), &["branch", "--list", "delegate/*"]).lines().count()
}

#[test]
fn without_git_nothing_starts_and_it_is_said() {
    let rig = rig();
    rig.batch("b.yaml", &["touch ran"]);
    let mut command = rig.command([&["run", "b.yaml"], &ISOLATED[..]].concat());
    let env = if Path::new("/usr/bin/env").exists() { "/usr/bin/env" } else { "/bin/env" };
    fs::create_dir(rig.path("bin")).unwrap();
    std::os::unix::fs::symlink(env, rig.path("bin/env")).unwrap();
    command.env("PATH", rig.path("bin"));
    let said = crate::rig::Said::of(command.output().unwrap());
    said.expect(2).says("there is no program `git` in PATH").says("nothing was started");
    assert!(!rig.path("ran").exists());
}

#[test]
fn what_a_killed_owner_left_is_cleaned_up_by_the_next_and_its_work_is_kept() {
    for isolation in ["process", "thread"] {
        let rig = rig();
        let home = rig.dir().display();
        let wait = |name: &str, work: &str| {
            format!("{work}; touch {home}/{name}; until test -e {home}/go; do sleep 0.02; done")
        };
        rig.batch("b.yaml", &[&wait("clean", "true"), &wait("dirty", "echo 2 > tracked")]);
        rig.batch("c.yaml", &[&wait("other", "true")]);
        rig.batch("next.yaml", &["true"]);
        let isolation = ["--isolation", isolation];
        let mut killed = rig.start([&["run", "b.yaml"], &ISOLATED[..], &isolation[..]].concat());
        wait_for("both to work", || {
            (rig.path("clean").exists() && rig.path("dirty").exists()).then_some(())
        });
        let of_killed = rig.processes();
        // One that lives beside it.
        let living = start(&rig, "c.yaml");
        wait_for("the other to work", || rig.path("other").exists().then_some(()));
        assert_eq!(branches(&rig), 3);
        killed.signal(Signal::KILL);
        drop(killed.child().wait());
        wait_for("all of the killed one to be gone", || {
            (!of_killed.iter().any(|process| process.is_alive())).then_some(())
        });
        assert_eq!(branches(&rig), 3, "nobody was there to clean up");
        // The next one cleans up beside its work, so it may take another.
        wait_for("the clean one to be gone, and only the living owner's to be locked", || {
            rig.run([&["run", "next.yaml"], &ISOLATED[..]].concat()).expect(0);
            let list = git(rig.dir(), &["worktree", "list", "--porcelain"]);
            (branches(&rig) == 2 && list.matches("\nlocked ").count() == 1).then_some(())
        });
        let list = git(rig.dir(), &["worktree", "list", "--porcelain"]);
        assert!(list.contains("\nlocked "), "the living owner's: {list}");
        let trees = fs::read_dir(rig.path("state/worktrees")).unwrap();
        let trees: Vec<_> = trees.map(|entry| entry.unwrap().path()).collect();
        let texts = trees.iter().filter_map(|path| fs::read_to_string(path.join("tracked")).ok());
        let mut texts: Vec<String> = texts.collect();
        texts.sort();
        assert_eq!(texts, ["1\n", "2\n"], "the living one's, and the work");
        rig.file("go", "");
        living.end().expect(0);
        assert_eq!(branches(&rig), 1, "only the work is left");
    }
}

/// Its owner is killed while git checks it out: it is removed where it holds a part of its commit, and kept where
/// somebody has added to it.
#[test]
fn half_a_checkout_is_removed_and_what_somebody_added_to_one_is_kept() {
    let rig = rig();
    let home = rig.dir().display();
    // Git checks out in the order of names, and stops at the one in the middle.
    let slow =
        format!("touch {home}/in-the-middle; until test -e {home}/go; do sleep 0.02; done; cat");
    git(rig.dir(), &["config", "filter.slow.smudge", &slow]);
    for (name, text) in [("a", "first\n"), (".gitattributes", "m filter=slow\n"), ("m", "middle\n")]
    {
        rig.file(name, text);
    }
    rig.file("z", "last\n");
    git(rig.dir(), &["add", "-f", "a", ".gitattributes", "m", "z"]);
    git(rig.dir(), &["commit", "-q", "-m", "second"]);
    rig.batch("b.yaml", &["touch ran"]);
    rig.batch("next.yaml", &["true"]);
    type Case<'a> = (&'a str, &'a dyn Fn(&Path));
    let cases: [Case<'_>; 5] = [
        ("nothing", &|_| ()),
        ("part", &|tree| fs::write(tree.join("z"), "la").unwrap()),
        ("other", &|tree| fs::write(tree.join("z"), "lost\n").unwrap()),
        ("more", &|tree| fs::write(tree.join("z"), "last\nand more\n").unwrap()),
        ("new", &|tree| fs::write(tree.join("tracked-2"), "").unwrap()),
    ];
    rig.file(".git/info/exclude", "*\n!/tracked*\n");
    for (name, add) in cases {
        let _gone = fs::remove_file(rig.path("go"));
        let _gone = fs::remove_file(rig.path("in-the-middle"));
        let mut killed = start(&rig, "b.yaml");
        wait_for("git to be in the middle", || rig.path("in-the-middle").exists().then_some(()));
        let of_killed = rig.processes();
        killed.signal(Signal::KILL);
        drop(killed.child().wait());
        wait_for("all of the killed one to be gone", || {
            (!of_killed.iter().any(|process| process.is_alive())).then_some(())
        });
        let folders = || {
            let trees = fs::read_dir(rig.path("state/worktrees")).unwrap();
            let trees = trees.map(|entry| entry.unwrap().path());
            trees.filter(|path| path.is_dir()).collect::<Vec<_>>()
        };
        let [tree] = &folders()[..] else { panic!("{name}: {:?}", folders()) };
        assert!(tree.join("a").exists() && !tree.join("z").exists(), "{name}: half of it");
        add(tree);
        rig.file("go", "");
        let goes = matches!(name, "nothing" | "part");
        let records = || {
            let trees = fs::read_dir(rig.path("state/worktrees")).unwrap();
            trees.filter(|entry| entry.as_ref().unwrap().path().is_file()).count()
        };
        // The next one cleans up beside its work, so it may take another.
        wait_for("its record to be dealt with", || {
            rig.run([&["run", "next.yaml"], &ISOLATED[..]].concat()).expect(0);
            (records() == 0).then_some(())
        });
        assert_eq!((tree.exists(), branches(&rig)), (!goes, usize::from(!goes)), "{name}");
        assert!(!rig.path("ran").exists());
        if !goes {
            let tree = tree.to_str().unwrap();
            git(rig.dir(), &["worktree", "remove", "--force", "--force", tree]);
            let branch =
                git(rig.dir(), &["branch", "--list", "--format=%(refname:short)", "delegate/*"]);
            git(rig.dir(), &["branch", "-q", "-D", branch.trim()]);
        }
    }
}

/// What a dead owner's children had done, committed or not, is there after a resume as it was, and the resume works
/// beside it.
#[test]
fn a_resume_takes_nothing_of_what_a_killed_run_has_left() {
    let rig = rig();
    let home = rig.dir().display();
    let commit = "echo 3 > tracked; git -c user.name=t -c user.email=t@t commit -qam work";
    let task = |name: &str, work: &str| {
        format!(
            "test -e {home}/go && exit 0; {work}; touch {home}/{name}; until test -e {home}/go; do sleep 0.02; done"
        )
    };
    rig.batch(
        "b.yaml",
        &[&task("clean", "true"), &task("dirty", "echo 2 > tracked"), &task("done", commit)],
    );
    let mut killed = start(&rig, "b.yaml");
    wait_for("all to work", || {
        ["clean", "dirty", "done"].iter().all(|name| rig.path(name).exists()).then_some(())
    });
    let of_killed = rig.processes();
    killed.signal(Signal::KILL);
    drop(killed.child().wait());
    wait_for("all of the killed one to be gone", || {
        (!of_killed.iter().any(|process| process.is_alive())).then_some(())
    });
    rig.file("go", "");
    rig.run(["resume", "latest"]).expect(0).says("3 completed");
    let trees = fs::read_dir(rig.path("state/worktrees")).unwrap();
    let trees: Vec<_> = trees.map(|entry| entry.unwrap().path()).collect();
    let texts = trees.iter().filter_map(|path| fs::read_to_string(path.join("tracked")).ok());
    let mut texts: Vec<String> = texts.collect();
    texts.sort();
    assert!(texts.contains(&"2\n".to_owned()), "what was not committed: {texts:?}");
    assert!(texts.contains(&"3\n".to_owned()), "what was: {texts:?}");
    let subjects = git(rig.dir(), &["log", "--all", "--format=%s"]);
    assert!(subjects.contains("work"), "{subjects}");
}
