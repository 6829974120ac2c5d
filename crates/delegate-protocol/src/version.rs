//! The version handshake: the child says what it speaks, the parent decides.
//!
//! The wire has its own version, apart from the package's: a release that changes no frame keeps
//! it. The files on disk have versions of their own in the modules that write them.

use crate::message::Hello;

/// Version of the wire.
///
/// | version | change |
/// |---|---|
/// | 1 | first |
/// | 2 | notes of a child; notices and dumps; beats count activity |
/// | 3 | a child can be steered, and tells what it was allowed |
/// | 4 | a child asks its parent |
/// | 5 | a child may take several prompts |
pub const PROTOCOL_VERSION: u32 = 5;

/// A child that speaks another version than its parent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the worker speaks protocol {theirs} (its program is version {program}), this parent speaks \
     {PROTOCOL_VERSION}: install both from the same release, or remove worker.command so that \
     this program is its own worker"
)]
pub struct VersionMismatch {
    theirs: u32,
    program: String,
}

/// Checks a child's first frame.
///
/// # Errors
/// When the versions differ; the text says what to do.
pub fn check(hello: &Hello) -> Result<(), VersionMismatch> {
    if hello.protocol == PROTOCOL_VERSION {
        return Ok(());
    }
    Err(VersionMismatch {
        theirs: hello.protocol,
        program: hello.program_version.chars().take(64).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_refused_with_a_remedy() {
        let mut hello = Hello {
            protocol: PROTOCOL_VERSION,
            program_version: "9.9".to_owned(),
            pid: 1,
            agents: Vec::new(),
        };
        assert_eq!(check(&hello), Ok(()));
        hello.protocol += 1;
        let text = check(&hello).unwrap_err().to_string();
        let theirs = format!("protocol {}", PROTOCOL_VERSION + 1);
        assert!(text.contains(&theirs) && text.contains("9.9") && text.contains("remove"));
    }
}
