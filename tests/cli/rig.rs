//! A home for one test: a directory that is working directory, home and state in one, and the command
//! started in it with nothing of the caller's environment that could change what it does.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::support::{Identity, Scratch, wait_for};

/// The command under test.
pub(crate) const DELEGATE: &str = env!("CARGO_BIN_EXE_delegate");

/// Marks every process of one rig: whatever the command starts inherits it.
const MARK: &str = "CLI_TEST_MARK";

/// One home.
pub(crate) struct Rig {
    dir: Scratch,
    mark: String,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let dir = Scratch::new();
        let mark = dir.path().file_name().unwrap().to_str().unwrap().to_owned();
        Self { dir, mark }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A file in the home; gives its name back.
    pub(crate) fn file<'a>(&self, name: &'a str, text: impl AsRef<[u8]>) -> &'a str {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        name
    }

    /// A batch file of shell tasks, one per script.
    pub(crate) fn batch<'a>(&self, name: &'a str, scripts: &[&str]) -> &'a str {
        let task = |script: &&str| serde_json::json!({"goal": script, "params": {"argv": ["sh", "-c", script]}});
        let tasks: Vec<Value> = scripts.iter().map(task).collect();
        self.file(name, serde_json::json!({ "tasks": tasks }).to_string())
    }

    /// Some program in this home. Whoever runs the tests may ignore signals (`nohup`, a background
    /// job), and a program keeps what it finds ignored: `env` gives it the usual start.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("env");
        command.arg("--default-signal=INT,QUIT,HUP,TERM,TSTP").arg(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["DELEGAT", "XDG_", "CARGO", "NO_COLOR", "TERM", "OWNERSHIP"]
                .iter()
                .any(|prefix| text.starts_with(prefix))
            {
                command.env_remove(name);
            }
        }
        command
            .current_dir(self.dir())
            .env("HOME", self.dir())
            .env("DELEGATE_STATE_DIR", self.path("state"))
            .env(MARK, &self.mark)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// `delegate` with these arguments.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.program(DELEGATE);
        command.args(args);
        command
    }

    /// Runs it to its end.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Said {
        Said::of(self.command(args).output().unwrap())
    }

    /// Starts it.
    pub(crate) fn start<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Running {
        Running::apart(self.command(args))
    }

    /// Living processes that the command of this rig started, it included.
    pub(crate) fn processes(&self) -> Vec<Identity> {
        marked(&format!("{MARK}={}", self.mark))
    }

    /// Waits until none of them lives.
    pub(crate) fn wait_for_nobody(&self) {
        wait_for("every process of the run to be gone", || {
            self.processes().is_empty().then_some(())
        });
    }

    /// Waits until only that one lives.
    pub(crate) fn wait_for_nobody_but(&self, other: &Running) {
        let other = other.identity().pid;
        wait_for("every process of the run to be gone", || {
            self.processes().iter().all(|process| process.pid == other).then_some(())
        });
    }

    /// Runs on record.
    pub(crate) fn runs(&self) -> Vec<Value> {
        let said = self.run(["runs", "--json"]);
        said.expect(0).json()["runs"].as_array().unwrap().clone()
    }
}

/// Living processes with this entry in their environment.
fn marked(entry: &str) -> Vec<Identity> {
    let pids = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|dir| dir.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|line| line == entry.as_bytes())
    };
    pids.filter(has).filter_map(Identity::of).filter(|process| process.is_alive()).collect()
}

/// What the command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    pub(crate) fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("it prints UTF-8");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Asserts the exit code.
    #[track_caller]
    pub(crate) fn expect(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Exactly one object and a line end on standard output.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert!(self.out.ends_with('\n') && self.out.matches('\n').count() == 1, "{}", self.out);
        serde_json::from_str(&self.out).unwrap()
    }

    /// Asserts that both streams together hold a text.
    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> &Self {
        assert!(
            self.out.contains(text) || self.err.contains(text),
            "not said: {text}\nstdout:\n{}\nstderr:\n{}",
            self.out,
            self.err
        );
        self
    }

    /// Asserts that no escape code or other control is in either stream.
    #[track_caller]
    pub(crate) fn is_plain(&self) -> &Self {
        for text in [&self.out, &self.err] {
            assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        }
        self
    }
}

/// The command while it runs. Killed when a test fails.
#[derive(Debug)]
pub(crate) struct Running(Option<Child>);

impl Running {
    /// In a group of its own: who is stopped must not stand in the group of the test's runner, which the kernel would hang
    /// up as a whole when somebody in it ends who is the last with a parent outside (man 3p _exit).
    pub(crate) fn apart(mut command: Command) -> Self {
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Self::of(command)
    }

    pub(crate) fn of(mut command: Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity::of(self.0.as_ref().unwrap().id()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(self.0.as_ref().unwrap());
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for its end, which must come within the usual limit.
    pub(crate) fn end(mut self) -> Said {
        let child = self.0.take().unwrap();
        let identity = Identity::of(child.id());
        let waiter = std::thread::spawn(move || child.wait_with_output().unwrap());
        let deadline = std::time::Instant::now() + crate::support::LIMIT;
        while !waiter.is_finished() {
            if std::time::Instant::now() > deadline {
                if let Some(identity) = identity.filter(|identity| identity.is_alive()) {
                    let pid = Pid::from_raw(i32::try_from(identity.pid).unwrap()).unwrap();
                    let _gone = rustix::process::kill_process(pid, Signal::KILL);
                }
                panic!("the command did not end");
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Said::of(waiter.join().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}
