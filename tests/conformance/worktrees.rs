//! A git worktree for each child (contract 1.2, C50, RB-51), over both executors and real git: where it works, what
//! is removed, what is kept and why, and that nothing starts where there can be none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use delegate_runtime::config::Settings;
use delegate_runtime::{Cause, Isolation, Outcome, StartError, Status, Task, Worktree};

use crate::support::{BOTH, Rig, command, rig_with, run};

/// A repository with one commit, and a remote that has it.
struct Repository {
    folder: tempfile::TempDir,
}

fn git(dir: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.current_dir(dir).args(args).env("GIT_CONFIG_NOSYSTEM", "1");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "t").env(format!("GIT_{role}_EMAIL"), "t@t");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "git {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Repository {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q", "--bare", "remote.git"]);
        let this = Self { folder };
        git(this.folder.path(), &["init", "-q", "-b", "main", "repo"]);
        fs::create_dir(this.top().join("sub")).unwrap();
        fs::write(this.top().join("sub/a"), "a\n").unwrap();
        fs::write(this.top().join(".gitignore"), "*.log\n").unwrap();
        git(&this.top(), &["add", "-A"]);
        git(&this.top(), &["commit", "-q", "-m", "first"]);
        let remote = fs::canonicalize(this.folder.path()).unwrap().join("remote.git");
        git(&this.top(), &["remote", "add", "origin", remote.to_str().unwrap()]);
        git(&this.top(), &["push", "-q", "origin", "main"]);
        git(&this.top(), &["config", "user.name", "t"]);
        git(&this.top(), &["config", "user.email", "t@t"]);
        this
    }

    fn top(&self) -> PathBuf {
        fs::canonicalize(self.folder.path()).unwrap().join("repo")
    }

    fn task(&self, script: &str) -> Task {
        command("work", ["sh", "-c", script]).cwd(self.top().join("sub"))
    }

    fn branches(&self) -> Vec<String> {
        let list = git(&self.top(), &["branch", "--format=%(refname:short)"]);
        list.lines().map(str::to_owned).collect()
    }

    fn worktrees(&self) -> usize {
        git(&self.top(), &["worktree", "list", "--porcelain"]).matches("worktree ").count()
    }
}

fn isolated(isolation: Isolation) -> Rig {
    rig_with(isolation, Settings { worktree_isolation: true, ..Settings::default() })
}

fn tree(outcome: &Outcome) -> &Worktree {
    assert_eq!(outcome.status, Status::Completed, "{outcome:?}");
    outcome.worktree.as_ref().expect("it had one")
}

/// Its place below the state directory.
fn below(tree: &Worktree) -> PathBuf {
    Path::new("worktrees").join(tree.path.file_name().unwrap())
}

fn records(rig: &Rig) -> usize {
    let list = fs::read_dir(rig.state.path().join("worktrees")).unwrap();
    list.filter(|entry| entry.as_ref().unwrap().path().extension().is_some()).count()
}

#[test]
fn each_child_works_in_a_place_and_on_a_branch_of_its_own() {
    for isolation in BOTH {
        let (repository, rig) = (Repository::new(), isolated(isolation));
        fs::create_dir(repository.top().join("build.log")).unwrap();
        let script = "pwd; git branch --show-current; \
             grep -c '^delegate' \"$(git rev-parse --git-dir)/locked\"; cat a; echo x > ignored.log";
        let mut tasks = vec![repository.task(script); 6];
        tasks.push(repository.task("pwd; git branch --show-current").worktree_isolation(false));
        // A folder that no commit has.
        tasks.push(repository.task("pwd").cwd(repository.top().join("build.log")));
        let (outcomes, _) = run(&rig, tasks);
        let mut places = std::collections::BTreeSet::new();
        for outcome in &outcomes[..6] {
            let tree = tree(outcome);
            let lines: Vec<&str> = outcome.summary.as_deref().unwrap().lines().collect();
            assert!(Path::new(lines[0]).ends_with(below(tree).join("sub")), "{lines:?}");
            assert_eq!(lines[1], tree.branch);
            assert!(lines[2].parse::<u32>().unwrap() >= 1, "it bears its owner's lock: {lines:?}");
            assert_eq!(lines[3], "a");
            assert!(tree.pruned && !tree.path.exists(), "{tree:?}");
            assert_eq!((tree.commits, tree.dirty, tree.inspection_failed), (0, false, false));
            places.insert((tree.path.clone(), tree.branch.clone()));
        }
        assert_eq!(places.len(), 6);
        let own = outcomes[6].summary.as_deref().unwrap();
        assert_eq!(own.lines().next().map(Path::new), Some(&*repository.top().join("sub")));
        assert_eq!(outcomes[6].worktree, None);
        let own = outcomes[7].summary.as_deref().unwrap();
        assert!(
            Path::new(own.trim()).ends_with(below(tree(&outcomes[7])).join("build.log")),
            "{own}"
        );
        assert!(tree(&outcomes[7]).pruned);
        assert_eq!((repository.branches(), repository.worktrees()), (vec!["main".to_owned()], 1));
        assert_eq!(records(&rig), 0);
    }
}

/// What the script does, whether the worktree goes, and a part of the reason for keeping it.
const CASES: [(&str, bool, &str); 12] = [
    ("true", true, ""),
    ("echo x > ignored.log", true, ""),
    ("echo x > new", false, "not committed"),
    ("echo x >> a", false, "not committed"),
    ("rm a", false, "not committed"),
    ("echo x >> a; git commit -qam own", false, "1 commit(s) are nowhere else"),
    ("echo y >> a; git commit -qam pushed; git push -q origin HEAD", true, ""),
    ("git checkout -q --detach; echo z >> a; git commit -qam own", false, "nowhere else"),
    ("git update-index --assume-unchanged a; echo x >> a", false, "told not to look at sub/a"),
    ("git rev-parse HEAD > $(git rev-parse --git-dir)/MERGE_HEAD", false, "in the middle of"),
    ("rm ../.git", false, "could not be looked at"),
    ("echo gitdir: /nowhere > ../.git", false, "could not be looked at"),
];

#[test]
fn c50_a_worktree_is_removed_only_when_it_is_proved_clean() {
    for isolation in BOTH {
        let (repository, rig) = (Repository::new(), isolated(isolation));
        let tasks: Vec<Task> = CASES.iter().map(|(script, ..)| repository.task(script)).collect();
        let (outcomes, _) = run(&rig, tasks);
        for ((script, pruned, why), outcome) in CASES.iter().zip(&outcomes) {
            let tree = tree(outcome);
            assert_eq!(tree.pruned, *pruned, "{script}: {tree:?}");
            assert_eq!(tree.path.exists(), !pruned, "{script}: {tree:?}");
            let has_branch = repository.branches().contains(&tree.branch);
            assert_eq!(has_branch, !pruned, "{script}: {tree:?}");
            let note = tree.note.as_deref().unwrap_or_default();
            assert!(note.contains(why) && note.is_empty() == *pruned, "{script}: {tree:?}");
            let looked = !script.contains("../.git");
            assert_eq!(tree.inspection_failed, !looked, "{script}: {tree:?}");
        }
        // What was kept is an ordinary worktree from now on.
        let list = git(&repository.top(), &["worktree", "list", "--porcelain"]);
        assert!(!list.contains("locked"), "{list}");
        assert_eq!(records(&rig), 0);
    }
}

#[test]
fn a_child_that_crashes_or_is_ended_keeps_its_work() {
    for isolation in BOTH {
        let (repository, rig) = (Repository::new(), isolated(isolation));
        let tasks = ["echo x > new; exit 3", "exit 3"].map(|script| repository.task(script));
        let (outcomes, _) = run(&rig, tasks);
        let trees = outcomes.iter().map(|outcome| outcome.worktree.as_ref().unwrap());
        let seen: Vec<_> = trees.map(|tree| (tree.pruned, tree.dirty)).collect();
        assert_eq!(seen, [(false, true), (true, false)], "{outcomes:?}");
    }
}

#[test]
fn rb_51_where_there_can_be_no_worktree_nothing_starts() {
    for isolation in BOTH {
        let rig = isolated(isolation);
        let plain = tempfile::tempdir().unwrap();
        let unborn = tempfile::tempdir().unwrap();
        git(unborn.path(), &["init", "-q"]);
        let ran = plain.path().join("ran");
        for (dir, why) in [
            (plain.path(), "not a git repository"),
            (unborn.path(), "has no commit yet"),
            (Path::new("/nowhere"), "could not be run"),
        ] {
            let script = format!("touch {}", ran.display());
            let task = command("work", ["sh", "-c", &script]).cwd(dir);
            let Err(refused) = rig.delegator.batch([task]).start() else { panic!("{why}") };
            let text = refused.to_string();
            assert!(matches!(refused, StartError::NoWorktree { task: 0, .. }), "{text}");
            assert!(text.contains(why) && text.ends_with("nothing was started"), "{text}");
        }
        assert!(!ran.exists());
    }
}

/// Found when the child is to start, and not before: its task fails and nothing of it is left.
#[test]
fn a_worktree_that_cannot_be_made_fails_its_task_only() {
    for isolation in BOTH {
        let (repository, rig) = (Repository::new(), isolated(isolation));
        // A checkout that fails half way.
        fs::write(repository.top().join(".git/info/attributes"), "* filter=broken\n").unwrap();
        for (key, value) in [("required", "true"), ("smudge", "false"), ("clean", "cat")] {
            git(&repository.top(), &["config", &format!("filter.broken.{key}"), value]);
        }
        let (outcomes, _) = run(&rig, [repository.task("echo ran")]);
        let error = outcomes[0].error.as_deref().unwrap();
        assert!(error.contains("`git reset` failed"), "{error}");
        assert_eq!((repository.worktrees(), records(&rig)), (1, 0));
        assert_eq!(repository.branches(), ["main"]);
        // No branch can lie below another one.
        git(&repository.top(), &["branch", "delegate"]);
        let free = repository.task("echo fine").worktree_isolation(false);
        let (outcomes, _) = run(&rig, [repository.task("echo ran"), free]);
        assert_eq!(outcomes[0].status, Status::Error, "{:?}", outcomes[0]);
        let Some(Cause::StartFailed { phase, .. }) = &outcomes[0].cause else {
            panic!("{:?}", outcomes[0])
        };
        assert_eq!(phase, "worktree");
        let error = outcomes[0].error.as_deref().unwrap();
        assert!(error.contains("`git worktree add` failed"), "{error}");
        assert_eq!((&outcomes[0].worktree, &outcomes[0].summary), (&None, &None));
        assert_eq!(outcomes[1].status, Status::Completed);
        assert_eq!((repository.worktrees(), records(&rig)), (1, 0));
    }
}
