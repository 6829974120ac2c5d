//! Copies of a template: each is a child of the supervisor, as alone as one that executed its program, and
//! does nothing before it is registered, whoever dies in between.

#![expect(clippy::disallowed_methods, reason = "the owner is a program of its own")]

mod support;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};

use support::{DEADLINE, Identity, example, no_hooks, process, wait_for, wait_for_nobody};

struct Copies {
    owner: Child,
    ask: ChildStdin,
    told: Receiver<String>,
    dir: tempfile::TempDir,
}

impl Copies {
    fn start(hooks: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let mut owner = support::undisturbed(example("copy-owner").to_str().expect("path"))
            .env("DIR", dir.path())
            .envs(hooks.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("owner");
        let out = BufReader::new(owner.stdout.take().expect("stdout"));
        let (tell, told) = channel();
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).all(|line| tell.send(line).is_ok())
        });
        let ask = owner.stdin.take().expect("stdin");
        Self { owner, ask, told, dir }
    }

    fn ask(&mut self, text: &str) {
        writeln!(self.ask, "{text}").expect("ask");
    }

    /// The rest of the next line that begins like this.
    fn hear(&self, start: &str) -> String {
        loop {
            let line = self.told.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("no {start}"));
            if let Some(rest) = line.strip_prefix(start) {
                return rest.trim().to_owned();
            }
        }
    }

    fn template(&mut self) -> Identity {
        self.ask("template");
        Identity::of(self.hear("template ").parse().expect("pid")).expect("template")
    }

    fn copy(&mut self, id: &str) -> (Identity, HashMap<String, String>) {
        self.ask(&format!("copy {id}"));
        let pid = self.hear(&format!("copy {id} ")).parse().expect("pid");
        let facts = self.hear(&format!("facts {id} "));
        let pairs = facts.split(' ').filter_map(|word| word.split_once('='));
        let facts = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        (Identity::of(pid).expect("copy"), facts)
    }

    /// Who has run, in order.
    fn ran(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("ran")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Everybody whose environment names this directory, but the owner.
    fn everybody(&self) -> Vec<Identity> {
        let own = self.owner.id().cast_signed();
        let entry = format!("DIR={}", self.dir.path().display());
        process::everybody().filter(|who| who.pid != own && who.has_variable(&entry)).collect()
    }

    fn kill_owner(&mut self) {
        self.owner.kill().expect("kill");
        self.owner.wait().expect("wait");
        wait_for_nobody(|| self.everybody());
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        drop(self.owner.kill());
        drop(self.owner.wait());
    }
}

/// A copy runs with what its supervisor lays on it before it goes on.
#[test]
fn a_copy_has_a_ration_of_its_own() {
    let mut copies = Copies::start(&[("COPY_NICE", "6"), ("COPY_PROCESSES", "50")]);
    let template = copies.template();
    let (copy, _) = copies.copy("1");
    let nice = |who: Identity| {
        let pid = rustix::process::Pid::from_raw(who.pid).expect("a number");
        rustix::process::getpriority_process(Some(pid)).expect("nice")
    };
    assert_eq!(nice(copy), (nice(template) + 6).min(19), "the template itself has none");
    let groups =
        |who: Identity| fs::read_to_string(format!("/proc/{}/cgroup", who.pid)).expect("cgroup");
    if groups(template).contains(":pids:") {
        let pids = |who| {
            let text = groups(who);
            text.lines().find(|line| line.contains(":pids:")).map(str::to_owned)
        };
        assert_ne!(pids(copy), pids(template));
    }
}

#[test]
fn a_copy_is_as_alone_as_one_that_executed_its_program() {
    let mut copies = Copies::start(&[]);
    let template = copies.template();
    let supervisor = template.parent().expect("parent");
    let mut seen = HashSet::new();
    for id in ["1", "2", "3"] {
        let (copy, facts) = copies.copy(id);
        let pid = copy.pid.to_string();
        assert_eq!(copy.parent(), Some(supervisor), "a child of the supervisor");
        assert_eq!(facts["parent"], supervisor.to_string());
        assert_eq!((&facts["group"], &facts["session"]), (&pid, &pid));
        // Three streams, what it was given, its line, and the file in which it says that it ran.
        assert_eq!(facts["open"], "6", "{facts:?}");
        assert_eq!(facts["given"], "[9,4]");
        assert_eq!(
            facts["tag"], facts["shown"],
            "its environment says the same inside and outside"
        );
        assert!(seen.insert(facts["tag"].clone()), "a tag of its own");
        assert!(seen.insert(facts["hash"].clone()), "random state of its own");
        assert_eq!((&*facts["fresh"], &*facts["left"]), ("true", "true"));
        assert_eq!((&*facts["umask"], &*facts["blocked"]), ("0022", "0000000000000000"));
        let here = std::env::current_dir().expect("dir");
        assert_eq!(facts["dir"], here.display().to_string());
    }
    assert_eq!(copies.ran(), ["1", "2", "3"]);
    // What becomes of the template is nothing to them.
    copies.ask("kill-template");
    copies.hear("emptied template");
    assert_eq!(copies.everybody().iter().filter(|who| who.name() == template_name()).count(), 3);
    copies.ask("copy 4");
    assert_eq!(copies.hear("failed 4 "), format!("request {}", libc::ESRCH));
    copies.ask("end 2");
    copies.hear("emptied 2");
    copies.kill_owner();
    assert_eq!(copies.ran(), ["1", "2", "3"]);
}

/// As the kernel shows them all: copies and guards execute nothing.
fn template_name() -> String {
    "copy-owner".to_owned()
}

/// Between its fork and its registration anybody may die. Nothing is left of it, and nothing of it ran.
#[test]
fn a_template_that_dies_at_a_fork_leaves_nothing() {
    if no_hooks() {
        return;
    }
    for (wrong, ran) in [("template-dies", 1), ("copy-dies", 0), ("copy-hangs", 0)] {
        let mut copies = Copies::start(&[("OWNERSHIP_TEST_FORK", wrong)]);
        let template = copies.template();
        copies.ask("copy 1");
        if ran == 1 {
            // It stands by itself already: its template's end is nothing to it.
            copies.hear("facts 1 ");
        } else {
            let failed = copies.hear("failed 1 ");
            assert!(failed.starts_with("setup "), "{wrong}: {failed}");
        }
        wait_for("the template is gone", || (!template.lives()).then_some(()));
        assert_eq!(copies.ran().len(), ran, "{wrong}");
        // Only the guards, and who ran.
        wait_for("nobody else is left", || {
            let others = copies.everybody().into_iter().filter(|who| who.pid != template.pid);
            (others.filter(|who| who.name() == template_name()).count() == ran).then_some(())
        });
        // The owner can start another one.
        copies.template();
        copies.kill_owner();
    }
}

/// The supervisor dies after the fork: before the copy is in the table it leaves, and who asked is told that
/// there is none; after it, the keeper goes on with it. It runs once or never.
#[test]
fn a_supervisor_that_dies_at_a_fork_has_it_run_once_or_never() {
    if no_hooks() {
        return;
    }
    for (step, runs) in [("cloned:2", 0), ("registered", 1), ("before-started:2", 1)] {
        let mut copies = Copies::start(&[("OWNERSHIP_TEST_DIE_AT", step)]);
        copies.template();
        copies.ask("copy 1");
        if runs == 1 {
            copies.hear("facts 1 ");
        } else {
            assert_eq!(copies.hear("failed 1 "), format!("request {}", libc::ESRCH), "{step}");
        }
        copies.template();
        copies.copy("2");
        let ran = copies.ran();
        assert_eq!(ran.iter().filter(|id| *id == "1").count(), runs, "{step}: {ran:?}");
        copies.kill_owner();
        assert_eq!(copies.ran().len(), runs + 1);
    }
}

/// Without the wait for the hello it runs although nobody knows of it. What its template leaves is let live
/// here, and there is no cgroup to find it in, so that its end cannot hide that.
#[test]
fn without_the_hello_a_copy_runs_that_nobody_knows() {
    if no_hooks() {
        return;
    }
    for (off, runs) in [("", 0), ("fork-hello", 1)] {
        let hooks = [
            ("OWNERSHIP_TEST_DIE_AT", "cloned:2"),
            ("OWNERSHIP_TEST_OFF", off),
            ("KEEP_LEFT", "1"),
            ("OWNERSHIP_TEST_CONTAINMENT", "subreaper"),
        ];
        let mut copies = Copies::start(&hooks);
        let template = copies.template();
        copies.ask("copy 1");
        copies.hear("failed 1 ");
        wait_for("the template is gone", || (!template.lives()).then_some(()));
        wait_for("it ran or not, and is gone", || {
            let others = copies.everybody().into_iter();
            let others = others.filter(|who| who.name() == template_name()).count();
            (copies.ran().len() == runs && others == 0).then_some(())
        });
        copies.kill_owner();
        assert_eq!(copies.ran().len(), runs);
    }
}
