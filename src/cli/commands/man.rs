//! `delegate man [VERB]`: the manual pages, made from the definition of the arguments.

use clap::CommandFactory as _;
use clap_mangen::Man;
use delegate_core::config::Diagnostic;

use crate::cli::args::{Cli, ManArgs};
use crate::cli::exit::Exit;
use crate::cli::fault::Fault;
use crate::cli::write_out;

/// Prints one page in roff.
///
/// # Errors
/// No such verb, or an output that cannot be written.
pub(crate) fn run(args: &ManArgs) -> Result<Exit, Fault> {
    let page = page(args.page.as_deref())?;
    write_out(|to| to.write_all(&page))?;
    Ok(Exit::Done)
}

fn page(verb: Option<&str>) -> Result<Vec<u8>, Fault> {
    let mut command = Cli::command();
    command.build();
    let command = match verb {
        None => command,
        Some(verb) => command.find_subcommand(verb).cloned().ok_or_else(|| no_verb(verb))?,
    };
    let mut text = Vec::new();
    Man::new(command).render(&mut text).map_err(Fault::Output)?;
    Ok(text)
}

fn no_verb(verb: &str) -> Diagnostic {
    Diagnostic {
        code: "usage",
        message: format!("there is no verb `{verb}`"),
        hint: Some("`delegate help` lists them".to_owned()),
        ..Diagnostic::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(verb: Option<&str>) -> String {
        String::from_utf8(page(verb).unwrap()).unwrap()
    }

    #[test]
    fn pages_have_their_names_and_the_exit_codes() {
        let whole = text(None);
        assert!(whole.contains(".TH delegate 1") && whole.contains("143"), "{whole}");
        assert!(text(Some("run")).contains(".TH delegate-run 1"));
        assert!(page(Some("runn")).is_err());
    }
}
