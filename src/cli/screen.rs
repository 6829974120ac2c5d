//! The terminal: its size, and the block of live lines at its end. What the lines say comes from
//! [`crate::cli::render::live`].

use std::os::fd::AsFd;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
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

/// Lines that are redrawn in place, on standard error.
#[derive(Debug)]
pub(crate) struct Screen {
    area: MultiProgress,
    lines: Vec<ProgressBar>,
}

impl Screen {
    /// Nothing is drawn yet.
    pub(crate) fn new() -> Self {
        let area = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        Self { area, lines: Vec::new() }
    }

    /// Columns and lines that may be used now.
    pub(crate) fn room(&self) -> (usize, usize) {
        let (columns, rows) = size(std::io::stderr()).unwrap_or((80, 24));
        // The last column makes some terminals wrap; two rows are for the prompt and a message.
        (columns.saturating_sub(1), rows.saturating_sub(2))
    }

    /// Replaces what is shown.
    pub(crate) fn show(&mut self, lines: Vec<String>) {
        while self.lines.len() > lines.len() {
            if let Some(line) = self.lines.pop() {
                self.area.remove(&line);
            }
        }
        while self.lines.len() < lines.len() {
            let style = ProgressStyle::with_template("{msg}");
            let line = ProgressBar::no_length();
            let line = style.map_or_else(|_| line.clone(), |style| line.clone().with_style(style));
            self.lines.push(self.area.add(line));
        }
        for (line, text) in self.lines.iter().zip(lines) {
            line.set_message(text);
        }
    }

    /// Writes a line above what is shown.
    pub(crate) fn say(&self, line: &str) {
        // Where the terminal is gone there is nobody to tell.
        drop(self.area.println(line));
    }

    /// Takes away what is shown.
    pub(crate) fn clear(&mut self) {
        self.show(Vec::new());
        drop(self.area.clear());
    }
}
