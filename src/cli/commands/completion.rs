//! `delegate completion SHELL`: a script that asks this program, so that run ids complete as well.

use std::ffi::OsStr;

use clap::CommandFactory as _;
use clap_complete::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};
use delegate_core::config::{self, Diagnostic};
use delegate_core::session::list;
use delegate_core::store::Store;

use crate::cli::args::{Cli, CompletionArgs};
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::render::text;
use crate::cli::{text_env, write_out};

/// The variable with which the script asks.
const ASKED: &str = "_DELEGATE_COMPLETE";

/// Runs that are offered.
const OFFERED: usize = 100;

/// Prints the script.
///
/// # Errors
/// An output that cannot be written.
pub(crate) fn run(args: &CompletionArgs) -> Result<Exit, Fault> {
    let script = script(&args.shell.to_string())?;
    write_out(|to| to.write_all(&script))?;
    Ok(Exit::Done)
}

fn script(shell: &str) -> Result<Vec<u8>, Fault> {
    let shells = Shells::builtins();
    let completer = shells.completer(shell).ok_or_else(|| Diagnostic {
        code: "usage",
        message: format!("there is no completion for {shell}"),
        ..Diagnostic::default()
    })?;
    let mut script = Vec::new();
    completer
        .write_registration(ASKED, "delegate", "delegate", "delegate", &mut script)
        .map_err(Fault::Output)?;
    Ok(script)
}

/// When the script asks: answers it. `None` in the usual case.
pub(crate) fn answer() -> Option<Exit> {
    let complete = CompleteEnv::with_factory(Cli::command).var(ASKED);
    let directory = std::env::current_dir().ok();
    match complete.try_complete(std::env::args_os(), directory.as_deref()) {
        Ok(false) => None,
        Ok(true) => Some(Exit::Done),
        Err(_) => Some(Exit::BadInput),
    }
}

/// Ids that begin as typed, with what was run.
pub(crate) fn run_ids(typed: &OsStr) -> Vec<CompletionCandidate> {
    let store = Store::open_existing(&config::state_dir(&text_env()));
    let runs = store.runs(OFFERED).unwrap_or_default();
    let ids = runs.iter().map(|run| {
        let title = text::label(&run.title, 40);
        (store.short_id(run.id), format!("{title}, {}", run.status))
    });
    let latest = runs.first().map(|_| ("latest".to_owned(), "the newest run".to_owned()));
    offer(ids.chain(latest), &typed.to_string_lossy())
}

/// The same of sessions.
pub(crate) fn session_ids(typed: &OsStr) -> Vec<CompletionCandidate> {
    let sessions = list::sessions(&config::state_dir(&text_env())).unwrap_or_default();
    let ids = sessions.iter().take(OFFERED).map(|session| {
        let goal = text::label(&session.goal, 40);
        (list::short_id(&sessions, session.id), format!("{goal}, {}", session.status))
    });
    let latest = sessions.first().map(|_| ("latest".to_owned(), "the newest session".to_owned()));
    offer(ids.chain(latest), &typed.to_string_lossy())
}

fn offer(ids: impl Iterator<Item = (String, String)>, typed: &str) -> Vec<CompletionCandidate> {
    ids.filter(|(id, _)| id.starts_with(typed))
        .map(|(id, help)| CompletionCandidate::new(id).help(Some(help.into())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn every_shell_has_a_script_that_asks_this_program() {
        for shell in clap_complete::Shell::value_variants() {
            let script = String::from_utf8(script(&shell.to_string()).unwrap()).unwrap();
            assert!(script.contains(ASKED), "{shell}: {script}");
        }
    }

    #[test]
    fn ids_are_offered_by_their_beginning() {
        let ids = [("k7f3", "a"), ("k7xx", "b"), ("latest", "c")];
        let ids = ids.iter().map(|(id, help)| ((*id).to_owned(), (*help).to_owned()));
        let offered: Vec<_> = offer(ids, "k7").iter().map(|c| c.get_value().to_owned()).collect();
        assert_eq!(offered, ["k7f3", "k7xx"]);
    }
}
