//! What values a key of the table ([`super::keys`]) takes, and how messages and the reference say it.

use std::fmt;
use std::time::Duration;

use super::duration;
use super::keys::EFFORTS;

/// Most money that a limit may name, in US dollars: what is counted in billionths has room for it.
pub(crate) const MOST_MONEY: f64 = 1e9;

/// What values a key takes. `optional` ones take `null` too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    /// `false`, `true`, `auto` or `null`.
    Isolation,
    /// `true` or `false`.
    Flag,
    /// A whole number, both ends included.
    Count { min: u64, max: u64, optional: bool },
    /// US dollars, or `null`.
    Money,
    /// Seconds; the twin key takes a duration text.
    Seconds { min: Duration, optional: bool },
    /// `warn`, `interrupt` or `kill`.
    OnStale,
    /// `end`, `report` or `ignore`.
    AtStart,
    /// `auto`, `subreaper` or `cgroup`.
    Containment,
    /// A program and its arguments, or `null`.
    Command,
    /// Text without the blanks around it; blank text and `null` are "not set".
    Text,
    /// The same in small letters.
    Word,
    /// An `http` or `https` address without a password in it.
    Url,
    /// A key: from a file only.
    Secret,
    /// One of [`EFFORTS`], `false` for `none`, or `null`.
    Effort,
    /// A map with anything in it, or `null`.
    Overrides,
    /// A list of maps with `provider` and `model`, or `null`.
    Fallbacks,
}

/// What a value must be, as messages and the reference say it.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_null = |optional: bool| if optional { ", or null" } else { "" };
        match *self {
            Self::Isolation => f.write_str("false, true or auto, or null"),
            Self::Flag => f.write_str("true or false"),
            Self::Count { min, max, optional } => {
                write!(f, "a whole number from {min} to {max}{}", or_null(optional))
            }
            Self::Money => {
                write!(f, "a number of US dollars above 0, at most {MOST_MONEY}, or null")
            }
            Self::Seconds { min, optional } => {
                let min = min.as_secs_f64();
                let max = duration::LONGEST.as_secs();
                write!(f, "a number of seconds from {min} to {max}{}", or_null(optional))
            }
            Self::OnStale => f.write_str("warn, interrupt or kill"),
            Self::AtStart => f.write_str("end, report or ignore"),
            Self::Containment => f.write_str(ownership::containment::CHOICES),
            Self::Command => f.write_str("a list of texts, the program first, or null"),
            Self::Text | Self::Secret => f.write_str("text, or null"),
            Self::Word => f.write_str("a word, or null"),
            Self::Url => f.write_str("an http or https address, or null"),
            Self::Effort => write!(f, "{} or false, or null", EFFORTS.join(", ")),
            Self::Overrides => f.write_str("a map, or null"),
            Self::Fallbacks => f.write_str("a list of maps with `provider` and `model`, or null"),
        }
    }
}
