//! What a command that waits for children needs: a loop, signals, and a thread for each of its streams. For `run` and
//! `session`.

use std::io::{self, BufWriter};

use tokio::runtime::{self, Runtime};

use crate::cli::fault::Fault;
use crate::cli::printer::Printer;
use crate::cli::signals::Signals;

/// The loop of a command, on its main thread.
///
/// # Errors
/// The system has nothing to wait with.
pub(crate) fn command_loop() -> Result<Runtime, Fault> {
    runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::System("the loop of this command cannot be made", error))
}

/// What is heard and said while it runs.
pub(crate) struct Stage {
    /// Heard from here on.
    pub(crate) signals: Signals,
    /// Standard output.
    pub(crate) out: Printer,
    /// Standard error.
    pub(crate) err: Printer,
}

impl Stage {
    /// Inside of the loop, before anything is started.
    ///
    /// # Errors
    /// Signals cannot be listened for, or there is no thread for a stream.
    pub(crate) fn open() -> Result<Self, Fault> {
        let signals = Signals::listen()
            .map_err(|error| Fault::System("signals cannot be listened for", error))?;
        let err = Printer::new(BufWriter::new(io::stderr())).map_err(no_thread)?;
        let out = Printer::new(BufWriter::new(io::stdout())).map_err(no_thread)?;
        Ok(Self { signals, out, err })
    }
}

/// Of a thread for a stream.
pub(crate) fn no_thread(error: io::Error) -> Fault {
    Fault::System("a thread for a stream cannot be made", error)
}
