//! The file that says what a child was doing when its time was over before its first model call: the
//! limits, the task, what was seen of it, its own word, and its threads as the kernel sees them. Written
//! on a thread for what blocks; each section survives its own failure. No key stands in it.

use std::fmt::Write as _;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use delegate_child::dump;
use delegate_protocol::TaskSpec;

use crate::monitor::Expired;

/// Its name in the child's folder.
pub(super) const FILE: &str = "timeout-diagnostic.txt";

/// Characters of the goal that it shows.
const GOAL: usize = 1000;

/// What goes into it.
pub(super) struct Diagnostic {
    pub(super) spec: TaskSpec,
    pub(super) isolation: &'static str,
    pub(super) pid: Option<u32>,
    pub(super) expired: Expired,
    /// From its own start.
    pub(super) ran: Duration,
    pub(super) quiet_for: Duration,
    pub(super) liveness: &'static str,
    /// What was seen of it.
    pub(super) activity: String,
    /// What it says itself; `None` when it did not answer.
    pub(super) own_word: Option<String>,
}

impl Diagnostic {
    /// Writes it into the child's folder. Blocks.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn write(&self, folder: &Path) -> io::Result<PathBuf> {
        let path = folder.join(FILE);
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(folder)?;
        let mut options = OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        // One child has one; a link that somebody laid here is not followed.
        let mut file = options.write(true).create_new(true).open(&path)?;
        file.write_all(self.text().as_bytes())?;
        Ok(path)
    }

    fn text(&self) -> String {
        let Self { spec, expired, .. } = self;
        let mut text = String::new();
        section(&mut text, "limits");
        let (limit, key) = (expired.after.as_secs_f64(), expired.limit.key());
        _ = writeln!(text, "ended by: {key}, {limit} s");
        _ = writeln!(text, "ran for: {:.2} s", self.ran.as_secs_f64());
        _ = writeln!(text, "phase: before_first_llm_call");
        section(&mut text, "task");
        _ = writeln!(text, "child: {} ({}, {})", spec.subagent_id, spec.agent, self.isolation);
        _ = writeln!(text, "goal: {}", spec.goal.chars().take(GOAL).collect::<String>());
        _ = writeln!(text, "depth: {}, role: {:?}", spec.child_depth, spec.role);
        _ = writeln!(text, "turns: {}", spec.max_iterations);
        _ = writeln!(text, "model: {}", shown(spec.routing.model.as_deref()));
        _ = writeln!(text, "provider: {}", shown(spec.routing.provider.as_deref()));
        _ = writeln!(text, "api mode: {}", shown(spec.routing.api_mode.as_deref()));
        let url = spec.routing.base_url.as_deref().map(without_secrets);
        _ = writeln!(text, "endpoint: {}", shown(url.as_deref()));
        _ = writeln!(text, "toolsets on: {:?}", spec.enabled_toolsets);
        _ = writeln!(
            text,
            "toolsets off: {:?}, blocked: {:?}",
            spec.disabled_toolsets, spec.blocked_tools
        );
        let prompt = spec.system_prompt.as_ref().map_or(0, String::len);
        let context = spec.context.as_ref().map_or(0, String::len);
        _ = writeln!(text, "bytes of prompt: {prompt}, of context: {context}");
        section(&mut text, "what was seen of it");
        _ = writeln!(text, "{}\nstate: {}", self.activity, self.liveness);
        _ = writeln!(text, "no progress for: {:.2} s", self.quiet_for.as_secs_f64());
        section(&mut text, "its own word");
        text.push_str(self.own_word.as_deref().unwrap_or("(it did not answer)\n"));
        section(&mut text, "its process, from outside");
        match self.pid {
            Some(pid) => {
                text.push_str(&dump::process(pid));
                text.push_str(&dump::threads(pid, Some(pid)));
            }
            None => text.push_str("(a thread of this process; its own word has what can be had)\n"),
        }
        text
    }
}

fn section(text: &mut String, name: &str) {
    _ = writeln!(text, "\n#### {name}");
}

fn shown(word: Option<&str>) -> &str {
    word.unwrap_or("not set")
}

/// An address without what may hold a key: name and password, query and fragment.
fn without_secrets(url: &str) -> String {
    let plain = url.split(['?', '#']).next().unwrap_or_default();
    match plain.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_once('/').map_or((rest, ""), |(host, path)| (host, path));
            let host = host.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}/{path}")
        }
        None => plain.rsplit('@').next().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delegate_protocol::spec::sample;
    use delegate_protocol::{ApiKey, Limit};

    fn diagnostic(pid: Option<u32>) -> Diagnostic {
        let mut spec = sample(0, "agent", &"g".repeat(2 * GOAL));
        spec.routing.base_url = Some("https://user:hush@host:1/v1?key=hush#hush".to_owned());
        spec.routing.api_key = Some(ApiKey::new("hush".to_owned()));
        Diagnostic {
            spec,
            isolation: "process",
            pid,
            expired: Expired { limit: Limit::Run, after: Duration::from_secs(5) },
            ran: Duration::from_secs(5),
            quiet_for: Duration::from_secs(4),
            liveness: "quiet",
            activity: "nothing".to_owned(),
            own_word: None,
        }
    }

    #[test]
    fn c10_it_holds_limits_task_and_threads_and_no_secret() {
        let text = diagnostic(Some(std::process::id())).text();
        for part in [
            "ended by: child_timeout_seconds, 5 s",
            "endpoint: https://host:1/v1\n",
            "(it did not answer)",
            "== thread ",
            "system call: ",
        ] {
            assert!(text.contains(part), "{part} is missing: {text}");
        }
        assert!(!text.contains("hush"), "{text}");
        assert!(text.matches('g').count() < GOAL + 100);
    }

    /// A process that is gone, a file that is there: each is told and nothing panics.
    #[test]
    fn each_section_survives_its_own_failure_and_a_file_is_never_replaced() {
        let text = diagnostic(Some(u32::MAX)).text();
        assert!(text.contains("(not readable: ") && text.contains("#### task"), "{text}");
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        let path = diagnostic(None).write(&inner).unwrap();
        assert_eq!(path, inner.join(FILE));
        assert!(diagnostic(None).write(&inner).is_err());
    }

    #[test]
    fn secrets_of_an_address_are_left_out_of_every_shape() {
        for (url, plain) in [
            ("http://h", "http://h/"),
            ("http://u@h/p?q", "http://h/p"),
            ("http://u:p@w@h/p#f", "http://h/p"),
            ("u:p@h", "h"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(url), plain, "{url}");
        }
    }
}
