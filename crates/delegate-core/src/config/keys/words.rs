//! What a value of each type must be, in words, for [`super`].

use std::fmt;

use super::{EFFORTS, MEMORY, MOST_MONEY, Type};
use crate::config::{bytes, duration};

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
            Self::Bytes => write!(
                f,
                "bytes such as {}, from {} to {}, or null",
                bytes::EXAMPLES,
                bytes::show(MEMORY.0),
                bytes::show(MEMORY.1)
            ),
            Self::Seconds { min, optional } => {
                let min = min.as_secs_f64();
                let max = duration::LONGEST.as_secs();
                write!(f, "a number of seconds from {min} to {max}{}", or_null(optional))
            }
            Self::OnStale => f.write_str("warn, interrupt or kill"),
            Self::AtStart => f.write_str("end, report or ignore"),
            Self::Overflow => f.write_str("wait or refuse"),
            Self::Containment => f.write_str(ownership::containment::CHOICES),
            Self::Launcher => f.write_str("auto, exec, zygote or pool"),
            Self::Command => f.write_str("a list of texts, the program first, or null"),
            Self::Text | Self::Secret => f.write_str("text, or null"),
            Self::Word => f.write_str("a word, or null"),
            Self::Url => f.write_str("an http or https address, or null"),
            Self::Effort => write!(f, "{} or false, or null", EFFORTS.join(", ")),
            Self::Path => f.write_str("a whole path, or null"),
            Self::Strategies => f.write_str("a map from provider to strategy, or null"),
            Self::Limits => f.write_str("a map from provider to limits, or null"),
            Self::Overrides => f.write_str("a map, or null"),
            Self::Helpers => f.write_str("a map of names to lists of texts, or null"),
            Self::Fallbacks => f.write_str("a list of maps with `provider` and `model`, or null"),
        }
    }
}
