//! One file per verb. Each takes its arguments and the [`Context`](crate::cli::Context), and gives an
//! exit code or a [`Fault`](crate::cli::fault::Fault).

pub(crate) mod batch;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod detach;
pub(crate) mod doctor;
pub(crate) mod extend;
pub(crate) mod follow;
pub(crate) mod helper;
#[cfg(target_os = "linux")]
pub(crate) mod janitor;
#[cfg(target_os = "linux")]
pub(crate) mod keys;
#[cfg(target_os = "linux")]
pub(crate) mod log;
pub(crate) mod logs;
pub(crate) mod man;
pub(crate) mod own;
pub(crate) mod pause;
pub(crate) mod prune;
#[cfg(target_os = "linux")]
pub(crate) mod ps;
pub(crate) mod rerun;
pub(crate) mod resume;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod session;
pub(crate) mod sessions;
pub(crate) mod shim;
pub(crate) mod show;
pub(crate) mod steer;
pub(crate) mod stop;
pub(crate) mod trust;
pub(crate) mod wait;
pub(crate) mod watch;

use delegate_core::config::Diagnostic;

use crate::cli::args::ExecArgs;

/// `delegate exec`: a word that people try.
pub(crate) fn exec(args: &ExecArgs) -> Diagnostic {
    let program = args.rest.first().map(|word| word.to_string_lossy());
    Diagnostic {
        code: "usage",
        message: match program {
            Some(program) => format!("there is no verb `exec`, so `{program}` was not started"),
            None => "there is no verb `exec`".to_owned(),
        },
        hint: Some("did you mean `own` or `run`?".to_owned()),
        ..Diagnostic::default()
    }
}
