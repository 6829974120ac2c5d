//! An owner (`scripted.rs`) from outside: what it is told, and what it has said. Its parent reaps it.
#![allow(dead_code, reason = "each program that uses it has its own part")]
#![allow(clippy::allow_attributes, reason = "an expectation would fail in some of them")]
#![expect(clippy::disallowed_methods, reason = "it waits for facts, with deadlines")]

use std::collections::{BTreeMap, HashSet};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::process::{Guards, Identity};

/// Reached only by a failure.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// An owner and what it has said.
pub(crate) struct Player {
    pub(crate) identity: Identity,
    pub(crate) process: Child,
    input: std::process::ChildStdin,
    output: std::sync::mpsc::Receiver<String>,
    said: Vec<(String, u32, String)>,
    pongs: usize,
    pings: usize,
    pub(crate) started: BTreeMap<u32, Identity>,
    pub(crate) killed: HashSet<Identity>,
}

impl Player {
    /// Starts one by this command.
    pub(crate) fn start(command: &mut Command) -> Self {
        use std::io::BufRead;
        use std::process::Stdio;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut owner = command.spawn().expect("an owner");
        let (tell, output) = std::sync::mpsc::channel();
        let lines = std::io::BufReader::new(owner.stdout.take().expect("output")).lines();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).try_for_each(|line| tell.send(line)).ok();
        });
        Self {
            identity: Identity::of(owner.id().cast_signed()).expect("an owner"),
            input: owner.stdin.take().expect("input"),
            process: owner,
            output,
            said: Vec::new(),
            pongs: 0,
            pings: 0,
            started: BTreeMap::new(),
            killed: HashSet::new(),
        }
    }

    pub(crate) fn say(&mut self, line: &str) {
        use std::io::Write;
        // Fails when it is dead, which is found out otherwise.
        writeln!(self.input, "{line}").ok();
    }

    fn take(&mut self, line: &str) {
        let mut words = line.splitn(3, ' ');
        let word = words.next().unwrap_or_default().to_owned();
        if word == "pong" {
            self.pongs += 1;
            return;
        }
        let id = words.next().and_then(|id| id.parse().ok()).unwrap_or(0);
        let rest = words.next().unwrap_or_default().to_owned();
        if word == "started"
            && let Some(who) = rest.parse().ok().and_then(Identity::of)
        {
            self.started.insert(id, who);
        }
        self.said.push((word, id, rest));
    }

    pub(crate) fn listen_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while let Ok(line) =
            self.output.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            self.take(&line);
        }
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }

    pub(crate) fn until(
        &mut self,
        what: &str,
        mut fact: impl FnMut(&Self) -> bool,
    ) -> Result<(), String> {
        let until = Instant::now() + DEADLINE;
        while !fact(self) {
            let left = until.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(line) => self.take(&line),
                Err(_) => {
                    return Err(format!("NOT IN TIME: {what}; the last words {:?}", self.last()));
                }
            }
        }
        Ok(())
    }

    /// Everything that was said to it before is done.
    pub(crate) fn ping(&mut self) -> Result<(), String> {
        self.pings += 1;
        self.say("ping");
        let pings = self.pings;
        self.until("an answer to everything", |player| player.pongs == pings)
    }

    fn last(&self) -> &[(String, u32, String)] {
        &self.said[self.said.len().saturating_sub(5)..]
    }

    /// Children that it has told of, and that live.
    pub(crate) fn alive(&self) -> Vec<Identity> {
        self.started.values().copied().filter(|who| who.lives()).collect()
    }

    pub(crate) fn guards(&self) -> Option<Guards> {
        self.alive().into_iter().find_map(Guards::of)
    }

    pub(crate) fn killed_ids(&self) -> HashSet<u32> {
        self.started
            .iter()
            .filter(|(_, who)| self.killed.contains(who))
            .map(|(id, _)| *id)
            .collect()
    }

    pub(crate) fn told(&self, word: &str, about: u32) -> usize {
        self.said.iter().filter(|(said, id, _)| said == word && *id == about).count()
    }

    pub(crate) fn of(&self, about: u32) -> Vec<String> {
        let about = self.said.iter().filter(|(_, id, _)| *id == about);
        about.map(|(word, _, rest)| format!("{word} {rest}")).collect()
    }
}
