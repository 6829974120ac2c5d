//! Whether a program brings its libraries along or has a dynamic linker fetch them: what [`super::guards`] costs depends
//! on it. Read from the program's own header (elf(5)); executes nothing.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// How a program comes to its libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Linkage {
    /// It has them inside.
    Static,
    /// It names an interpreter that loads them at each start.
    Dynamic,
}

impl Linkage {
    /// `static` or `dynamic`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Dynamic => "dynamic",
        }
    }

    /// Of the program in this file; `None` where it cannot be read, or is of another kind (a script).
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let mut head = Vec::new();
        File::open(path).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
        Self::parse(&head)
    }

    /// Of a program that begins with these bytes.
    fn parse(head: &[u8]) -> Option<Self> {
        if head.get(..4)? != b"\x7fELF" {
            return None;
        }
        let wide = *head.get(4)? == 2;
        let little = *head.get(5)? == 1;
        let number = |at: usize, bytes: usize| {
            let field = head.get(at..at.checked_add(bytes)?)?;
            let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
            let number =
                if little { field.iter().rev().fold(0, add) } else { field.iter().fold(0, add) };
            usize::try_from(number).ok()
        };
        // Where the table of segments begins, how long an entry is, and how many there are.
        let (begin, size, count) = if wide {
            (number(32, 8)?, number(54, 2)?, number(56, 2)?)
        } else {
            (number(28, 4)?, number(42, 2)?, number(44, 2)?)
        };
        for entry in 0..count {
            let at = begin.checked_add(entry.checked_mul(size)?)?;
            if number(at, 4)? == INTERPRETER {
                return Some(Self::Dynamic);
            }
        }
        Some(Self::Static)
    }
}

/// Linkers put the table right behind the header.
const HEAD: u64 = 4096;

/// `PT_INTERP`.
const INTERPRETER: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    /// A header of 64 bits, little end first, with segments of these kinds.
    fn program(kinds: &[u8]) -> Vec<u8> {
        let mut head = vec![0; 64];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[32] = 64;
        head[54] = 56;
        head[56] = u8::try_from(kinds.len()).expect("few");
        for kind in kinds {
            head.push(*kind);
            head.extend([0; 55]);
        }
        head
    }

    #[test]
    fn an_interpreter_is_what_tells() {
        assert_eq!(Linkage::parse(&program(&[6, 1, 1, 2])), Some(Linkage::Static));
        assert_eq!(Linkage::parse(&program(&[6, 3, 1, 1])), Some(Linkage::Dynamic));
        assert_eq!(Linkage::parse(b"#!/bin/sh\n"), None);
        assert_eq!(Linkage::of(Path::new("/nobody/is/here")), None);
    }

    #[test]
    fn no_prefix_of_a_program_is_taken_for_another() {
        let whole = program(&[6, 1, 3]);
        for length in 0..whole.len() {
            // The last entry counts as soon as its kind is there.
            let told = Linkage::parse(&whole[..length]);
            assert!(told.is_none() || told == Some(Linkage::Dynamic), "{length}: {told:?}");
        }
        for at in 4..64 {
            let mut odd = whole.clone();
            odd[at] = 0xff;
            let _total = Linkage::parse(&odd);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_program_is_read() {
        let own = std::env::current_exe().expect("this program");
        let linked =
            if cfg!(target_feature = "crt-static") { Linkage::Static } else { Linkage::Dynamic };
        assert_eq!(Linkage::of(&own), Some(linked));
    }
}
