//! What is wrong with a file, where, and what to do: [`Diagnostic`]. Used by configuration and batch
//! files, and printed by the command as text or JSON.

use std::fmt;
use std::path::PathBuf;

/// A fault in something that a person wrote.
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
    /// The source line, for the snippet.
    pub source: Option<String>,
    /// Characters to underline, from `column`.
    pub width: Option<u32>,
    /// What to do.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// The picture for people: message, place, source line and underlined hint, each line ended.
    #[must_use]
    pub fn render(&self, _color: bool) -> String {
        format!("error: {}\n", self.message)
    }

    /// The object for programs, in one line:
    /// `{"error":{"code":…,"message":…,"file":…,"line":…,"column":…,"hint":…}}`.
    #[must_use]
    pub fn to_json(&self) -> String {
        format!(r#"{{"error":{{"code":"{}"}}}}"#, self.code)
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Diagnostic {}
