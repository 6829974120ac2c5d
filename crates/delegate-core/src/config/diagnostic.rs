//! What is wrong with a file, where, and what to do: [`Diagnostic`]. Used by configuration and batch
//! files, and printed by the command as text or JSON.

use std::fmt::{self, Write as _};
use std::path::PathBuf;

/// Columns of a source line that a snippet shows.
const SNIPPET_COLUMNS: usize = 120;

/// Columns shown before the fault when the line is longer than that.
const SNIPPET_BEFORE: usize = 40;

/// A fault in something that a person wrote.
///
/// The text may come from a stranger's file: [`Diagnostic::render`] and `Display` show control
/// characters escaped, so that a file cannot drive the terminal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diagnostic {
    /// A stable word for programs, such as `unknown_key`.
    pub code: &'static str,
    /// One line without the place.
    pub message: String,
    /// The file; `None` for a variable or flag (then `message` names it).
    pub file: Option<PathBuf>,
    /// Line, from 1.
    pub line: Option<u32>,
    /// Column, from 1.
    pub column: Option<u32>,
    /// The source line, where there is one to show.
    pub source: Option<Box<SourceLine>>,
    /// What to do.
    pub hint: Option<String>,
}

/// A line of a file, and how much of it is meant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceLine {
    /// The line, without its end.
    pub text: String,
    /// Characters to underline, from the diagnostic's column.
    pub width: u32,
}

impl Diagnostic {
    /// The same with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// `file:line:column`, as much of it as is known.
    #[must_use]
    pub fn place(&self) -> Option<String> {
        let mut place = visible(&self.file.as_ref()?.display().to_string());
        for number in [self.line, self.line.and(self.column)].into_iter().flatten() {
            let _ = write!(place, ":{number}");
        }
        Some(place)
    }

    /// The picture for people: message, place, source line and underlined hint, each line ended.
    #[must_use]
    pub fn render(&self, color: bool) -> String {
        let paint = Paint { on: color };
        let message = visible(&self.message);
        let mut text = format!("{}: {}\n", paint.red("error"), paint.bold(&message));
        if let Some(place) = self.place() {
            let _ = writeln!(text, " {} {place}", paint.blue("-->"));
        }
        let hint = self.hint.as_deref().map(visible);
        let (Some(line), Some(source)) = (self.line, &self.source) else {
            if let Some(hint) = hint {
                let _ = writeln!(text, "{}: {hint}", paint.blue("hint"));
            }
            return text;
        };
        let snippet = Snippet::cut(source, self.column.unwrap_or(1));
        let number = line.to_string();
        let _ = writeln!(text, "{} {}", paint.blue(&format!("{number} |")), snippet.line);
        let gutter = paint.blue(&format!("{:1$} |", "", number.len()));
        let marks = paint.red(&"^".repeat(snippet.marked));
        let _ = write!(text, "{gutter} {:1$}{marks}", "", snippet.before);
        if let Some(hint) = hint {
            let _ = write!(text, " {hint}");
        }
        text.push('\n');
        text
    }

    /// The object for programs, in one line:
    /// `{"error":{"code":…,"message":…,"file":…,"line":…,"column":…,"hint":…}}`.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::json!({ "error": {
            "code": self.code,
            "message": self.message,
            "file": self.file.as_ref().map(|file| file.display().to_string()),
            "line": self.line,
            "column": self.column,
            "hint": self.hint,
        }})
        .to_string()
    }
}

/// One line: place, message and hint.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = self.place() {
            write!(f, "{place}: ")?;
        }
        f.write_str(&visible(&self.message))?;
        match &self.hint {
            Some(hint) => write!(f, " ({})", visible(hint)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Diagnostic {}

/// Text that a terminal only shows: control characters and marks that reorder text are escaped.
#[must_use]
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_hidden(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// The part of a source line that is shown, escaped, and where its marks go.
struct Snippet {
    line: String,
    before: usize,
    marked: usize,
}

impl Snippet {
    fn cut(source: &SourceLine, column: u32) -> Self {
        let column = usize::try_from(column).unwrap_or(usize::MAX).saturating_sub(1);
        let width = usize::try_from(source.width).unwrap_or(usize::MAX).max(1);
        let skip = if column + 1 < SNIPPET_COLUMNS { 0 } else { column - SNIPPET_BEFORE };
        let mut line = if skip > 0 { "…".to_owned() } else { String::new() };
        let mut before = line.chars().count();
        let mut marked = 0;
        let mut characters = source.text.chars().enumerate().skip(skip);
        for (index, character) in characters.by_ref().take(SNIPPET_COLUMNS) {
            let shown = visible(character.encode_utf8(&mut [0; 4]));
            let columns = shown.chars().count();
            if index < column {
                before += columns;
            } else if index - column < width {
                marked += columns;
            }
            line.push_str(&shown);
        }
        if characters.next().is_some() {
            line.push('…');
        }
        Self { line: line.trim_end().to_owned(), before, marked: marked.max(1) }
    }
}

/// ANSI colours, or none.
struct Paint {
    on: bool,
}

impl Paint {
    fn with(&self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn red(&self, text: &str) -> String {
        self.with("1;31", text)
    }

    fn blue(&self, text: &str) -> String {
        self.with("1;34", text)
    }

    fn bold(&self, text: &str) -> String {
        self.with("1", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(source: &str, column: u32, width: u32) -> Diagnostic {
        Diagnostic {
            code: "unknown_key",
            message: "unknown key `max_concurent_children`".into(),
            file: Some("config.yaml".into()),
            line: Some(4),
            column: Some(column),
            source: Some(Box::new(SourceLine { text: source.into(), width })),
            hint: Some("did you mean `max_concurrent_children`?".into()),
        }
    }

    #[test]
    fn the_picture_is_the_agreed_one() {
        let fault = sample("  max_concurent_children: 4", 3, 22);
        let expected = "\
error: unknown key `max_concurent_children`
 --> config.yaml:4:3
4 |   max_concurent_children: 4
  |   ^^^^^^^^^^^^^^^^^^^^^^ did you mean `max_concurrent_children`?
";
        assert_eq!(fault.render(false), expected);
        assert!(fault.render(true).contains("\x1b[1;31merror\x1b[0m: "));
        assert_eq!(
            fault.to_string(),
            "config.yaml:4:3: unknown key `max_concurent_children` (did you mean `max_concurrent_children`?)"
        );
    }

    #[test]
    fn without_a_place_the_hint_has_a_line_of_its_own() {
        let fault = Diagnostic { message: "m".into(), ..Diagnostic::default() }.hint("h");
        assert_eq!(fault.render(false), "error: m\nhint: h\n");
    }

    #[test]
    fn a_file_cannot_drive_the_terminal() {
        let fault = sample("\x1b]0;evil\x07\tx: \u{202e}1\u{9b}", 11, 1);
        let text = fault.render(false);
        assert!(text.contains("4 | \\u{1b}]0;evil\\u{7}\\tx: \\u{202e}1\\u{9b}\n"), "{text}");
        // The mark still stands under `x`.
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[2].find('x'), lines[3].find('^'), "{text}");
    }

    #[test]
    fn a_long_line_is_cut_around_the_fault() {
        let fault = sample(&format!("{}KEY{}", "a".repeat(500), "b".repeat(500)), 501, 3);
        let text = fault.render(false);
        let lines: Vec<&str> = text.lines().collect();
        let mark = lines[3].chars().position(|c| c == '^').unwrap();
        assert_eq!(lines[2].chars().position(|c| c == 'K'), Some(mark), "{text}");
        assert!(lines[2].chars().count() < 140 && lines[2].ends_with('…'), "{text}");
    }

    #[test]
    fn json_has_every_field() {
        let json: serde_json::Value =
            serde_json::from_str(&sample("  x: 4", 3, 1).to_json()).unwrap();
        assert_eq!(json["error"]["code"], "unknown_key");
        assert_eq!(json["error"]["file"], "config.yaml");
        assert_eq!(json["error"]["line"], 4);
        assert_eq!(json["error"]["column"], 3);
        assert!(json["error"]["hint"].is_string() && json["error"]["message"].is_string());
    }

    proptest! {
        #[test]
        fn no_control_character_gets_through(source in any::<String>(), column in any::<u32>(), width in any::<u32>()) {
            let text = sample(&source, column, width.min(1000)).render(false);
            prop_assert!(text.chars().all(|c| c == '\n' || !is_hidden(c)));
            prop_assert_eq!(text.lines().count(), 4);
        }
    }
}
