//! Tidy: rules about the source of the whole workspace, checked as ordinary tests.
//!
//! Each rule is a function from files to violations, so its own tests plant a violation and see it
//! found. `arrows`, `spawns`, `shape`, `reach` and `recipe` hold the rules and their tables; `source`
//! reads the workspace, `lexer` tells code from comments, literals and test items.

mod arrows;
mod lexer;
mod reach;
mod recipe;
mod shape;
mod source;
mod spawns;

use source::{File, Violation, WORKSPACE};

fn assert_clean(rule: fn(&[File]) -> Vec<Violation>) {
    let found = rule(&WORKSPACE);
    let lines =
        found.iter().map(|Violation { path, line, what }| format!("  {path}:{line}: {what}"));
    assert!(found.is_empty(), "\n{}\n", lines.collect::<Vec<_>>().join("\n"));
}

#[test]
fn crates_import_one_way() {
    assert_clean(arrows::between_crates);
}

#[test]
fn modules_import_one_way() {
    assert_clean(arrows::between_modules);
}

#[test]
fn processes_are_started_in_one_place() {
    assert_clean(spawns::spawns);
}

#[test]
fn every_module_opens_with_its_doc() {
    assert_clean(shape::module_docs);
}

#[test]
fn unsafe_stays_behind_its_fence() {
    assert_clean(shape::unsafe_code);
}

#[test]
fn only_files_that_wait_read_the_clock() {
    assert_clean(shape::clocks);
}

#[test]
fn no_file_outgrows_a_few_screens() {
    assert_clean(shape::sizes);
}

#[test]
fn no_file_names_a_folder_of_one_machine() {
    assert_clean(shape::machine_paths);
}

#[test]
fn no_file_is_forgotten() {
    assert_clean(reach::forgotten);
}

#[test]
fn the_recipe_runs_what_the_readme_promises() {
    assert_clean(recipe::recipe);
}
