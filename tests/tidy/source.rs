//! The workspace as text: which packages there are, which files they hold, and which of those are
//! test code. Reads the disk once; every rule then works on plain data.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::lexer::{self, Token};

/// Folders whose targets are test code as a whole.
const TEST_FOLDERS: [&str; 3] = ["tests", "benches", "examples"];

/// A text file of the workspace.
#[derive(Debug)]
pub(crate) struct File {
    /// Relative to the workspace, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Empty for other files than Rust sources.
    pub(crate) tokens: Vec<Token>,
    /// Test code as a whole: under a test folder, or declared as a test module.
    pub(crate) test: bool,
}

impl File {
    /// A file that is not on disk: what the rules' own tests plant.
    pub(crate) fn planted(path: &str, text: &str) -> Self {
        let tokens = if is_rust(path) { lexer::tokens(text) } else { Vec::new() };
        let test = in_test_folder(path) || tokens.first().is_some_and(|_| all_test(&tokens));
        Self { path: path.to_owned(), text: text.to_owned(), tokens, test }
    }

    pub(crate) fn is_rust(&self) -> bool {
        is_rust(&self.path)
    }

    /// Positions of the tokens that are not test code.
    pub(crate) fn live(&self) -> impl Iterator<Item = usize> {
        (0..self.tokens.len()).filter(|&at| !self.test && !self.tokens[at].test)
    }

    /// The token at a distance from `at`; `None` outside the file.
    pub(crate) fn near(&self, at: usize, distance: isize) -> Option<&Token> {
        at.checked_add_signed(distance).and_then(|index| self.tokens.get(index))
    }

    /// Whether the tokens from `at` on are these.
    pub(crate) fn reads(&self, at: usize, texts: &[&str]) -> bool {
        let here = self.tokens.get(at..at + texts.len());
        here.is_some_and(|here| here.iter().zip(texts).all(|(token, text)| token.is(text)))
    }

    /// Whether this is one of these modules (paths without `.rs`), or a file below one.
    pub(crate) fn within(&self, modules: &[&str]) -> bool {
        modules.iter().any(|module| {
            let rest = self.path.strip_prefix(module);
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    }

    /// Folder of the package that this file belongs to; empty for the root package.
    pub(crate) fn package(&self) -> &str {
        package_of(&self.path)
    }
}

/// Something that a rule does not allow.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Violation {
    pub(crate) path: String,
    /// Line, from 1; 0 for the file as a whole.
    pub(crate) line: usize,
    pub(crate) what: String,
}

impl Violation {
    pub(crate) fn new(file: &File, line: usize, what: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line, what: what.into() }
    }
}

/// Every text file of the workspace, generated and ignored ones apart.
pub(crate) static WORKSPACE: LazyLock<Vec<File>> = LazyLock::new(read_workspace);

fn read_workspace() -> Vec<File> {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the package folder");
    let mut paths = Vec::new();
    walk(Path::new(&root), Path::new(""), &mut paths);
    let mut files: Vec<File> =
        paths.iter().filter_map(|path| load(Path::new(&root), path)).collect();
    assert!(files.len() > 30, "only {} files under {}", files.len(), root.display());
    mark_declared_tests(&mut files);
    files
}

fn walk(root: &Path, folder: &Path, paths: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(root.join(folder)).expect("a folder of the workspace");
    for entry in entries.map(|entry| entry.expect("an entry of the workspace")) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let hidden =
            name.starts_with('.') && ![".ci", ".github", ".cargo", ".config"].contains(&&*name);
        let path = folder.join(&name);
        let kind = entry.file_type().expect("a kind of file");
        if kind.is_dir() && !hidden && name != "target" {
            walk(root, &path, paths);
        } else if kind.is_file() && (!hidden || name == ".gitignore") {
            paths.push(path);
        }
    }
}

/// `None` for what is not text.
fn load(root: &Path, path: &Path) -> Option<File> {
    let text = String::from_utf8(fs::read(root.join(path)).ok()?).ok()?;
    Some(File::planted(&path.to_string_lossy().replace('\\', "/"), &text))
}

/// Files behind `#[cfg(test)] mod name;`, and everything below them.
fn mark_declared_tests(files: &mut [File]) {
    let declared = files.iter().flat_map(declared).filter(|module| module.test);
    let modules: BTreeSet<String> = declared.map(|module| module.path).collect();
    let modules: Vec<&str> = modules.iter().map(String::as_str).collect();
    for file in files {
        file.test |= file.within(&modules);
    }
}

/// A module that a file declares and that lives in a file of its own.
#[derive(Debug)]
pub(crate) struct Declared {
    /// Without `.rs` or `/mod.rs`.
    pub(crate) path: String,
    /// Behind `#[cfg(test)]`.
    pub(crate) test: bool,
}

/// Every `mod name;` of a file, where the compiler looks for it.
pub(crate) fn declared(file: &File) -> Vec<Declared> {
    let mut found = Vec::new();
    let mut named: Option<&str> = None;
    for at in 0..file.tokens.len() {
        if file.reads(at, &["[", "path", "="]) {
            named = file.near(at, 3).map(|token| token.text.trim_end_matches(".rs"));
        }
        if file.reads(at, &["mod"]) && file.near(at, 2).is_some_and(|token| token.is(";")) {
            let beside = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let path = match named.take() {
                Some(name) => beside_path(beside, name.trim_end_matches("/mod")),
                None => format!("{}/{}", module_folder(&file.path), file.tokens[at + 1].text),
            };
            found.push(Declared { path, test: file.tokens[at].test });
        }
    }
    found
}

/// A path that is written relative to a folder, `..` resolved.
fn beside_path(folder: &str, name: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in name.split('/') {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// The folder in which the modules that a file declares are looked for.
pub(crate) fn module_folder(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = name.trim_end_matches(".rs");
    let package = package_of(path);
    let inside = path.strip_prefix(package).unwrap_or(path).trim_start_matches('/');
    // Roots of targets and `mod.rs` look beside themselves, every other file in a folder of its name.
    let target_root = TEST_FOLDERS
        .iter()
        .any(|kind| inside.strip_prefix(kind).is_some_and(|rest| rest.matches('/').count() == 1))
        || inside.starts_with("src/bin/") && inside.matches('/').count() == 2;
    if target_root || ["mod", "lib", "main", "build"].contains(&stem) {
        return folder.to_owned();
    }
    format!("{folder}/{stem}")
}

fn package_of(path: &str) -> &str {
    let Some(rest) = path.strip_prefix("crates/") else { return "" };
    let name = rest.split('/').next().unwrap_or(rest);
    &path[.."crates/".len() + name.len()]
}

fn in_test_folder(path: &str) -> bool {
    let inside = path.strip_prefix(package_of(path)).unwrap_or(path).trim_start_matches('/');
    TEST_FOLDERS.iter().any(|kind| inside.split('/').next() == Some(kind))
}

fn all_test(tokens: &[Token]) -> bool {
    tokens.iter().all(|token| token.test)
}

fn is_rust(path: &str) -> bool {
    path.ends_with(".rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_folders_belong_to_their_package() {
        let test = |path| File::planted(path, "fn a() {}").test;
        assert!(
            test("tests/a.rs") && test("crates/x/tests/a/b.rs") && test("examples/helpers/a.rs")
        );
        assert!(!test("src/tests.rs") && !test("crates/x/src/examples/a.rs"));
    }

    #[test]
    fn declared_test_modules_are_test_code() {
        let mut files = [
            File::planted(
                "crates/x/src/a.rs",
                "#[cfg(test)] mod tests; mod live; #[cfg(test)] #[path = \"odd.rs\"] mod more;",
            ),
            File::planted("crates/x/src/a/tests.rs", "fn a() {}"),
            File::planted("crates/x/src/a/tests/more.rs", "fn a() {}"),
            File::planted("crates/x/src/a/live.rs", "fn a() {}"),
            File::planted("crates/x/src/odd.rs", "fn a() {}"),
        ];
        mark_declared_tests(&mut files);
        assert_eq!(files.map(|file| file.test), [false, true, true, false, true]);
    }

    #[test]
    fn modules_are_looked_for_where_the_compiler_looks() {
        assert_eq!(module_folder("src/lib.rs"), "src");
        assert_eq!(module_folder("src/cli/mod.rs"), "src/cli");
        assert_eq!(module_folder("src/cli.rs"), "src/cli");
        assert_eq!(module_folder("tests/a.rs"), "tests");
        assert_eq!(module_folder("tests/a/b.rs"), "tests/a/b");
        assert_eq!(module_folder("crates/x/src/bin/y.rs"), "crates/x/src/bin");
        assert_eq!(beside_path("tests/a", "../support"), "tests/support");
        assert_eq!(beside_path("", "odd"), "odd");
    }
}
