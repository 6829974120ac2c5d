//! The terminal: its size, and the block of live lines at its end. What the lines say comes from
//! [`crate::cli::render::live`].

use std::os::fd::AsFd;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::termios;

/// Columns of the terminal behind a stream; `None` when it is none.
pub(crate) fn columns(stream: impl AsFd) -> Option<usize> {
    size(stream).map(|(columns, _)| columns)
}

/// Columns and rows of the terminal behind a stream.
fn size(stream: impl AsFd) -> Option<(usize, usize)> {
    if !termios::isatty(&stream) {
        return None;
    }
    // A terminal that does not know its size (a serial line) says 0.
    let or = |number: u16, usual: usize| if number == 0 { usual } else { usize::from(number) };
    let size = termios::tcgetwinsize(&stream).ok();
    Some(size.map_or((80, 24), |size| (or(size.ws_col, 80), or(size.ws_row, 24))))
}

/// Lines that are redrawn in place, on standard error. They are one bar of the progress library with a
/// text of many lines, so that they change in one step.
#[derive(Debug)]
pub(crate) struct Screen {
    block: ProgressBar,
}

impl Screen {
    /// Nothing is drawn yet.
    pub(crate) fn new() -> Self {
        let block = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            block.set_style(style);
        }
        Self { block }
    }

    /// Columns and lines that may be used now.
    pub(crate) fn room(&self) -> (usize, usize) {
        let (columns, rows) = size(std::io::stderr()).unwrap_or((80, 24));
        // The last column makes some terminals wrap; two rows are for the prompt and a message.
        (columns.saturating_sub(1), rows.saturating_sub(2))
    }

    /// Replaces what is shown.
    pub(crate) fn show(&self, lines: &[String]) {
        self.block.set_message(lines.join("\n"));
    }

    /// Writes a line above what is shown.
    pub(crate) fn say(&self, line: &str) {
        self.block.println(line);
    }

    /// Takes away what is shown, until the next [`Screen::show`].
    pub(crate) fn clear(&self) {
        self.block.set_message(String::new());
        self.block.suspend(|| ());
    }
}
