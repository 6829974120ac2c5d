//! Reaching a helper that a whole tree of children shares: a connection to the socket of the program that
//! delegates, which runs the helper once for everybody. Used by `session`, and by commands that stand for such a
//! helper in the configuration of a program (`delegate helper NAME`).
//!
//! A client says which helper it wants in one line of JSON, is answered in one, and then speaks with the helper.

use std::io::{self, BufRead, BufReader, Read, Write};
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

#[cfg(target_os = "linux")]
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

/// The variable with the address, for programs that a child starts.
pub const VARIABLE: &str = "DELEGATE_HELPERS";

/// Bytes of the first line of each side.
pub const FIRST_LINE: u64 = 16 * 1024;

/// How long the first answer may take: nothing is started for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether a helper can have that name: letters, digits, `-` and `_`, 64 at most.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=64).contains(&text.len()) && text.bytes().all(fits)
}

/// What a client says first.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// Name of the helper.
    pub helper: String,
}

/// What it is answered.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Connects to a shared helper: what is written goes to it, a JSON-RPC message per line, and what it answers can
/// be read.
///
/// # Errors
/// Nobody listens there any more, or there is no helper of that name (`NotFound`).
pub fn connect(address: &Path, name: &str) -> io::Result<UnixStream> {
    let mut stream = dial(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let wish = Wish { helper: name.to_owned() };
    stream.write_all((serde_json::to_string(&wish)? + "\n").as_bytes())?;
    let granted: Granted = serde_json::from_str(&first_line(&mut stream)?)?;
    if let Some(error) = granted.error {
        return Err(io::Error::new(io::ErrorKind::NotFound, error));
    }
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// Reads to the first newline and not a byte further.
fn first_line(stream: &mut UnixStream) -> io::Result<String> {
    let mut line = String::new();
    let mut bytes = BufReader::with_capacity(1, stream).take(FIRST_LINE);
    if bytes.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line)
}

#[cfg(not(target_os = "linux"))]
fn dial(address: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(address)
}

/// An address is 107 bytes at most (man 7 unix), a path is not: it is reached through its directory.
#[cfg(target_os = "linux")]
fn dial(address: &Path) -> io::Result<UnixStream> {
    let (Some(folder), Some(file)) = (address.parent(), address.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    let fd = folder.as_raw_fd();
    UnixStream::connect(Path::new(&format!("/proc/self/fd/{fd}")).join(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread;

    #[test]
    fn names() {
        for (name, fits) in [
            ("docs", true),
            ("a-b_9", true),
            ("", false),
            ("a b", false),
            ("ä", false),
            ("a/b", false),
        ] {
            assert_eq!(is_name(name), fits, "{name}");
        }
        assert!(is_name(&"n".repeat(64)) && !is_name(&"n".repeat(65)));
    }

    /// Not a byte of what follows the answer is swallowed, whatever the length of the path.
    #[test]
    fn the_first_answer_ends_with_its_line() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("d".repeat(120));
        std::fs::create_dir(&folder).unwrap();
        let at = std::fs::File::open(&folder).unwrap();
        let address = format!("/proc/self/fd/{}/s", at.as_raw_fd());
        let listener = UnixListener::bind(address).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert_eq!(first_line(&mut stream).unwrap(), "{\"helper\":\"docs\"}\n");
            stream.write_all(b"{}\n{\"id\":1}\n").unwrap();
        });
        let mut stream = connect(&folder.join("s"), "docs").unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "{\"id\":1}\n");
        server.join().unwrap();
        assert!(connect(&folder.join("none"), "docs").is_err());
    }
}
