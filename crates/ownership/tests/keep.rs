//! `own --keep`: a real tmux server and a real ssh-agent live on, with what stands below them, in whatever way the rest
//! ends, on both tiers; without the rule they end, and a stranger's are never touched.

#![expect(clippy::disallowed_methods, reason = "a test starts what is tested")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::Signal;
use support::matrix::{Bystanders, Case, run};
use support::process::Guards;
use support::{Identity, kill_both, no_hooks, recorded, tier, wait_for, wait_for_nobody};

/// The small program of this crate.
const OWN: &str = env!("CARGO_BIN_EXE_own");

fn wait_child(child: &mut Child) -> std::process::ExitStatus {
    wait_for("the front's end", || child.try_wait().expect("wait"))
}

/// A server, an agent, a daemon that no rule is about, and a program that ends with 3 when it is told.
const SCRIPT: &str = r#"
note() { echo $2 > $D/$1.new; mv $D/$1.new $D/$1; }
tmux -S $D/tmux -f /dev/null new-session -d "exec sleep 600"
note server $(tmux -S $D/tmux display-message -p '#{pid}')
note pane $(tmux -S $D/tmux display-message -p '#{pane_pid}')
eval $(ssh-agent -a $D/agent.sock) > $D/said
note agent $SSH_AGENT_PID
(setsid sh -c 'echo $$ > $D/daemon.new; mv $D/daemon.new $D/daemon; exec sleep 600' &)
until [ -e $D/daemon ]; do sleep 0.02; done
note program $$
until [ -e $D/exit ]; do sleep 0.02; done
exit 3
"#;

#[expect(clippy::print_stderr, reason = "skips loudly")]
fn are_there() -> bool {
    let there = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(name).exists())
    };
    let missing: Vec<_> = ["tmux", "ssh-agent"].into_iter().filter(|name| !there(name)).collect();
    if !missing.is_empty() {
        eprintln!("SKIPPED: NOT INSTALLED HERE: {missing:?}");
    }
    missing.is_empty()
}

struct Kept {
    front: Child,
    dir: tempfile::TempDir,
    program: Identity,
    daemon: Identity,
    server: Identity,
    pane: Identity,
    agent: Identity,
}

impl Kept {
    fn start(args: &[&str], off: &str) -> Self {
        use std::os::unix::process::CommandExt;
        let dir = tempfile::tempdir().expect("dir");
        let mut command = Command::new(OWN);
        command.args(["--grace", "2s"]).args(args).args(["--", "bash", "-c", SCRIPT]);
        command.env("D", dir.path()).env("OWNERSHIP_TEST_OFF", off).env_remove("TMUX");
        command.stdin(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let front = command.spawn().expect("own");
        let path: &Path = dir.path();
        let program = recorded(path, "program");
        let [daemon, server, pane, agent] =
            ["daemon", "server", "pane", "agent"].map(|name| recorded(path, name));
        Self { front, program, daemon, server, pane, agent, dir }
    }

    fn kept(&self) -> [Identity; 3] {
        [self.server, self.pane, self.agent]
    }

    fn guards(&self) -> Guards {
        let marker = format!("D={}", self.dir.path().display());
        wait_for("two guards", || {
            let guards = Guards::of(self.program).or_else(|| Guards::marked(&marker))?;
            guards.keeper.is_some().then_some(guards)
        })
    }

    fn kill_guard(&self, keeper: bool) {
        let guards = self.guards();
        if keeper {
            guards.keeper.expect("two").kill()
        } else {
            guards.supervisor.kill()
        }
        wait_for("it is replaced", || (self.guards() != guards).then_some(()));
    }

    fn kill_front(&mut self) {
        Identity::of(self.front.id().cast_signed()).expect("front").kill();
        wait_child(&mut self.front);
    }

    fn let_exit(&mut self) {
        std::fs::File::create(self.dir.path().join("exit")).expect("exit");
        assert_eq!(wait_child(&mut self.front).code(), Some(3));
    }

    /// What the front has said, once it has ended.
    fn said(&mut self) -> String {
        let mut said = String::new();
        let mut stderr = self.front.stderr.take().expect("stderr");
        std::io::Read::read_to_string(&mut stderr, &mut said).expect("read");
        said
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.kept().into_iter().for_each(Identity::kill);
    }
}

type Blow = fn(&mut Kept);

const BLOWS: [(&str, Blow); 7] = [
    ("the program exits", Kept::let_exit),
    ("kill -9 of the front", Kept::kill_front),
    ("kill -9 of the program", |kept| {
        kept.program.kill();
        wait_child(&mut kept.front);
    }),
    ("supervisor -9, then the program exits", |kept| {
        kept.kill_guard(false);
        kept.let_exit();
    }),
    ("supervisor -9, then the front", |kept| {
        kept.kill_guard(false);
        kept.kill_front();
    }),
    ("keeper -9, then the front", |kept| {
        kept.kill_guard(true);
        kept.kill_front();
    }),
    ("both guards -9, then the front", |kept| {
        let guards = kept.guards();
        kill_both(guards.keeper.expect("two"), guards.supervisor);
        wait_for("others are there", || (kept.guards() != guards).then_some(()));
        kept.kill_front();
    }),
];

/// Guards are gone when nobody of the tree but the kept ones is left, so nothing comes later.
fn assert_only_kept(kept: &Kept, guards: Guards) {
    let rest = [kept.program, kept.daemon, guards.supervisor];
    let rest: Vec<_> = rest.into_iter().chain(guards.keeper).collect();
    wait_for_nobody(|| rest.iter().copied().filter(|who| who.lives()).collect());
    for (who, name) in kept.kept().into_iter().zip(["server", "pane", "agent"]) {
        assert!(who.lives(), "{name} {who:?}");
        assert!(!matches!(who.state().as_deref(), Some("T")), "{who:?} stands still");
    }
    // It answers.
    let socket = kept.dir.path().join("tmux");
    let mut ask = Command::new("tmux");
    ask.arg("-S").arg(&socket).args(["list-sessions"]).stdout(Stdio::null());
    assert!(ask.status().expect("tmux").success());
}

fn tiers() -> Vec<&'static str> {
    match tier::cgroup() {
        Some(_) => vec!["subreaper", "cgroup"],
        None => vec!["subreaper"],
    }
}

#[test]
fn what_a_rule_keeps_lives_however_the_rest_ends() {
    if !are_there() {
        return;
    }
    let bystanders = Bystanders::start();
    let stranger = Stranger::start();
    let cases = tiers().into_iter().flat_map(|tier| {
        BLOWS.iter().map(move |(name, blow)| (format!("{tier}: {name}"), tier, *blow))
    });
    let case = |(name, tier, blow): (String, &'static str, Blow)| {
        let (bystanders, stranger) = (&bystanders, &stranger);
        Case::new(&name, move || {
            let args = ["--keep", "tmux,ssh-agent", "--containment", tier];
            let mut kept = Kept::start(&args, "");
            let mut guards = kept.guards();
            blow(&mut kept);
            // Those who took over, where somebody did.
            if let Some(later) = Guards::of(kept.program) {
                guards = later;
            }
            assert_only_kept(&kept, guards);
            bystanders.assert_untouched();
            stranger.assert_untouched();
        })
    };
    run(cases.map(case).collect());
}

/// The keeper gets what the supervisor let go as it leaves, perhaps between its look and its signals. One round in
/// sixteen met that.
#[test]
fn what_is_kept_is_hit_by_no_guard_that_leaves() {
    if !are_there() {
        return;
    }
    for _ in 0..40 {
        let mut kept = Kept::start(&["--keep", "tmux,ssh-agent"], "");
        let guards = kept.guards();
        kept.let_exit();
        assert_only_kept(&kept, guards);
    }
}

/// A tmux server that somebody else has started.
struct Stranger {
    dir: tempfile::TempDir,
    server: Identity,
}

impl Stranger {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let tmux = |args: &[&str]| -> Output {
            let mut command = Command::new("tmux");
            command.arg("-S").arg(dir.path().join("tmux")).args(["-f", "/dev/null"]).args(args);
            command.env_remove("TMUX").stdin(Stdio::null()).output().expect("tmux")
        };
        assert!(tmux(&["new-session", "-d", "exec sleep 600"]).status.success());
        let pid = tmux(&["display-message", "-p", "#{pid}"]).stdout;
        let pid = String::from_utf8(pid).expect("text").trim().parse().expect("a number");
        Self { server: Identity::of(pid).expect("it lives"), dir }
    }

    fn assert_untouched(&self) {
        assert!(self.server.lives(), "{}", self.dir.path().display());
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.server.kill();
    }
}

/// What the rows above show is the rule's work.
#[test]
fn without_the_rule_it_ends_and_the_line_says_how_to_keep_it() {
    if !are_there() {
        return;
    }
    let stranger = Stranger::start();
    for tier in tiers() {
        let mut kept = Kept::start(&["--containment", tier], "");
        kept.let_exit();
        wait_for_nobody(|| kept.kept().into_iter().filter(|who| who.lives()).collect());
        let said = kept.said();
        assert!(said.contains("--keep tmux keeps") && said.contains("--keep ssh-agent"), "{said}");
        let mut kept = Kept::start(&["--keep", "tmux", "--containment", tier], "");
        kept.let_exit();
        wait_for_nobody(|| [kept.agent].into_iter().filter(|who| who.lives()).collect());
        assert!(kept.server.lives() && kept.pane.lives());
        let said = kept.said();
        assert!(said.contains(", kept 1 (tmux, --keep)"), "{said}");
        stranger.assert_untouched();
    }
}

#[test]
fn without_the_mechanisms_it_would_end() {
    if no_hooks() || !are_there() {
        return;
    }
    let args = ["--keep", "tmux,ssh-agent"];
    let mut offs = vec![("keep", "subreaper")];
    // Ended with the cgroup that it was born in.
    offs.extend(tier::cgroup().map(|_| ("keep-move", "cgroup")));
    for (off, tier) in offs {
        let args = [&args[..], &["--containment", tier]].concat();
        let mut kept = Kept::start(&args, off);
        kept.kill_front();
        wait_for_nobody(|| kept.kept().into_iter().filter(|who| who.lives()).collect());
    }
}

/// A name is not enough: a program that calls itself so, one that leads no session, one that does not listen, one whose
/// parent lives.
#[test]
fn a_name_alone_keeps_nobody() {
    let dir = tempfile::tempdir().expect("dir");
    let sleep = PathBuf::from("/bin/sleep").canonicalize().expect("sleep");
    let fake = dir.path().join("ssh-agent");
    std::fs::copy(sleep, &fake).expect("copy");
    let script = "(setsid $D/ssh-agent 600 & echo $! > $D/one); \
        (exec -a ssh-agent setsid sleep 600 & echo $! > $D/two); sleep 0.1; exit 0";
    let mut command = Command::new(OWN);
    command.args(["--grace", "200ms", "--keep", "ssh-agent", "--", "bash", "-c", script]);
    let ended = command.env("D", dir.path()).output().expect("own");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(said.contains("ended with it: 2") && !said.contains("kept"), "{said}");
}

#[test]
fn what_is_no_rule_is_refused_and_the_rules_are_shown() {
    let own = |args: &[&str]| Command::new(OWN).args(args).output().expect("own");
    let refused = own(&["--keep", "nothing", "--", "true"]);
    assert_eq!(refused.status.code(), Some(125));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("no rule \"nothing\"") && said.contains("--list-rules"), "{said}");
    let listed = String::from_utf8(own(&["--list-rules"]).stdout).expect("text");
    assert!(listed.contains("[tmux]") && listed.contains("why "), "{listed}");
    let refused = own(&["--containment", "strong", "--", "true"]);
    assert_eq!(refused.status.code(), Some(125));
    assert_eq!(own(&["--containment", "subreaper", "--", "true"]).status.code(), Some(0));
}

/// A signal for the program is not one for what is kept.
#[test]
fn a_signal_to_the_front_ends_the_program_alone() {
    if !are_there() {
        return;
    }
    let mut kept = Kept::start(&["--keep", "tmux,ssh-agent"], "");
    let guards = kept.guards();
    assert!(Identity::of(kept.front.id().cast_signed()).expect("front").signal(Signal::TERM));
    wait_child(&mut kept.front);
    assert_only_kept(&kept, guards);
}
