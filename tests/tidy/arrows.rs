//! Imports point one way: between the crates, and between the modules of each crate.
//!
//! The tables are the order that `ARCHITECTURE.md` draws. A module that stands in no row is a
//! violation too, so a new module has to take a place before it can be used.

use crate::lexer::{Kind, Token, close_of};
use crate::source::{File, Violation};

/// Folder of a package, name of its library, and libraries of ours that it may import.
const CRATES: [(&str, &str, &[&str]); 5] = [
    ("crates/delegate-protocol", "delegate_protocol", &[]),
    ("crates/ownership", "ownership", &[]),
    ("crates/delegate-child", "delegate_child", &["delegate_protocol", "ownership"]),
    (
        "crates/delegate-core",
        "delegate_core",
        &["delegate_protocol", "ownership", "delegate_child"],
    ),
    (
        "",
        "delegate_runtime",
        &["delegate_protocol", "ownership", "delegate_child", "delegate_core"],
    ),
];

/// Modules of a package in layers: a module may import its own layer and every layer above it in
/// this list. Modules that need each other share a layer.
const LAYERS: [(&str, &[&[&str]]); 4] = [
    (
        "crates/delegate-protocol",
        &[
            &["codec", "file", "id", "job"],
            &["value"],
            &["outcome", "routing"],
            &["envelope", "event", "lease", "spec", "tool_text", "trace", "turn"],
            &["delegation"],
            &["ask"],
            &["message", "spelling"],
            &["frame", "page", "version"],
        ],
    ),
    (
        "crates/ownership",
        &[
            &["exit", "hook", "crash", "program", "number"],
            &["containment", "ration", "spawn", "sys", "inherit"],
            &["page", "file_size"],
            &["protocol", "identity", "escalation"],
            &["line", "membership", "launch", "registry", "journal", "group"],
            &["cgroup", "keep", "systemd", "handover"],
            &["table", "peer", "succession", "door"],
            &["supervisor", "child", "ledger"],
            &["attach", "hot", "order", "pid_one", "template"],
            &["connection"],
            &["supervisor_loop", "client", "unsupported", "recorder", "recorder_off", "exempt"],
            &["sight", "watchdog"],
            &["janitor"],
            &["owner"],
            &["re_executed", "wrap"],
        ],
    ),
    (
        "crates/delegate-child",
        &[
            &[
                "answer",
                "asks",
                "beat",
                "cancel",
                "dump",
                "guard",
                "helper",
                "hook",
                "kept",
                "look",
                "mail",
                "owner_source",
                "pace",
                "tail",
                "schema",
            ],
            &["link"],
            &["account", "greeting"],
            &["queue"],
            &["outbox"],
            &["hot"],
            &["agent", "files", "jobs", "keys", "session", "turns"],
            &["outcome"],
            &["delegation"],
            &["agents"],
            &["second_turn"],
            &["registry"],
            &["finish"],
            &["serve"],
            &["worker"],
        ],
    ),
    (
        "crates/delegate-core",
        &[
            &["config"],
            &["plan"],
            &["tree"],
            &["file_state", "worktree"],
            &["jobs"],
            &["lease"],
            &["store"],
            &["launch"],
            &["monitor"],
            &["collect"],
            &["report"],
            &["run"],
            &["control"],
            &["background"],
            &["helper"],
            &["session"],
            &["delegator"],
        ],
    ),
];

/// Arrows between crates that point the wrong way, in code and in manifests.
pub(crate) fn between_crates(files: &[File]) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in files {
        let Some((_, own, allowed)) = CRATES.iter().find(|(at, ..)| *at == file.package()) else {
            found.push(Violation::new(file, 0, "a package that the table of crates does not have"));
            continue;
        };
        let mentioned = if file.path.ends_with("Cargo.toml") { manifest(file) } else { code(file) };
        found.extend(mentioned.into_iter().filter_map(|(line, name)| {
            let fine = name == *own || allowed.contains(&&*name);
            (!fine).then(|| Violation::new(file, line, format!("{own} imports {name}")))
        }));
    }
    found
}

/// Libraries of ours that live code names, with lines.
fn code(file: &File) -> Vec<(usize, String)> {
    let names = file.live().filter(|&at| {
        let token = &file.tokens[at];
        let path = file.near(at, 1).is_some_and(|next| next.is("::"));
        let before = file.near(at, -1);
        let whole = before.is_some_and(|token| token.is("use") || token.is("crate"));
        let inner = before.is_some_and(|token| token.is("::") || token.is("."));
        ours(&token.text) && token.kind == Kind::Ident && (path || whole) && !inner
    });
    names.map(|at| (file.tokens[at].line, file.tokens[at].text.clone())).collect()
}

/// Libraries of ours among the dependencies that are compiled into the package.
fn manifest(file: &File) -> Vec<(usize, String)> {
    let mut section = "";
    let mut found = Vec::new();
    for (line, text) in (1..).zip(file.text.lines()) {
        if text.starts_with('[') {
            section = text.trim();
        }
        let compiled = section.ends_with("dependencies]")
            && !section.starts_with("[workspace")
            && !section.starts_with("[dev-");
        let name = text.split(['.', '=', ' ']).next().unwrap_or("").replace('-', "_");
        let name = if name == "delegate_ownership" { "ownership".to_owned() } else { name };
        if compiled && ours(&name) {
            found.push((line, name));
        }
    }
    found
}

fn ours(name: &str) -> bool {
    CRATES.iter().any(|(_, library, _)| *library == name)
}

/// Arrows between the modules of one crate that point the wrong way.
pub(crate) fn between_modules(files: &[File]) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.is_rust() && !file.test) {
        let Some((package, layers)) = LAYERS.iter().find(|(at, _)| *at == file.package()) else {
            continue;
        };
        let Some(module) = module_of(&file.path, package) else { continue };
        let layer = |name: &str| layers.iter().position(|layer| layer.contains(&name));
        let Some(own) = layer(module) else {
            let what = format!("module {module} has no place in the order of {package}");
            found.push(Violation::new(file, 0, what));
            continue;
        };
        for (line, name) in imports(file, depth_of(&file.path, package)) {
            let what = match layer(&name) {
                Some(other) if other <= own => continue,
                Some(_) => format!("{module} imports {name}, which stands right of it"),
                None => format!("crate::{name} is not a module of the order: name where it lives"),
            };
            found.push(Violation::new(file, line, what));
        }
    }
    found
}

/// The module directly below the crate root that a file belongs to. `None` for roots of targets.
fn module_of<'a>(path: &'a str, package: &str) -> Option<&'a str> {
    let inside = path.strip_prefix(package)?.strip_prefix("/src/")?;
    let first = inside.split('/').next()?;
    let module = first.trim_end_matches(".rs");
    (!["lib", "main", "bin"].contains(&module)).then_some(module)
}

/// How far below the crate root the module of a file is.
fn depth_of(path: &str, package: &str) -> usize {
    let inside = path.strip_prefix(package).unwrap_or(path).trim_start_matches("/src/");
    inside.matches('/').count() + usize::from(!inside.ends_with("/mod.rs"))
}

/// Modules below the crate root that live code names through `crate::` or enough `super::`.
fn imports(file: &File, depth: usize) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in file.live() {
        let token = &file.tokens[at];
        let start = if token.is("crate") && file.reads(at + 1, &["::"]) {
            Some(at + 2)
        } else if token.is("super") && !file.near(at, -1).is_some_and(|before| before.is("::")) {
            let supers = (0..).take_while(|n| file.reads(at + 2 * n, &["super", "::"])).count();
            (supers >= depth).then_some(at + 2 * supers)
        } else {
            None
        };
        if let Some(start) = start {
            found.extend(heads(&file.tokens, start));
        }
    }
    // A macro of the crate is not a module.
    found.retain(|(_, name)| !name.is_empty());
    found
}

/// First names of a path or of the alternatives of a `use` group that starts at `start`.
fn heads(tokens: &[Token], start: usize) -> Vec<(usize, String)> {
    let Some(first) = tokens.get(start) else { return Vec::new() };
    if !first.is("{") {
        let is_macro = tokens.get(start + 1).is_some_and(|next| next.is("!"));
        let name = if is_macro { String::new() } else { first.text.clone() };
        return vec![(first.line, name)];
    }
    let mut found = Vec::new();
    let (mut at, end) = (start + 1, close_of(tokens, start) - 1);
    let mut fresh = true;
    while at < end {
        let token = &tokens[at];
        if fresh && !token.is("self") {
            found.push((token.line, token.text.clone()));
        }
        fresh = token.is(",");
        at = if token.is("{") { close_of(tokens, at) } else { at + 1 };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crates(path: &str, text: &str) -> Vec<String> {
        let found = between_crates(&[File::planted(path, text)]);
        found.into_iter().map(|violation| violation.what).collect()
    }

    fn modules(path: &str, text: &str) -> Vec<String> {
        let found = between_modules(&[File::planted(path, text)]);
        found.into_iter().map(|violation| violation.what).collect()
    }

    #[test]
    fn an_arrow_between_crates_that_points_back_is_found() {
        let child = "crates/delegate-child/src/serve.rs";
        for text in [
            "use delegate_core::run;",
            "use delegate_core as core;",
            "extern crate delegate_core;",
            "fn a() { delegate_core::run::b() }",
            "use { std::fmt, delegate_core::run };",
        ] {
            assert_eq!(crates(child, text), ["delegate_child imports delegate_core"], "{text}");
        }
        assert_eq!(crates("crates/ownership/src/a.rs", "use delegate_protocol::id;").len(), 1);
        assert_eq!(crates("crates/new/src/lib.rs", "").len(), 1);
    }

    #[test]
    fn an_arrow_between_crates_that_points_forward_is_fine() {
        let child = "crates/delegate-child/src/serve.rs";
        for text in [
            "use delegate_protocol::id; use ownership::{Owner, Spawn};",
            "// delegate_core::run\n fn a() { let x = \"delegate_core::run\"; }",
            "#[cfg(test)] mod tests { use delegate_core::run; }",
            "fn a() { config.ownership::<u8>(); let ownership = 1; }",
        ] {
            assert_eq!(crates(child, text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn a_dependency_that_points_back_is_found_in_the_manifest() {
        let text = "[dependencies]\ndelegate-child.workspace = true\n[dev-dependencies]\n\
                    delegate-core.workspace = true\n[target.'cfg(unix)'.dependencies]\n\
                    delegate-ownership = { path = \"x\" }";
        let found = crates("crates/delegate-protocol/Cargo.toml", text);
        assert_eq!(
            found,
            ["delegate_protocol imports delegate_child", "delegate_protocol imports ownership"]
        );
    }

    #[test]
    fn an_arrow_between_modules_that_points_back_is_found() {
        let plan = "crates/delegate-core/src/plan/task.rs";
        for text in [
            "use crate::store::Store;",
            "use crate::{config, store};",
            "use crate::{config::{Settings, store_path}, store::{self, Store}};",
            "fn a() -> crate::store::Store {}",
            "pub(crate) use super::super::store::Store;",
            "fn a() { $crate::store::open() }",
        ] {
            let expected = ["plan imports store, which stands right of it"];
            assert_eq!(modules(plan, text), expected, "{text}");
        }
        assert_eq!(
            modules("crates/delegate-core/src/plan/mod.rs", "use super::run::Run;").len(),
            1
        );
    }

    #[test]
    fn a_name_without_a_place_in_the_order_is_found() {
        let plan = "crates/delegate-core/src/plan/task.rs";
        assert_eq!(modules(plan, "use crate::Store;").len(), 1);
        assert_eq!(modules(plan, "use crate::*;").len(), 1);
        assert_eq!(modules("crates/delegate-core/src/newcomer.rs", "").len(), 1);
    }

    #[test]
    fn an_arrow_between_modules_that_points_forward_is_fine() {
        let plan = "crates/delegate-core/src/plan/task.rs";
        for text in [
            "use crate::config::Settings; use super::Isolation; pub(crate) fn a() {}",
            "use crate::{config::{store}, plan::Isolation};",
            "#[cfg(test)] mod tests { use crate::store::Store; }",
            "fn a() { crate::log_once!(store) } // crate::store",
            "use std::store::super_;",
        ] {
            assert_eq!(modules(plan, text), Vec::<String>::new(), "{text}");
        }
        assert!(modules("crates/delegate-core/src/lib.rs", "pub use crate::run::Run;").is_empty());
    }
}
