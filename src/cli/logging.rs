//! What this program says about itself: `tracing` events to stderr or a file, off unless asked for.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use delegate_core::config::Diagnostic;
use tracing_subscriber::EnvFilter;

use crate::cli::args::Global;
use crate::cli::fault::Fault;

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Logging {
    filter: String,
    file: Option<PathBuf>,
}

impl Logging {
    /// From flags, then variables; `None` when nobody asked. A file alone asks for `info`.
    pub(crate) fn of(flags: &Global, env: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let set = |name| env(name).filter(|value| !value.is_empty());
        let file = flags.log_file.clone().or_else(|| set("DELEGATE_LOG_FILE").map(PathBuf::from));
        let filter = match flags.verbose {
            0 => flags.log_level.clone().or_else(|| set("DELEGATE_LOG")),
            1 => Some("info".to_owned()),
            2 => Some("debug".to_owned()),
            _ => Some("trace".to_owned()),
        };
        let filter = filter.or_else(|| file.as_ref().map(|_| "info".to_owned()))?;
        Some(Self { filter, file })
    }

    /// Whether it goes where the live view would be drawn.
    pub(crate) const fn to_stderr(&self) -> bool {
        self.file.is_none()
    }

    /// Begins.
    ///
    /// # Errors
    /// A filter that is none, or a file that cannot be opened.
    pub(crate) fn start(&self) -> Result<(), Fault> {
        let filter = EnvFilter::try_new(&self.filter).map_err(|error| Diagnostic {
            code: "bad_log_level",
            message: format!("`{}` is not a log level: {error}", self.filter),
            hint: Some("error, warn, info, debug or trace".to_owned()),
            ..Diagnostic::default()
        })?;
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
        // A second subscriber in one process is the library caller's own; it stays.
        drop(match &self.file {
            Some(file) => log.with_writer(Arc::new(open(file)?)).try_init(),
            None => log.with_writer(std::io::stderr).try_init(),
        });
        Ok(())
    }
}

fn open(path: &Path) -> Result<File, Fault> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    Ok(options.open(path).map_err(|error| Diagnostic {
        code: "unwritable_log",
        message: format!("the log file cannot be opened: {error}"),
        file: Some(path.to_owned()),
        ..Diagnostic::default()
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(
        verbose: u8,
        level: Option<&str>,
        file: Option<&str>,
        env: &[(&str, &str)],
    ) -> Option<Logging> {
        let flags = Global {
            state_dir: None,
            verbose,
            log_level: level.map(str::to_owned),
            log_file: file.map(PathBuf::from),
        };
        let value = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, v)| (*v).into());
        Logging::of(&flags, value)
    }

    #[test]
    fn flags_come_before_variables_and_off_is_the_default() {
        let filter = |logging: Option<Logging>| logging.map(|logging| logging.filter);
        assert_eq!(of(0, None, None, &[]), None);
        assert_eq!(of(0, None, None, &[("DELEGATE_LOG", "")]), None);
        assert_eq!(filter(of(0, None, None, &[("DELEGATE_LOG", "warn")])).as_deref(), Some("warn"));
        let level = of(0, Some("debug"), None, &[("DELEGATE_LOG", "warn")]);
        assert_eq!(filter(level).as_deref(), Some("debug"));
        assert_eq!(filter(of(3, None, None, &[])).as_deref(), Some("trace"));
        let file = of(0, None, None, &[("DELEGATE_LOG_FILE", "x.log")]).unwrap();
        assert!(!file.to_stderr() && file.filter == "info");
        assert!(of(1, None, None, &[]).unwrap().to_stderr());
    }

    #[test]
    fn what_cannot_be_logged_is_said() {
        let logging = |filter: &str, file: Option<&str>| Logging {
            filter: filter.into(),
            file: file.map(PathBuf::from),
        };
        assert_eq!(
            logging("a=b=c", None).start().unwrap_err().into_diagnostic().code,
            "bad_log_level"
        );
        let file = logging("info", Some("/dev/null/x.log")).start().unwrap_err();
        assert_eq!(file.into_diagnostic().code, "unwritable_log");
    }
}
