//! What the README promises and what the recipe runs are one thing: the test command of the first
//! block in `README.md` is a line of `.ci/run`, letter for letter.

use crate::source::{File, Violation};

/// A README whose test command the recipe does not run.
pub(crate) fn recipe(files: &[File]) -> Vec<Violation> {
    let find = |path: &str| files.iter().find(|file| file.path == path);
    let (Some(readme), Some(run)) = (find("README.md"), find(".ci/run")) else {
        let what = "README.md or .ci/run is missing".to_owned();
        return vec![Violation { path: ".".to_owned(), line: 0, what }];
    };
    let Some(command) = test_command(&readme.text) else {
        return vec![Violation::new(readme, 0, "the first block has no test command")];
    };
    let runs = run.text.lines().any(|line| line == command);
    let what = format!("does not run `{command}`, which README.md promises");
    if runs { Vec::new() } else { vec![Violation::new(run, 0, what)] }
}

/// The command for the tests in the first block of a README, without its comment.
fn test_command(readme: &str) -> Option<&str> {
    let block = readme.split("```").nth(1)?;
    let mut commands = block.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    commands.find(|command| command.starts_with("cargo test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_that_runs_something_else_is_found() {
        let readme = "# x\n```sh\ncargo run -- a\ncargo test --all  # tests\n```\n";
        let found = |run| {
            recipe(&[File::planted("README.md", readme), File::planted(".ci/run", run)]).len()
        };
        assert_eq!(found("set -e\ncargo test --all\n"), 0);
        assert_eq!(found("cargo test --all --quiet"), 1);
        assert_eq!(found("# cargo test --all"), 1);
        assert_eq!(recipe(&[File::planted("README.md", readme)]).len(), 1);
    }
}
