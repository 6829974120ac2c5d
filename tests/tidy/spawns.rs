//! No process is started, detached or given a group of its own outside the places whose task it is.
//!
//! Clippy sees direct calls of the standard library; this scan also sees other crates, raw system
//! calls and programs that detach for their caller, and in scripts ([`python`], [`shell`], told by ending
//! or `#!` line) what detaches or starts there. A finding wants `detached-spawn: ok — <why>` in a comment on
//! its line or the line above.
//!
//! Rust test code is apart: it starts the strangers and control owners that must belong to nobody, each
//! held by a guard that ends it, and a reason at each would say the same. Scripts are not apart wherever
//! they stand: nothing there ends what was left. Not looked at: workflow files and here-documents, which
//! hold scripts as data.

use crate::lexer::Kind;
use crate::source::{File, Violation};

mod python;
mod script;
mod shell;

use script::Language;

/// Where processes are started.
const PLACES: [&str; 2] = ["crates/ownership/src/sys", "crates/ownership/src/spawn"];

/// What an exception says on its line or the line above, followed by its reason.
const EXCEPTION: &str = "detached-spawn: ok — ";

/// Functions that start or detach, by whatever path they are called.
const CALLS: [&str; 26] = [
    "fork",
    "vfork",
    "forkpty",
    "rfork",
    "clone3",
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

/// Beginnings of the names of system calls, of their flags, and of the attributes of `posix_spawn`.
const HEADS: [&str; 8] = [
    "SYS_clone",
    "SYS_fork",
    "SYS_vfork",
    "SYS_exec",
    "CLONE_V",
    "CLONE_P",
    "posix_spawn",
    "POSIX_SPAWN_",
];

/// Modules in whose name `clone` and `system` are system calls, and not methods.
const SYSTEM: [&str; 4] = ["libc", "sched", "unistd", "c"];

/// Programs that start something behind their caller's back.
const PROGRAMS: [&str; 12] = [
    "setsid",
    "nohup",
    "daemonize",
    "disown",
    "systemd-run",
    "start-stop-daemon",
    "at",
    "batch",
    "tmux",
    "screen",
    "dtach",
    "daemon",
];

/// Crates that start processes under names of their own.
const CRATES: [&str; 9] = [
    "async_process",
    "command_group",
    "daemonize",
    "duct",
    "expectrl",
    "portable_pty",
    "process_wrap",
    "subprocess",
    "xshell",
];

/// Every start outside its place that gives no reason.
pub(crate) fn spawns(files: &[File]) -> Vec<Violation> {
    let mut found = in_rust(files);
    found.extend(files.iter().flat_map(in_script));
    found
}

/// Starts in a script; none in other files.
fn in_script(file: &File) -> Vec<Violation> {
    let scan = match script::language(file) {
        Some(Language::Python) => python::scan(&file.text),
        Some(Language::Shell) => shell::scan(&file.text),
        None => return Vec::new(),
    };
    let excused = |line: usize| {
        let near = scan.comments.iter().filter(|(at, _)| *at == line || at + 1 == line);
        near.into_iter().any(|(_, comment)| gives_reason(comment))
    };
    let sites = scan.sites.iter().filter(|(line, _)| !excused(*line));
    sites.map(|(line, what)| Violation::new(file, *line, what.as_str())).collect()
}

fn in_rust(files: &[File]) -> Vec<Violation> {
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
        Kind::Ident if text == "process" => after("as") || file.reads(at + 1, &["::", "*"]),
        Kind::Ident if CRATES.contains(&text) => after("::") && module.is_empty(),
        Kind::Ident if CALLS.contains(&text) => {
            !before("fn") && (before("::") || before(".") || after("("))
        }
        Kind::Ident if text == "clone" || text == "system" => {
            SYSTEM.contains(&module)
                || SYSTEM.iter().any(|module| is_grouped(file, at, module)) && !after("(")
        }
        Kind::Ident => HEADS.iter().any(|head| text.starts_with(head)),
        Kind::Punct | Kind::Other => false,
    };
    starts.then(|| format!("`{text}` starts or detaches a process here"))
}

/// `process::Command`, `process::{…, Command}`, and `Command::new` of nobody in particular. The
/// parser of command lines has a type of the same name.
fn is_process_command(file: &File, at: usize, module: &str) -> bool {
    let unnamed = module.is_empty() && file.reads(at + 1, &["::", "new"]);
    module == "process" || is_grouped(file, at, "process") || unnamed
}

/// Whether the token at `at` stands in `module::{…}`.
fn is_grouped(file: &File, at: usize, module: &str) -> bool {
    let open =
        (0..at).rev().take_while(|&i| !file.tokens[i].is(";")).find(|&i| file.tokens[i].is("{"));
    open.is_some_and(|open| open >= 2 && file.reads(open - 2, &[module, "::"]))
}

/// Whether the line of a site, or the line above it, gives a reason.
fn excused(file: &File, site: &Violation) -> bool {
    let above = site.line.saturating_sub(2);
    file.text.lines().skip(above).take(site.line - above).any(|line| {
        let comment = line.split_once("//").map_or("", |(_, comment)| comment);
        gives_reason(comment)
    })
}

fn gives_reason(comment: &str) -> bool {
    comment.split_once(EXCEPTION).is_some_and(|(_, why)| !why.trim().is_empty())
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
            "fn a() { Spawn::new(\"tmux\") }",
            "use std::process::*;",
            "fn a() { libc::posix_spawnattr_setpgroup(p, 0) }",
            "let f = libc::POSIX_SPAWN_SETSID;",
            "use nix::sched::{clone, CpuSet};",
            "fn a() { duct::cmd!(\"x\").start() }",
            "use subprocess::Exec;",
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

    /// By ending, by `#!` line, and in test folders too.
    #[test]
    fn scripts_are_told_by_their_names_or_first_lines() {
        for (path, text) in [
            ("tools/a.py", "os.fork()"),
            ("tests/helpers/a.py", "os.fork()"),
            ("tools/a", "#!/usr/bin/env python3.12\nos.fork()"),
            ("a.sh", "nohup x"),
            ("tests/a.bats", "x &"),
            (".ci/run", "#!/usr/bin/env bash\nx &"),
            ("tools/a", "#!/bin/sh -e\nsetsid x"),
            ("tools/a", "#!/usr/bin/env -S bash -e\nx &"),
        ] {
            assert_eq!(found(path, text), 1, "{path} {text}");
        }
        for (path, text) in [
            ("a.md", "```\nnohup x &\n```"),
            ("a.pl", "#!/usr/bin/perl\nfork();"),
            ("a.txt", "os.fork()"),
            ("LICENSE", "x & y"),
        ] {
            assert_eq!(found(path, text), 0, "{path} {text}");
        }
    }

    #[test]
    fn exceptions_in_scripts_are_comments_with_a_reason() {
        for (path, code) in [("a.py", "os.fork()"), ("a.sh", "x &")] {
            let with = |text: &str| found(path, text);
            assert_eq!(with(&format!("{code} # {EXCEPTION}a template")), 0);
            assert_eq!(with(&format!("# {EXCEPTION}a template\n{code}")), 0);
            assert_eq!(with(&format!("# {EXCEPTION}a template\n\n{code}")), 1);
            assert_eq!(with(&format!("{code} # {EXCEPTION} ")), 1);
            assert_eq!(with(&format!("# detached-spawn: ok\n{code}")), 1);
            assert_eq!(with(&format!("y='# {EXCEPTION}no comment'; {code}")), 1);
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
