//! Every example of every page under `docs/` is taken by a test, or says why not.
//!
//! | fence | what is done with it |
//! |---|---|
//! | `rust` | compiled, and run unless it says `no_run`, as a doctest of the facade (`pages` in `src/lib.rs`) |
//! | `yaml` | checked: a configuration by `config check`, a batch file by `run --dry-run` |
//! | `json` | parsed |
//! | `console` | each line after `$ ` is run; what stands below it is what it prints (`…`: anything) |
//! | any other | needs a reason |
//!
//! The line before a fence may be `<!-- file: NAME -->`, then it is a file for the commands of that page, or
//! `<!-- not tested: WHY -->`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::rig::{DELEGATE, Rig, Said};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Pages, below `docs/`. One is made by a test, which compares it.
fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                None => folders.push(path),
                Some(end) if end == "md" && !path.ends_with("contract-coverage.md") => {
                    found.push(path)
                }
                Some(_) => {}
            }
        }
    }
    found.sort();
    found
}

/// One example.
#[derive(Debug, PartialEq)]
struct Fence {
    /// Line of its begin, from 1.
    line: usize,
    /// Its language, and what stands behind it.
    info: String,
    text: String,
    /// Of the comment before it: a file's name, and why it is not tested.
    file: Option<String>,
    reason: Option<String>,
}

impl Fence {
    fn is(&self, language: &str) -> bool {
        self.info.split(',').next() == Some(language)
    }
}

fn fences(page: &str) -> Vec<Fence> {
    let mut found = Vec::new();
    let mut lines = (1..).zip(page.lines());
    let mut before = "";
    while let Some((line, text)) = lines.next() {
        let Some(info) = text.trim_start().strip_prefix("```") else {
            before = text.trim();
            continue;
        };
        let held = lines.by_ref().map(|(_, text)| text).take_while(|text| text.trim() != "```");
        let text = held.map(|text| format!("{text}\n")).collect();
        let comment = |key: &str| {
            let told =
                before.strip_prefix("<!--")?.strip_suffix("-->")?.trim().strip_prefix(key)?;
            Some(told.trim().to_owned()).filter(|told| !told.is_empty())
        };
        let (file, reason) = (comment("file:"), comment("not tested:"));
        found.push(Fence { line, info: info.trim().to_owned(), text, file, reason });
        before = "";
    }
    found
}

/// Whether a line is as it was told; `…` stands for anything.
fn fits(told: &str, said: &str) -> bool {
    let parts: Vec<_> = told.split('…').collect();
    let [first, middle @ .., last] = &parts[..] else { return told == said };
    let Some(mut rest) = said.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else {
        return false;
    };
    middle.iter().all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

/// Whether lines are as they were told; a line `…` stands for any number of them.
fn all_fit(told: &[&str], said: &[&str]) -> bool {
    match told {
        [] => said.is_empty(),
        ["…", rest @ ..] => (0..=said.len()).any(|at| all_fit(rest, &said[at..])),
        [first, rest @ ..] => {
            said.first().is_some_and(|said| fits(first.trim_end(), said.trim_end()))
                && all_fit(rest, &said[1..])
        }
    }
}

/// Runs the commands of an example.
fn console(rig: &Rig, text: &str) -> Result<(), String> {
    let mut commands: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command, Vec::new())),
            (None, Some((_, told))) => told.push(line),
            (None, None) => return Err("it begins with no `$ `".to_owned()),
        }
    }
    let bin = Path::new(DELEGATE).parent().unwrap().display();
    for (command, told) in commands {
        let mut shell = rig.program("sh");
        let path = std::env::var("PATH").unwrap_or_default();
        shell.args(["-c", &format!("{{ {command}\n}} 2>&1")]).env("PATH", format!("{bin}:{path}"));
        shell.env("EDITOR", "true").env("COLUMNS", "100");
        let said = Said::of(shell.output().unwrap());
        let lines: Vec<_> = said.out.lines().collect();
        if !all_fit(&told, &lines) {
            return Err(format!(
                "`{command}` printed (exit {:?})\n{}\nand not\n{}",
                said.code,
                said.out,
                told.join("\n")
            ));
        }
    }
    Ok(())
}

fn yaml(rig: &Rig, fence: &Fence) -> Result<(), String> {
    let name = fence.file.clone().unwrap_or_else(|| format!("line-{}.yaml", fence.line));
    rig.file(&name, &fence.text);
    let is_batch = fence.text.lines().any(|line| line.starts_with("tasks:"));
    let said = if is_batch {
        rig.run(["run", "--dry-run", &name])
    } else {
        rig.run(["config", "check", &name])
    };
    if said.code == Some(0) { Ok(()) } else { Err(format!("{}{}", said.out, said.err)) }
}

/// Whether an example is as it should be.
fn take(rig: &Rig, page: &str, fence: &Fence, facade: &str) -> Result<(), String> {
    if fence.reason.is_some() {
        return Ok(());
    }
    if let Some(name) = &fence.file {
        rig.file(name, &fence.text);
    }
    if fence.is("rust") {
        if fence.info.contains("ignore") || fence.info.contains("compile_fail") {
            return Err("a Rust example that is not compiled needs a reason".to_owned());
        }
        let included = format!("include_str!(\"../{page}\")");
        let why = "its examples are no doctests: add it to `pages` in src/lib.rs";
        return if facade.contains(&included) { Ok(()) } else { Err(why.to_owned()) };
    }
    if fence.is("yaml") {
        return yaml(rig, fence);
    }
    if fence.is("json") {
        return serde_json::from_str::<Value>(&fence.text)
            .map(drop)
            .map_err(|error| error.to_string());
    }
    if fence.is("console") {
        return console(rig, &fence.text);
    }
    if fence.file.is_some() {
        return Ok(());
    }
    Err(format!("`{}` is taken by no test: it needs a reason", fence.info))
}

#[test]
fn every_example_of_every_page_is_taken_by_a_test() {
    let facade = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let (mut taken, mut wrong) = (0, Vec::new());
    for path in pages() {
        let page = path.strip_prefix(root()).unwrap().display().to_string();
        let rig = Rig::new();
        for fence in fences(&fs::read_to_string(&path).unwrap()) {
            taken += u32::from(fence.reason.is_none());
            if let Err(why) = take(&rig, &page, &fence, &facade) {
                wrong.push(format!("{page}:{}: {why}", fence.line));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(taken >= 20, "only {taken} examples were found");
}

/// The control: what is wrong in any of these ways is found.
#[test]
fn an_example_that_is_wrong_is_found() {
    let rig = Rig::new();
    let page = "text\n<!-- file: f.yaml -->\n```yaml\ndelegation:\n  max_iterations: 3\n```\n\n\
                ```console\n$ delegate config check f.yaml\n1 file checked, … is wrong\n```\n";
    let right = fences(page);
    assert_eq!((right.len(), right[0].line, right[0].file.as_deref()), (2, 3, Some("f.yaml")));
    for fence in &right {
        assert_eq!(take(&rig, "p.md", fence, ""), Ok(()));
    }
    for wrong in [
        "```yaml\ndelegation:\n  max_iteration: 3\n```",
        "```yaml\ntasks:\n  - gaol: x\n```",
        "```json\n{\"a\": …}\n```",
        "```console\n$ echo one\ntwo\n```",
        "```console\n$ echo one\n```",
        "```console\nno command\n```",
        "```rust\nfn main() {}\n```",
        "```rust,ignore\nfn main() {}\n```",
        "```sh\ntrue\n```",
        "```\ntrue\n```",
        "<!-- not tested: -->\n```sh\ntrue\n```",
    ] {
        let found = fences(wrong);
        assert_eq!(found.len(), 1, "{wrong}");
        assert!(take(&rig, "p.md", &found[0], "").is_err(), "{wrong}");
    }
    let excused = fences("<!-- not tested: it takes an hour -->\n```sh\ntrue\n```");
    assert_eq!(take(&rig, "p.md", &excused[0], ""), Ok(()));
    assert!(fits("a … c …", "a b c d") && !fits("a … c", "a b") && fits("x", "x"));
    assert!(all_fit(&["a", "…", "d"], &["a", "b", "c", "d"]) && !all_fit(&["a", "…"], &["b"]));
}
