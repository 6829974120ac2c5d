//! How things look. Everything here takes data and gives text or writes to a writer; nothing waits,
//! reads a clock or asks the terminal. [`Style`] says once what the other end can show.

pub(crate) mod below;
pub(crate) mod decode;
pub(crate) mod explain;
pub(crate) mod human;
pub(crate) mod json;
pub(crate) mod live;
pub(crate) mod text;

use delegate_protocol::Status;

/// What a terminal, pipe or file can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    /// Colour sequences.
    pub(crate) color: bool,
    /// Signs beyond ASCII.
    pub(crate) unicode: bool,
    /// Columns; `None` where lines have no end (a pipe).
    pub(crate) width: Option<usize>,
}

/// Colours by meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paint {
    Good,
    Bad,
    Busy,
    Faint,
}

impl Style {
    /// For one stream: its columns when it is a terminal, and the environment.
    pub(crate) fn of(columns: Option<usize>, env: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name| env(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_some_and(|term| term == "dumb");
        let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
        let utf8 = locale.is_some_and(|locale| {
            let locale = locale.to_ascii_lowercase();
            locale.contains("utf-8") || locale.contains("utf8")
        });
        Self {
            color: columns.is_some() && !dumb && set("NO_COLOR").is_none(),
            unicode: utf8 && !dumb,
            width: columns,
        }
    }

    /// `text` in a colour, where colours are shown.
    pub(crate) fn paint(self, paint: Paint, text: &str) -> String {
        let code = match paint {
            Paint::Good => 32,
            Paint::Bad => 31,
            Paint::Busy => 36,
            Paint::Faint => 2,
        };
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Between the parts of a line.
    pub(crate) const fn dot(self) -> &'static str {
        if self.unicode { " · " } else { " - " }
    }

    /// At the place where text was cut.
    pub(crate) const fn ellipsis(self) -> &'static str {
        if self.unicode { "…" } else { "..." }
    }

    const fn pick(self, unicode: &'static str, ascii: &'static str) -> &'static str {
        if self.unicode { unicode } else { ascii }
    }

    /// The sign of a task that runs.
    pub(crate) const fn running(self) -> &'static str {
        self.pick("●", "*")
    }

    /// The sign of a task that waits in line.
    pub(crate) const fn waiting(self) -> &'static str {
        self.pick("◌", ".")
    }

    /// The sign of a task that ended.
    pub(crate) const fn ended(self, status: Status) -> &'static str {
        match status {
            Status::Completed => self.pick("✔", "+"),
            Status::Failed | Status::Error | Status::Timeout | Status::Interrupted => {
                self.pick("✖", "x")
            }
            Status::Unknown => "?",
        }
    }
}

impl Paint {
    /// The colour of an ending.
    pub(crate) const fn of(status: Status) -> Self {
        match status {
            Status::Completed => Self::Good,
            Status::Failed | Status::Error | Status::Timeout => Self::Bad,
            Status::Interrupted | Status::Unknown => Self::Faint,
        }
    }
}

/// Styles that tests render with.
#[cfg(test)]
impl Style {
    pub(crate) const PLAIN: Self = Self { color: false, unicode: true, width: None };
    pub(crate) const ASCII: Self = Self { color: false, unicode: false, width: None };

    pub(crate) const fn wide(self, columns: usize) -> Self {
        Self { width: Some(columns), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style(columns: Option<usize>, env: &[(&str, &str)]) -> Style {
        Style::of(columns, |name| {
            env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn colour_only_where_it_is_shown_and_wanted() {
        assert!(style(Some(80), &[]).color);
        assert!(style(Some(80), &[("NO_COLOR", "")]).color);
        assert!(!style(Some(80), &[("NO_COLOR", "1")]).color);
        assert!(!style(Some(80), &[("TERM", "dumb")]).color);
        assert!(!style(None, &[]).color);
    }

    #[test]
    fn signs_follow_the_locale() {
        for (env, unicode) in [
            (&[("LANG", "en_US.UTF-8")][..], true),
            (&[("LC_CTYPE", "C.utf8"), ("LANG", "C")], true),
            (&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")], false),
            (&[("LC_ALL", ""), ("LANG", "en_US.UTF-8")], true),
            (&[("LANG", "en_US.UTF-8"), ("TERM", "dumb")], false),
            (&[], false),
        ] {
            assert_eq!(style(Some(80), env).unicode, unicode, "{env:?}");
        }
    }
}
