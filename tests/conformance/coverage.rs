//! `docs/contract-coverage.md`: every line of the contract with the tests that carry its number, made of
//! `lines.tsv` and the names of tests. A line without a test says "not yet", or why it does not apply.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = "docs/contract-coverage.md";

/// The variable with which the page is written instead of compared.
const WRITE: &str = "WRITE_COVERAGE";

/// One line of the contract.
struct Line<'a> {
    id: &'a str,
    /// Number of the requirement, or the feature that it belongs to.
    part: &'a str,
    title: &'a str,
    /// Why it does not apply; empty: it does.
    reason: &'a str,
}

fn lines(table: &str) -> Vec<Line<'_>> {
    let line = |text| match str::split(text, '\t').collect::<Vec<_>>()[..] {
        [id, part, title, reason] => Line { id, part, title, reason },
        _ => panic!("lines.tsv needs four fields: {text}"),
    };
    table.lines().map(line).collect()
}

/// Names of tests by the line that they carry, with the file of each.
type Tests = BTreeMap<String, Vec<(String, String)>>;

/// A function that is named `m012_...` or `c34_...`, behind an attribute that makes it a test.
fn collect(file: &str, text: &str, found: &mut Tests) {
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if line.starts_with("#[ignore") {
            // What does not run covers nothing.
            is_test = false;
        } else if let Some(name) = line.strip_prefix("fn ").or(line.strip_prefix("async fn ")) {
            let name = name.split(['(', '<']).next().unwrap_or_default();
            if let Some(id) = id_of(name).filter(|_| is_test) {
                found.entry(id).or_default().push((name.to_owned(), file.to_owned()));
            }
            is_test = false;
        }
    }
}

/// `m012` or `c03` of a name that begins so; leading zeros may be missing.
fn id_of(name: &str) -> Option<String> {
    let (id, _) = name.split_once('_')?;
    let (kind, number) = id.split_at_checked(1)?;
    let is_number = (1..=3).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
    let number: u16 = is_number.then(|| number.parse().ok())??;
    match kind {
        "m" => Some(format!("m{number:03}")),
        "c" => Some(format!("c{number:02}")),
        _ => None,
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Rust files of the workspace below a folder, in order.
fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") {
            into.push(path);
        }
    }
}

fn tests() -> Tests {
    let mut files = Vec::new();
    for folder in ["crates", "src", "tests"] {
        sources(&root().join(folder), &mut files);
    }
    let mut found = Tests::new();
    for file in files {
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        collect(&name, &fs::read_to_string(&file).unwrap(), &mut found);
    }
    found
}

fn page(lines: &[Line<'_>], tests: &Tests) -> String {
    let (mut rows, mut counts) = (String::new(), [0; 3]);
    for Line { id, part, title, reason } in lines {
        let state = match (tests.get(*id), reason.is_empty()) {
            (Some(tests), _) => {
                counts[0] += 1;
                let test = |(name, file): &(String, String)| format!("`{name}` ({file})");
                tests.iter().map(test).collect::<Vec<_>>().join("<br>")
            }
            (None, true) => {
                counts[1] += 1;
                "not yet".to_owned()
            }
            (None, false) => {
                counts[2] += 1;
                format!("does not apply: {reason}")
            }
        };
        let id = id.to_uppercase();
        let _ = writeln!(rows, "| {id} | {part} | {title} | {state} |");
    }
    let [covered, open, apart] = counts;
    format!(
        "# Contract coverage\n\n\
         Every line of the delegation contract, and the tests that carry its number: `M` is its matrix, `C` its \
         list of behaviours that had no test.\nOf {} lines {covered} have a test, {open} have none yet, {apart} do \
         not apply. The part is the number of the requirement that a line\nbelongs to, or the feature. A test that \
         covers a line under another name is not seen here.\n\n\
         This page is made of `tests/conformance/lines.tsv` and the names of tests, and a test compares it. Write it \
         anew:\n\n```sh\n{WRITE}=1 cargo test --test conformance coverage\n```\n\n\
         | line | part | behaviour | tests |\n|---|---|---|---|\n{rows}",
        lines.len(),
    )
}

#[test]
fn the_page_is_up_to_date() {
    let made = page(&lines(include_str!("lines.tsv")), &tests());
    let path = root().join(PAGE);
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &made).unwrap();
    }
    let held = fs::read_to_string(&path).unwrap_or_default();
    let differs = made.lines().zip(held.lines()).find(|(made, held)| made != held);
    assert!(
        made == held,
        "{PAGE} is out of date; {WRITE}=1 cargo test --test conformance coverage\n{differs:?}"
    );
}

#[test]
fn every_line_stands_once_and_every_numbered_test_has_its_line() {
    let lines = lines(include_str!("lines.tsv"));
    let expected = (1..=148).map(|number| format!("m{number:03}"));
    let expected: Vec<String> =
        expected.chain((1..=60).map(|number| format!("c{number:02}"))).collect();
    assert_eq!(lines.iter().map(|line| line.id).collect::<Vec<_>>(), expected);
    for (id, tests) in tests() {
        assert!(expected.contains(&id), "{tests:?} carry a number that no line has");
    }
    for Line { id, part, reason, .. } in lines {
        assert_eq!(part == "-", !reason.is_empty(), "{id}: a part, or a reason");
    }
}

#[test]
fn the_lines_of_a_childs_life_have_tests() {
    // Numbers of requirements: from the configuration to what is said of a call, and what carries a child.
    let parts = ["1", "2", "3", "4", "5", "6", "7", "8", "isolation"];
    let tests = tests();
    let missing: Vec<&str> = lines(include_str!("lines.tsv"))
        .iter()
        .filter(|line| parts.contains(&line.part) && !tests.contains_key(line.id))
        .map(|line| line.id)
        .collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn only_tests_with_a_number_that_run_count() {
    let mut found = Tests::new();
    let text = "#[test]\nfn m001_a() {}\nfn m002_b() {}\n#[test]\n#[ignore]\nfn c03_c() {}\n\
                #[tokio::test]\nasync fn c04_d() {}\n#[test]\nfn m1x_e() {}\n#[test]\nfn c2_g() {}\n#[test]\nfn max_f() {}\n";
    collect("f.rs", text, &mut found);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["c02", "c04", "m001"]);
    // A line without a test is told as such, and a page that was changed is noticed.
    let table = "m001\t1\tone\t\nm002\t1\ttwo\t\nm003\t-\tthree\twhy\n";
    let made = page(&lines(table), &found);
    for row in
        ["| M001 | 1 | one | `m001_a` (f.rs) |", "| M002 | 1 | two | not yet |", "not apply: why |"]
    {
        assert!(made.contains(row), "{row}\n{made}");
    }
    assert!(made.contains("Of 3 lines 1 have a test, 1 have none yet, 1 do not apply"), "{made}");
}
