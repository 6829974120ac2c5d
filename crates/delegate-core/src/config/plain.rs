//! Opens what is to be read as a whole, without waiting for anybody. For files of settings and for batch files.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Where a shell puts a pipe that it has opened itself (`<(…)`): whoever writes there does so now.
const OPENED: [&str; 3] = ["/dev/fd/", "/proc/self/fd/", "/dev/stdin"];

/// The null device, which stands for a file with nothing in it (its number on Linux).
#[cfg(target_os = "linux")]
const NULL: u64 = 1 << 8 | 3;

/// Opens a regular file, or a pipe that somebody has opened for us. A named pipe would be waited for, and a device may never
/// end: these are refused at once. The null device is an empty file.
///
/// # Errors
/// It is none of these, or what the system says of opening it.
pub fn open(path: &Path) -> io::Result<File> {
    // Of a named pipe without a writer `open` would not come back.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    let kind = meta.file_type();
    let opened = OPENED.iter().any(|place| path.starts_with(place.trim_end_matches('/')));
    if kind.is_file() || is_null(&meta) {
        return Ok(file);
    }
    let what = match kind {
        kind if kind.is_fifo() && opened => {
            rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::empty())?;
            return Ok(file);
        }
        // As the system says it of reading one.
        kind if kind.is_dir() => return Ok(file),
        kind if kind.is_fifo() => "a named pipe, and nobody may ever write to it",
        kind if kind.is_socket() => "a socket",
        _ => "a device, which may have no end",
    };
    let text = format!("it is {what}; give a regular file");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

#[cfg(target_os = "linux")]
fn is_null(meta: &std::fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::rdev(meta) == NULL && meta.file_type().is_char_device()
}

#[cfg(not(target_os = "linux"))]
fn is_null(_meta: &std::fs::Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn what_may_have_no_end_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
        for (path, part) in [(fifo.as_path(), "named pipe"), (Path::new("/dev/zero"), "device")] {
            let error = open(path).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("regular file"), "{error}");
        }
        let _listens = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        assert!(open(&dir.path().join("socket")).is_err());
        let mut text = String::new();
        open(Path::new("/dev/null")).unwrap().read_to_string(&mut text).unwrap();
        std::fs::write(dir.path().join("file"), "words").unwrap();
        open(&dir.path().join("file")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "words");
    }

    /// The writer of a pipe that was opened may be slow.
    #[test]
    fn a_pipe_that_a_shell_has_opened_is_read_to_its_end() {
        let (read, mut write) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&read));
        let mut file = open(Path::new(&path)).unwrap();
        let writer = std::thread::spawn(move || {
            std::thread::yield_now();
            io::Write::write_all(&mut write, b"words").unwrap();
        });
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        writer.join().unwrap();
        assert_eq!(text, "words");
    }
}
