//! What the lexers of [`super::python`] and [`super::shell`] share: which files are scripts, a cursor
//! that counts lines, and what a scan of a script gives.

use crate::source::File;

/// A language whose files are scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Python,
    Shell,
}

/// Endings of files and words of `#!` lines, by language.
const ENDINGS: [(&str, Language); 9] = [
    ("py", Language::Python),
    ("pyw", Language::Python),
    ("pyi", Language::Python),
    ("sh", Language::Shell),
    ("bash", Language::Shell),
    ("dash", Language::Shell),
    ("ksh", Language::Shell),
    ("zsh", Language::Shell),
    ("bats", Language::Shell),
];

/// The language of a file, by its ending or else by its `#!` line.
pub(super) fn language(file: &File) -> Option<Language> {
    let name = file.path.rsplit('/').next().unwrap_or(&file.path);
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    if let Some(row) = ENDINGS.iter().find(|(known, _)| ending == Some(*known)) {
        return Some(row.1);
    }
    let shebang = file.text.strip_prefix("#!")?.lines().next()?;
    if file.is_rust() {
        return None;
    }
    shebang.split(['/', ' ', '\t']).find_map(|word| {
        let shell = ["sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "bats"].contains(&word);
        // `python3.12` too.
        let python = word.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') == "python";
        python.then_some(Language::Python).or(shell.then_some(Language::Shell))
    })
}

/// What a scan has found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Line, from 1, and what starts or detaches there.
    pub(super) sites: Vec<(usize, String)>,
    /// Line and text of each comment.
    pub(super) comments: Vec<(usize, String)>,
}

/// A position in a text.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    pub(super) rest: &'a str,
    /// From 1.
    pub(super) line: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { rest: text, line: 1 }
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// Takes `len` bytes, at most what is there.
    pub(super) fn take(&mut self, len: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at_checked(len).unwrap_or((self.rest, ""));
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    /// Takes one character.
    pub(super) fn pop(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.take(next.len_utf8());
        Some(next)
    }

    /// Leaves one character out.
    pub(super) fn skip(&mut self) {
        self.pop();
    }

    /// Takes this text, if it comes next.
    pub(super) fn eat(&mut self, text: &str) -> bool {
        let here = self.rest.starts_with(text);
        if here {
            self.take(text.len());
        }
        here
    }

    /// Takes everything up to the end of the line.
    pub(super) fn line_end(&mut self) -> &'a str {
        self.take(self.rest.find('\n').unwrap_or(self.rest.len()))
    }
}
