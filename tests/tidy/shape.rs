//! What every file must have and must not have: a module doc, no `unsafe` outside the fence, no clock
//! outside the files that wait, no growth past a few screens, no path of somebody's machine.

use crate::lexer::Kind;
use crate::source::{File, Violation};

/// Where `unsafe` may stand.
const FENCE: [&str; 2] = ["crates/ownership/src/sys", "crates/ownership/src/inherit"];

/// The files that read the clock, each with what it waits for. Elsewhere time is an argument.
const CLOCKS: [(&str, &str); 16] = [
    (
        "crates/delegate-core/src/helper/hub",
        "a helper that keeps ending is started a few times a minute",
    ),
    ("crates/delegate-core/src/run/clock", "the loop of a batch waits for children and deadlines"),
    (
        "src/cli/commands/ps/tasks",
        "the picture waits a moment for what delegators say of their tasks",
    ),
    ("src/cli/commands/wait", "the verb waits for the end of runs"),
    (
        "crates/ownership/src/connection",
        "an owner waits for answers, and for guards that give none",
    ),
    (
        "crates/ownership/src/client/comeback",
        "a program that was executed anew waits for its guards",
    ),
    (
        "crates/ownership/src/supervisor_loop",
        "the supervisor's loop waits for ends and grace periods",
    ),
    ("crates/ownership/src/systemd", "a guard waits for the answer of a systemd, to a deadline"),
    ("crates/ownership/src/pid_one", "number 1 of a pid namespace waits for those inside"),
    ("crates/ownership/src/exempt/shim", "a shim waits for the end of its job and of its time"),
    ("crates/ownership/src/exempt/stop", "stopping a job waits for its end"),
    ("crates/ownership/src/janitor/end", "ending what is left over waits for it"),
    ("crates/delegate-child/src/session", "a child measures its own quiet time"),
    ("crates/delegate-child/src/worker/template", "a template measures what a copy of it costs"),
    (
        "crates/delegate-core/src/launch/zygote",
        "what executing the worker program costs is measured",
    ),
    ("src/cli/commands/follow", "the live view waits for events and for its next frame"),
];

/// Most lines of a file, its test items not counted.
const MAX_LINES: usize = 500;

/// Files that may be longer, with their own limit. Empty is the aim.
const LONGER: [(&str, usize); 0] = [];

/// Every module opens with its doc, in test code too.
pub(crate) fn module_docs(files: &[File]) -> Vec<Violation> {
    let bare = files.iter().filter(|file| {
        let first = file.text.lines().find(|line| !line.trim().is_empty());
        file.is_rust() && !first.is_some_and(|line| line.starts_with("//! "))
    });
    bare.map(|file| Violation::new(file, 1, "opens without a `//!` doc")).collect()
}

/// `unsafe` stands behind its fence, in test code too.
pub(crate) fn unsafe_code(files: &[File]) -> Vec<Violation> {
    let outside = files.iter().filter(|file| !file.within(&FENCE));
    let found = outside.flat_map(|file| {
        let sites =
            file.tokens.iter().filter(|token| token.kind == Kind::Ident && token.is("unsafe"));
        sites.map(|token| Violation::new(file, token.line, "`unsafe` outside ownership::sys"))
    });
    found.collect()
}

/// Only the files that wait read the clock.
pub(crate) fn clocks(files: &[File]) -> Vec<Violation> {
    let others = files.iter().filter(|file| !CLOCKS.iter().any(|(at, _)| file.within(&[at])));
    let found = others.flat_map(|file| {
        let reads = file.live().filter(|&at| {
            file.reads(at, &["Instant", "::", "now"]) || file.reads(at, &[".", "elapsed", "("])
        });
        reads.map(|at| Violation::new(file, file.tokens[at].line, "reads the clock"))
    });
    found.collect()
}

/// No file is longer than a few screens.
pub(crate) fn sizes(files: &[File]) -> Vec<Violation> {
    let found = files.iter().filter(|file| file.is_rust() && !file.test).filter_map(|file| {
        let limit =
            LONGER.iter().find(|(path, _)| *path == file.path).map_or(MAX_LINES, |row| row.1);
        let lines = live_lines(file);
        let what = format!("{lines} lines, the limit is {limit}: two things live here");
        (lines > limit).then(|| Violation::new(file, 0, what))
    });
    found.collect()
}

/// Lines of a file without those of its test items.
fn live_lines(file: &File) -> usize {
    let mut lines = file.text.lines().count();
    let mut tokens = file.tokens.iter().peekable();
    while let Some(first) = tokens.next() {
        if first.test {
            let mut last = first.line;
            while let Some(next) = tokens.next_if(|token| token.test) {
                last = next.line;
            }
            lines -= last - first.line + 1;
        }
    }
    lines
}

/// Names of people that samples in tests and documents may use.
const SAMPLES: [&str; 5] = ["a", "me", "u", "user", "you"];

/// No file names a folder of one machine.
pub(crate) fn machine_paths(files: &[File]) -> Vec<Violation> {
    let found = files.iter().filter(|file| file.path != "Cargo.lock").flat_map(|file| {
        let lines = (1..).zip(file.text.lines()).filter(|(_, line)| names_machine(line));
        lines.map(|(line, _)| Violation::new(file, line, "names a folder of one machine"))
    });
    found.collect()
}

fn names_machine(line: &str) -> bool {
    // In pieces, so that this file does not name what it looks for.
    ["root", "work", "home"].iter().any(|folder| {
        let path = format!("/{folder}/");
        line.match_indices(&path).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let rest = &line[at + path.len()..];
            let name = rest.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or("");
            let starts = before.is_none_or(|c| !c.is_alphanumeric() && !"_-.~})/*".contains(c));
            starts && (*folder != "home" || !name.is_empty() && !SAMPLES.contains(&name))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(rule: fn(&[File]) -> Vec<Violation>, path: &str, text: &str) -> usize {
        rule(&[File::planted(path, text)]).len()
    }

    #[test]
    fn a_module_without_its_doc_is_found() {
        for text in ["", "fn a() {}", "// a comment\n//! too late", "//!\n//! nothing yet", "/// b"]
        {
            assert_eq!(count(module_docs, "tests/a.rs", text), 1, "{text:?}");
        }
        assert_eq!(count(module_docs, "src/a.rs", "\n//! Does a thing.\nfn a() {}"), 0);
        assert_eq!(count(module_docs, "a.md", "# no doc"), 0);
    }

    #[test]
    fn unsafe_outside_the_fence_is_found() {
        let text = "fn a() { unsafe { b() } }";
        assert_eq!(count(unsafe_code, "crates/ownership/src/owner.rs", text), 1);
        assert_eq!(count(unsafe_code, "tests/a.rs", "unsafe extern \"C\" {}"), 1);
        assert_eq!(count(unsafe_code, "crates/ownership/src/sys/fd.rs", text), 0);
        assert_eq!(count(unsafe_code, "src/a.rs", "#![expect(unsafe_code)] // unsafe"), 0);
    }

    #[test]
    fn a_clock_outside_the_files_that_wait_is_found() {
        for text in ["fn a() { Instant::now() }", "let f = std::time::Instant::now;", "x.elapsed()"]
        {
            assert_eq!(count(clocks, "crates/delegate-core/src/monitor/mod.rs", text), 1, "{text}");
            assert_eq!(count(clocks, "crates/delegate-core/src/runs.rs", text), 1, "{text}");
            assert_eq!(count(clocks, "crates/delegate-core/src/run/clock.rs", text), 0, "{text}");
            assert_eq!(count(clocks, "benches/a.rs", text), 0, "{text}");
        }
        assert!(CLOCKS.iter().all(|(_, why)| !why.is_empty()));
    }

    #[test]
    fn a_file_that_has_grown_is_found() {
        let live = "fn a() {}\n".repeat(MAX_LINES);
        let tests = "#[cfg(test)]\nmod tests {\n\n\n}\n";
        assert_eq!(count(sizes, "src/a.rs", &live), 0);
        assert_eq!(count(sizes, "src/a.rs", &format!("{live}{tests}")), 0);
        assert_eq!(count(sizes, "src/a.rs", &format!("{live}fn b() {{}}\n{tests}")), 1);
        assert_eq!(count(sizes, "tests/a.rs", &live.repeat(2)), 0);
    }

    #[test]
    fn a_folder_of_one_machine_is_found() {
        for (folder, fine) in [("root", false), ("work", false), ("home", false), ("homes", true)] {
            let text = format!("see `/{folder}/somebody/x`");
            assert_eq!(count(machine_paths, "docs/a.md", &text), usize::from(!fine), "{text}");
        }
        for text in ["~/work/x", "src/work/x", "https://x.org/work/", "/home/$USER", "/home/you/x"]
        {
            assert_eq!(count(machine_paths, "docs/a.md", text), 0, "{text}");
        }
    }
}
