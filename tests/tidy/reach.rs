//! Every Rust file belongs to a target: nothing that looks tested is forgotten by the compiler.
//!
//! Follows `mod name;` from the roots of the targets, as Cargo finds them.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Declared, File, Violation, declared};

/// Rust files that no target holds.
pub(crate) fn forgotten(files: &[File]) -> Vec<Violation> {
    let sources: BTreeMap<&str, &File> =
        files.iter().filter(|file| file.is_rust()).map(|file| (file.path.as_str(), file)).collect();
    let mut reached = BTreeSet::new();
    let mut open: Vec<String> = roots(files).into_iter().collect();
    while let Some(path) = open.pop() {
        let Some(file) = sources.get(path.as_str()) else { continue };
        if reached.insert(path) {
            open.extend(declared(file).into_iter().flat_map(|Declared { path, test: _ }| {
                [format!("{path}.rs"), format!("{path}/mod.rs")]
            }));
        }
    }
    let found = sources
        .values()
        .filter(|file| !reached.contains(&file.path))
        .map(|file| Violation::new(file, 0, "no target holds this file"));
    found.collect()
}

/// Roots of all targets: those that Cargo finds by itself, and those that a manifest names.
fn roots(files: &[File]) -> BTreeSet<String> {
    let manifests = files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
    let mut roots = BTreeSet::new();
    for manifest in manifests {
        let folder = manifest.path.trim_end_matches("Cargo.toml").trim_end_matches('/');
        // A workspace of its own inside of a package says where its targets are.
        let own = files.iter().filter(|file| file.package() == folder);
        roots.extend(
            own.map(|file| &file.path)
                .filter(|path| {
                    let inside = path.strip_prefix(folder).unwrap_or(path).trim_start_matches('/');
                    found_by_cargo(inside, &manifest.text)
                })
                .cloned(),
        );
        roots.extend(named(&manifest.text).map(|path| match folder {
            "" => path.to_owned(),
            folder => format!("{folder}/{path}"),
        }));
    }
    roots
}

/// Whether Cargo takes this path inside a package as a target without being told.
fn found_by_cargo(path: &str, manifest: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let off =
        |key: &str| manifest.lines().any(|line| line.replace(' ', "") == format!("{key}=false"));
    match parts.as_slice() {
        ["build.rs"]
        | ["src", "lib.rs" | "main.rs"]
        | ["src", "bin", _]
        | ["src", "bin", _, "main.rs"] => true,
        [kind, _] | [kind, _, "main.rs"] => match *kind {
            "tests" => !off("autotests"),
            "benches" => !off("autobenches"),
            "examples" => !off("autoexamples"),
            _ => false,
        },
        _ => false,
    }
}

/// Paths of targets that a manifest names.
fn named(manifest: &str) -> impl Iterator<Item = &str> {
    manifest.lines().filter_map(|line| {
        let value = line.strip_prefix("path")?.trim_start().strip_prefix('=')?.trim();
        value.strip_prefix('"')?.strip_suffix('"').filter(|path| path.ends_with(".rs"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<File> = files.iter().map(|(path, text)| File::planted(path, text)).collect();
        forgotten(&files).into_iter().map(|violation| violation.path).collect()
    }

    #[test]
    fn a_file_that_no_module_declares_is_found() {
        let files = [
            ("Cargo.toml", "[package]"),
            ("tests/main.rs", "mod a; mod deep;"),
            ("tests/a.rs", ""),
            ("tests/deep/mod.rs", "mod b;"),
            ("tests/deep/b.rs", ""),
            ("tests/deep/forgotten.rs", ""),
            ("src/lib.rs", "// mod old;"),
            ("src/old.rs", ""),
        ];
        assert_eq!(lost(&files), ["src/old.rs", "tests/deep/forgotten.rs"]);
    }

    #[test]
    fn without_discovery_only_named_targets_count() {
        let files = [
            ("crates/x/Cargo.toml", "autotests = false\n[[test]]\npath = \"tests/main.rs\""),
            ("crates/x/tests/main.rs", "#[path = \"odd.rs\"] mod a;"),
            ("crates/x/tests/odd.rs", ""),
            ("crates/x/tests/forgotten.rs", ""),
        ];
        assert_eq!(lost(&files), ["crates/x/tests/forgotten.rs"]);
    }

    #[test]
    fn a_workspace_inside_of_a_package_finds_nothing_for_it() {
        let files = [
            ("Cargo.toml", "autobenches = false"),
            ("benches/forgotten.rs", ""),
            ("benches/inside/Cargo.toml", "[[bin]]\npath = \"src/main.rs\""),
            ("benches/inside/src/main.rs", "mod a;"),
            ("benches/inside/src/a.rs", ""),
            ("benches/inside/src/forgotten.rs", ""),
        ];
        assert_eq!(lost(&files), ["benches/forgotten.rs", "benches/inside/src/forgotten.rs"]);
    }
}
