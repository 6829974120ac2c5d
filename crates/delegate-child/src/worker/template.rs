//! A template of workers: the program is loaded and one agent prepared, once; each worker is a copy
//! ([`ownership::template`]). What was prepared, and what a copy costs, is said on descriptor 3 before the
//! first one is asked for; [`super`] carries the task in each copy.

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ownership::page::Page;
use ownership::template::{Served, Template};
use serde::{Deserialize, Serialize};

use super::again::{self, AGAIN_FD};
use super::{LINE_FD, OWNER_FD, PAGE_FD, carry, say};
use crate::agent::Failure;
use crate::guard;
use crate::link;
use crate::registry::Registry;

/// The argument that makes a program a template, with `=AGENT` behind it.
pub const TEMPLATE_ROLE: &str = "@delegate-template";

/// Where a template is asked to fork.
pub const CONTROL_FD: i32 = 5;

/// Said as soon as the program runs, before anything is prepared.
pub const UP: u8 = b'+';

/// Longest report, in bytes.
pub const REPORT_BYTES: u64 = 64 * 1024;

/// Copies that are measured; the fastest counts.
const TRIALS: usize = 3;

/// From this size on huge pages are tried: below it a copy takes less than executing the program anyway.
const LARGE_KIB: u64 = 8 * 1024;

/// What a template has ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// The agent that was built.
    pub agent: String,
    /// Agents of the program, sorted.
    pub agents: Vec<String>,
    /// Whether the agent says that a worker may carry several tasks ([`crate::Agent::REUSABLE`]).
    #[serde(default)]
    pub reusable: bool,
    /// Why it cannot be used, for people.
    pub failed: Option<String>,
    /// Microseconds that preparing took.
    pub prepare_us: u64,
    /// Microseconds of a copy: the fastest of a few.
    pub fork_us: u64,
    /// The same before huge pages were asked for; 0 where they were not.
    pub fork_us_small_pages: u64,
    /// Memory of its own when it was ready, in KiB (`RssAnon`).
    pub anonymous_kib: u64,
    /// Of that in huge pages, in KiB.
    pub huge_kib: u64,
}

/// The agent that a role names.
pub(super) fn agent_of(role: &str) -> Option<&str> {
    role.strip_prefix(TEMPLATE_ROLE)?.strip_prefix('=')
}

#[expect(clippy::disallowed_methods, reason = "what a start costs is measured here")]
fn now() -> Instant {
    Instant::now()
}

/// The role.
pub(super) fn run(registry: &Registry, agent: &str) -> ExitCode {
    let (line, control) = (ownership::inherit::take(LINE_FD), ownership::inherit::take(CONTROL_FD));
    let (Ok(line), Ok(control)) = (line, control) else {
        say(&format!("descriptors {LINE_FD} and {CONTROL_FD} are not the lines of a template"));
        return ExitCode::from(2);
    };
    let mut line = UnixStream::from(line);
    // Who asked may be gone; then nobody asks for copies either.
    if line.write_all(&[UP]).is_err() {
        return ExitCode::FAILURE;
    }
    let mut prepared = Prepared {
        agent: agent.to_owned(),
        agents: registry.names(),
        reusable: registry.is_reusable(agent),
        failed: None,
        prepare_us: 0,
        fork_us: 0,
        fork_us_small_pages: 0,
        anonymous_kib: 0,
        huge_kib: 0,
    };
    let template = match make(registry, agent, control, &mut prepared) {
        Ok(template) => Some(template),
        Err(why) => {
            prepared.failed = Some(why);
            None
        }
    };
    let said = serde_json::to_vec(&prepared).map(|report| line.write_all(&report));
    drop(line);
    let (Ok(Ok(())), Some(template)) = (said, template) else { return ExitCode::FAILURE };
    match template.serve() {
        Served::Over(code) => code,
        Served::Child(given) => child(given, registry),
    }
}

fn make(
    registry: &Registry,
    agent: &str,
    control: OwnedFd,
    prepared: &mut Prepared,
) -> Result<Template, String> {
    let template = Template::on(control).map_err(|error| format!("no copies here: {error}"))?;
    let begun = now();
    let made = guard::run(|| registry.prepare(agent));
    prepared.prepare_us = micros(begun.elapsed());
    made.map_err(|panic| format!("preparing panicked: {panic}"))?.map_err(why)?;
    template.settle().map_err(|error| error.to_string())?;
    prepared.fork_us = trial(&template)?;
    if memory("RssAnon:") >= LARGE_KIB && template.use_huge_pages() > 0 {
        prepared.fork_us_small_pages = prepared.fork_us;
        prepared.fork_us = trial(&template)?;
    }
    (prepared.anonymous_kib, prepared.huge_kib) = (memory("RssAnon:"), huge_pages());
    Ok(template)
}

fn why(failure: Failure) -> String {
    match failure {
        Failure::Failed { message, .. } | Failure::Broken { message } => message,
        Failure::Interrupted => "preparing was interrupted".to_owned(),
        Failure::MaxIterations { .. } => "preparing used up its turns".to_owned(),
    }
}

fn trial(template: &Template) -> Result<u64, String> {
    let one = || {
        let begun = now();
        template.trial().map(|()| micros(begun.elapsed()))
    };
    let all: Result<Vec<_>, _> = (0..TRIALS).map(|_| one()).collect();
    let all = all.map_err(|error| format!("a trial copy failed: {error}"))?;
    Ok(all.into_iter().min().unwrap_or(0))
}

/// A field of `/proc/self/status` in KiB; 0 where there is none.
fn memory(field: &str) -> u64 {
    field_of("/proc/self/status", field)
}

fn huge_pages() -> u64 {
    field_of("/proc/self/smaps_rollup", "AnonHugePages:")
}

fn field_of(file: &str, field: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// In each copy: a worker like any other.
fn child(given: Vec<(i32, OwnedFd)>, registry: &Registry) -> ExitCode {
    let (mut line, mut owner, mut page, mut more) = (None, None, None, None);
    for (number, fd) in given {
        match number {
            LINE_FD => line = Some(fd),
            OWNER_FD => owner = Some(fd),
            PAGE_FD => page = Some(fd),
            AGAIN_FD => more = Some(fd),
            _ => {}
        }
    }
    let none = || Err(std::io::ErrorKind::NotFound.into());
    let page = page.map_or_else(none, Page::open);
    match (line, more) {
        (Some(line), None) => carry(link::socket(line), owner, page, registry),
        (Some(line), Some(more)) => again::carry(line, owner, page, &more, &registry.keeping()),
        (None, _) => {
            say("a copy got no line to its parent");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_names_its_agent() {
        assert_eq!(agent_of("@delegate-template=primes"), Some("primes"));
        assert_eq!(agent_of("@delegate-template="), Some(""));
        assert_eq!(agent_of("@delegate-template"), None);
        assert_eq!(agent_of("@delegate-worker"), None);
    }
}
