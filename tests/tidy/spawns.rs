//! No process is started, detached or given a group of its own outside the places whose task it is.
//!
//! Clippy sees direct calls of the standard library; this scan also sees other crates, raw system
//! calls and programs that detach for their caller. Test code is apart.

use crate::lexer::Kind;
use crate::source::{File, Violation};

/// Where processes are started.
const PLACES: [&str; 2] = ["crates/ownership/src/sys", "crates/ownership/src/spawn"];

/// What an exception says on its line or the line above, followed by its reason.
const EXCEPTION: &str = "detached-spawn: ok — ";

/// Functions that start or detach, by whatever path they are called.
const CALLS: [&str; 28] = [
    "fork",
    "vfork",
    "forkpty",
    "rfork",
    "clone3",
    "posix_spawn",
    "posix_spawnp",
    "setsid",
    "setpgid",
    "setpgrp",
    "process_group",
    "pre_exec",
    "before_exec",
    "daemon",
    "daemonize",
    "execv",
    "execve",
    "execvp",
    "execvpe",
    "execveat",
    "fexecve",
    "execl",
    "execlp",
    "popen",
    "wordexp",
    "fork_exec",
    "runtime_fork",
    "kernel_fork",
];

/// Modules in whose name `clone` and `system` are system calls, and not methods.
const SYSTEM: [&str; 4] = ["libc", "sched", "unistd", "c"];

/// Programs that start something behind their caller's back.
const PROGRAMS: [&str; 8] =
    ["setsid", "nohup", "daemonize", "disown", "systemd-run", "start-stop-daemon", "at", "batch"];

/// Every start outside its place that gives no reason.
pub(crate) fn spawns(files: &[File]) -> Vec<Violation> {
    let watched = files.iter().filter(|file| !file.within(&PLACES));
    let found = watched.flat_map(|file| {
        let sites = file.live().filter_map(|at| Some((file.tokens[at].line, start_at(file, at)?)));
        sites
            .map(|(line, what)| Violation::new(file, line, what))
            .filter(|site| !excused(file, site))
    });
    found.collect()
}

/// What the token at `at` starts, if anything.
fn start_at(file: &File, at: usize) -> Option<String> {
    let token = &file.tokens[at];
    let before = |text: &str| file.near(at, -1).is_some_and(|token| token.is(text));
    let after = |text: &str| file.near(at, 1).is_some_and(|token| token.is(text));
    let text = token.text.as_str();
    let module = if before("::") { file.near(at, -2).map_or("", |token| &token.text) } else { "" };
    let starts = match token.kind {
        Kind::Text => PROGRAMS.contains(&text),
        Kind::Ident if text == "Command" => is_process_command(file, at, module),
        Kind::Ident if text == "CommandExt" => true,
        Kind::Ident if text == "process" => after("as"),
        Kind::Ident if CALLS.contains(&text) => {
            !before("fn") && (before("::") || before(".") || after("("))
        }
        Kind::Ident if text == "clone" || text == "system" => SYSTEM.contains(&module),
        Kind::Ident => ["SYS_clone", "SYS_fork", "SYS_vfork", "SYS_exec", "CLONE_V", "CLONE_P"]
            .iter()
            .any(|head| text.starts_with(head)),
        Kind::Punct | Kind::Other => false,
    };
    starts.then(|| format!("`{text}` starts or detaches a process here"))
}

/// `process::Command`, `process::{…, Command}`, and `Command::new` of nobody in particular. The
/// parser of command lines has a type of the same name.
fn is_process_command(file: &File, at: usize, module: &str) -> bool {
    let open =
        (0..at).rev().take_while(|&i| !file.tokens[i].is(";")).find(|&i| file.tokens[i].is("{"));
    let grouped = open.is_some_and(|open| open >= 2 && file.reads(open - 2, &["process", "::"]));
    let unnamed = module.is_empty() && file.reads(at + 1, &["::", "new"]);
    module == "process" || grouped || unnamed
}

/// Whether the line of a site, or the line above it, gives a reason.
fn excused(file: &File, site: &Violation) -> bool {
    let above = site.line.saturating_sub(2);
    file.text.lines().skip(above).take(site.line - above).any(|line| {
        let comment = line.split_once("//").map_or("", |(_, comment)| comment);
        comment.split_once(EXCEPTION).is_some_and(|(_, why)| !why.trim().is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        spawns(&[File::planted(path, text)]).len()
    }

    const ANYWHERE: &str = "crates/delegate-core/src/run.rs";

    #[test]
    fn every_way_of_starting_is_found() {
        for text in [
            "use std::process::Command;",
            "use std::process::{Child, Command};",
            "use std::process as p;",
            "fn a() { std::process::Command::new(\"x\").spawn() }",
            "fn a() { tokio::process::Command::new(\"x\").status() }",
            "fn a() { Command::new(\"x\").output() }",
            "use std::os::unix::process::CommandExt;",
            "fn a() { command.process_group(0) }",
            "fn a() { command.pre_exec(f) }",
            "fn a() { rustix::process::setsid() }",
            "fn a() { setpgid(0, 0) }",
            "fn a() { nix::unistd::daemon(true, true) }",
            "fn a() { daemon(1, 0) }",
            "fn a() { libc::fork() }",
            "let f = libc::vfork;",
            "fn a() { libc::clone(f) }",
            "fn a() { nix::sched::clone(f) }",
            "fn a() { libc::syscall(libc::SYS_clone3) }",
            "fn a() { libc::posix_spawn(p) }",
            "fn a() { libc::system(p) }",
            "fn a() { Spawn::new(\"setsid\") }",
            "fn a() { Spawn::new(\"systemd-run\") }",
        ] {
            assert_eq!(found(ANYWHERE, text), 1, "{text}");
        }
    }

    #[test]
    fn words_that_start_nothing_are_not_found() {
        for text in [
            "// fork(2) and setsid(2)\nfn a() { let s = \"never fork( here\"; }",
            "fn a() { x.clone(); Arc::clone(&x); thread::Builder::new().spawn(f); }",
            "fn a() { clap::Command::new(\"x\") } struct S { daemon: bool, fork: u8 }",
            "fn a() { owner.spawn(spawn); let setsid = true; }",
            "#[cfg(test)] mod tests { use std::process::Command; }",
        ] {
            assert_eq!(found(ANYWHERE, text), 0, "{text}");
        }
    }

    #[test]
    fn places_and_test_code_are_apart() {
        let text = "fn a() { libc::fork() }";
        for path in
            ["crates/ownership/src/sys/clone.rs", "crates/ownership/src/spawn.rs", "tests/a.rs"]
        {
            assert_eq!(found(path, text), 0, "{path}");
        }
        for path in ["crates/ownership/src/spawning.rs", "src/main.rs", "build.rs"] {
            assert_eq!(found(path, text), 1, "{path}");
        }
    }

    #[test]
    fn an_exception_needs_its_words_and_a_reason() {
        let code = "let x = libc::fork();";
        assert_eq!(found(ANYWHERE, &format!("{code} // {EXCEPTION}it is a template")), 0);
        assert_eq!(found(ANYWHERE, &format!("// {EXCEPTION}it is a template\n{code}")), 0);
        assert_eq!(found(ANYWHERE, &format!("// {EXCEPTION}it is a template\n\n{code}")), 1);
        assert_eq!(found(ANYWHERE, &format!("{code} // {EXCEPTION}")), 1);
        assert_eq!(found(ANYWHERE, &format!("{code} // detached-spawn: ok")), 1);
        assert_eq!(found(ANYWHERE, &format!("{code} let y = \"{EXCEPTION}no comment\";")), 1);
    }
}
