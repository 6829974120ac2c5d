//! What is written down about a job, as text; [`super::files`] has the files.
//!
//! Lines of `key value`, so that people can read it; what is no printable ASCII is escaped (`%41`).
//! The first line names the version, the last is `end`. A reader skips keys that it does not know; what
//! it would misread gets a new version.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Cause, Outer};
use crate::exit::{ExitStatus, Process};

/// Version of the file.
///
/// - 1: the first.
const VERSION: u32 = 1;

const HEAD: &str = "ownership-exempt ";

/// Largest record: reason, program and log path, each byte escaped, and a page of numbers.
pub(super) const MAX_BYTES: u64 = 64 * 1024;

/// Bytes of a path or program name that are kept.
const MAX_TEXT: usize = 4096;

/// A process at a [`Place`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) pid: i32,
    /// In clock ticks since boot.
    pub(super) start: u64,
    /// Of its pidfd, where pidfds have their own (Linux 6.9).
    pub(super) inode: Option<u64>,
}

/// Where numbers of processes mean something.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Place {
    pub(super) boot: String,
    /// Inode of the pid namespace.
    pub(super) pidns: u64,
}

/// The end of the job's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    /// Milliseconds since 1970.
    pub(super) at: u64,
    pub(super) cause: Cause,
    pub(super) status: ExitStatus,
}

/// All that is known of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) id: String,
    pub(super) reason: String,
    pub(super) gateway: Option<String>,
    /// Milliseconds since 1970, as `expires`.
    pub(super) started: u64,
    pub(super) expires: Option<u64>,
    pub(super) place: Place,
    pub(super) owner: Who,
    /// From the shim's first record on.
    pub(super) shim: Option<Who>,
    /// Once it runs.
    pub(super) job: Option<Who>,
    pub(super) program: Vec<u8>,
    pub(super) log: PathBuf,
    pub(super) outer: Option<Outer>,
    pub(super) end: Option<End>,
    /// Nothing that it started is left.
    pub(super) empty: bool,
}

/// What of a command line is written down: only the program, until what is secret in the rest can be
/// told from what is not.
pub(super) fn redact(argv: &[Vec<u8>]) -> Vec<u8> {
    let program = argv.first().map_or(&b""[..], Vec::as_slice);
    program[..program.len().min(MAX_TEXT)].to_vec()
}

/// Milliseconds since 1970, now.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn time(millis: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(millis)).unwrap_or(UNIX_EPOCH)
}

impl Record {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { id, reason, gateway, started, expires, place, owner, shim, job, .. } = self;
        let Self { program, log, outer, end, empty, .. } = self;
        let mut lines = vec![
            format!("{HEAD}{VERSION}"),
            format!("id {id}"),
            format!("reason {}", escape(reason.as_bytes())),
            format!("started {started}"),
            format!("boot {}", escape(place.boot.as_bytes())),
            format!("pidns {}", place.pidns),
            format!("owner {}", who(owner)),
            format!("program {}", escape(program)),
            format!("log {}", escape(log.as_os_str().as_bytes())),
        ];
        lines.extend(gateway.iter().map(|name| format!("gateway {}", escape(name.as_bytes()))));
        lines.extend(expires.iter().map(|millis| format!("expires {millis}")));
        lines.extend(shim.iter().map(|shim| format!("shim {}", who(shim))));
        lines.extend(job.iter().map(|job| format!("job {}", who(job))));
        if let Some(Outer { tag, adopter }) = outer {
            lines.extend(tag.iter().map(|tag| format!("tag {}", escape(tag.as_bytes()))));
            lines.extend(
                adopter.iter().map(|Process { pid, name }| {
                    format!("adopter {pid} {}", escape(name.as_bytes()))
                }),
            );
        }
        lines.extend(end.iter().map(ended));
        lines.extend(empty.then(|| "empty yes".to_owned()));
        lines.push("end\n".to_owned());
        lines.join("\n").into_bytes()
    }

    /// # Errors
    /// The version, when it is a later one; or what is missing or wrong.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let text = std::str::from_utf8(bytes).map_err(|_| Unreadable::Is("it is no text"))?;
        let body = text.strip_prefix(HEAD).ok_or(Unreadable::Is("it is no record"))?;
        let (version, body) =
            body.split_once('\n').ok_or(Unreadable::Is("it ends in its first line"))?;
        match version.parse::<u32>() {
            Ok(VERSION) => {}
            Ok(version) => return Err(Unreadable::Version(version)),
            Err(_) => return Err(Unreadable::Is("its version is no number")),
        }
        // Without its last line it is a part of a record.
        let body = body.strip_suffix("end\n").ok_or(Unreadable::Is("it is cut off"))?;
        let fields = Fields(body);
        let outer = Outer { tag: fields.text("tag"), adopter: fields.get("adopter", adopter) };
        let record = Self {
            id: fields.text("id").filter(|id| is_id(id)).ok_or(Unreadable::Is("no id"))?,
            reason: fields.text("reason").ok_or(Unreadable::Is("no reason"))?,
            gateway: fields.text("gateway"),
            started: fields.number("started").ok_or(Unreadable::Is("no start"))?,
            expires: fields.number("expires"),
            place: Place {
                boot: fields.text("boot").ok_or(Unreadable::Is("no boot id"))?,
                pidns: fields.number("pidns").ok_or(Unreadable::Is("no pid namespace"))?,
            },
            owner: fields.get("owner", parse_any).ok_or(Unreadable::Is("no owner"))?,
            shim: fields.get("shim", parse_who),
            job: fields.get("job", parse_who),
            program: fields.bytes("program").ok_or(Unreadable::Is("no program"))?,
            log: OsString::from_vec(fields.bytes("log").ok_or(Unreadable::Is("no log"))?).into(),
            outer: Some(outer).filter(|outer| *outer != Outer::default()),
            end: fields.get("ended", parse_ended),
            empty: fields.raw("empty") == Some("yes"),
        };
        Ok(record)
    }
}

/// Why bytes are no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    Version(u32),
    Is(&'static str),
}

fn who(who: &Who) -> String {
    let inode = who.inode.map_or("-".to_owned(), |inode| inode.to_string());
    format!("{} {} {inode}", who.pid, who.start)
}

/// A process that may be signalled, which init is not.
fn parse_who(text: &str) -> Option<Who> {
    parse_any(text).filter(|who| who.pid > 1)
}

fn parse_any(text: &str) -> Option<Who> {
    let mut words = text.split(' ');
    let pid = words.next()?.parse().ok().filter(|pid| *pid > 0)?;
    let start = words.next()?.parse().ok()?;
    let inode = match words.next()? {
        "-" => None,
        number => Some(number.parse().ok()?),
    };
    Some(Who { pid, start, inode })
}

fn adopter(text: &str) -> Option<Process> {
    let (pid, name) = text.split_once(' ')?;
    let name = String::from_utf8_lossy(&unescape(name)?).into_owned();
    Some(Process { pid: pid.parse().ok()?, name })
}

fn ended(end: &End) -> String {
    let cause = match end.cause {
        Cause::Itself => "itself".to_owned(),
        Cause::Expired => "expired".to_owned(),
        Cause::Stopped { by } => format!("stopped:{by}"),
    };
    let status = match end.status {
        ExitStatus::Code(code) => format!("code {code}"),
        ExitStatus::Signal { signal, core_dumped: false } => format!("signal {signal}"),
        ExitStatus::Signal { signal, core_dumped: true } => format!("core {signal}"),
        ExitStatus::Unknown => "unknown 0".to_owned(),
    };
    format!("ended {} {cause} {status}", end.at)
}

fn parse_ended(text: &str) -> Option<End> {
    let mut words = text.split(' ');
    let at = words.next()?.parse().ok()?;
    let cause = match words.next()? {
        "itself" => Cause::Itself,
        "expired" => Cause::Expired,
        other => Cause::Stopped { by: other.strip_prefix("stopped:")?.parse().ok()? },
    };
    let (kind, number) = (words.next()?, words.next()?.parse().ok()?);
    let status = match kind {
        "code" => ExitStatus::Code(number),
        "signal" => ExitStatus::Signal { signal: number, core_dumped: false },
        "core" => ExitStatus::Signal { signal: number, core_dumped: true },
        "unknown" => ExitStatus::Unknown,
        _ => return None,
    };
    Some(End { at, cause, status })
}

/// The lines between the first and the last.
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn raw(&self, key: &str) -> Option<&'a str> {
        self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
    }

    fn get<T>(&self, key: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.raw(key).and_then(parse)
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.raw(key)?.parse().ok()
    }

    fn bytes(&self, key: &str) -> Option<Vec<u8>> {
        unescape(self.raw(key)?)
    }

    fn text(&self, key: &str) -> Option<String> {
        String::from_utf8(self.bytes(key)?).ok()
    }
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b' '..=b'~' if *byte != b'%' => text.push(char::from(*byte)),
            other => text.push_str(&format!("%{other:02x}")),
        }
    }
    text
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut pieces = text.as_bytes().split(|byte| *byte == b'%');
    let mut bytes = pieces.next()?.to_vec();
    for piece in pieces {
        let (code, rest) = piece.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok()?);
        bytes.extend_from_slice(rest);
    }
    Some(bytes)
}

/// Ids are sixteen hexadecimal digits, and so never a path.
pub(super) fn is_id(id: &str) -> bool {
    id.len() == 16 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn full() -> Record {
        let who = |pid| Who { pid, start: 77, inode: Some(9) };
        Record {
            id: "0123456789abcdef".into(),
            reason: "a dev server,\nkept 100 % über Nacht".into(),
            gateway: Some("main".into()),
            started: 1,
            expires: Some(2),
            place: Place { boot: "b-1".into(), pidns: 3 },
            owner: Who { inode: None, ..who(40) },
            shim: Some(who(41)),
            job: Some(who(42)),
            program: b"/bin/\xff x".to_vec(),
            log: "/tmp/a b/0123456789abcdef.log".into(),
            outer: Some(Outer {
                tag: Some("1.2:3".into()),
                adopter: Some(Process { pid: 7, name: "a (b) c".into() }),
            }),
            end: Some(End {
                at: 5,
                cause: Cause::Stopped { by: 8 },
                status: ExitStatus::Signal { signal: 11, core_dumped: true },
            }),
            empty: true,
        }
    }

    /// What the first version wrote stays readable.
    const FIRST: &str = include_str!("fixtures/version-1.job");

    #[test]
    fn the_first_version_still_loads() {
        assert_eq!(Record::decode(FIRST.as_bytes()), Ok(full()));
        let later = FIRST.replacen(" 1\n", " 2\n", 1);
        assert_eq!(Record::decode(later.as_bytes()), Err(Unreadable::Version(2)));
        let more = FIRST.replacen("\nend\n", "\nshoe-size 44\nend\n", 1);
        assert_eq!(Record::decode(more.as_bytes()), Ok(full()), "unknown keys are skipped");
    }

    #[test]
    fn a_part_of_a_record_is_none() {
        let bytes = full().encode();
        for len in 0..bytes.len() {
            assert!(matches!(Record::decode(&bytes[..len]), Err(Unreadable::Is(_))), "{len}");
        }
    }

    #[test]
    fn processes_that_nobody_may_signal_are_no_identities() {
        for text in ["0 5 -", "1 5 -", "-1 5 -", "5 5", "5 x -", "99999999999 5 -", ""] {
            assert_eq!(parse_who(text), None, "{text}");
        }
        assert!(parse_who("5 5 -").is_some());
    }

    proptest! {
        #[test]
        fn decoding_is_total(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            drop(Record::decode(&bytes));
            let whole = [format!("{HEAD}1\n").as_bytes(), &bytes, b"end\n"].concat();
            drop(Record::decode(&whole));
        }

        #[test]
        fn what_is_written_is_read(
            reason in any::<String>(),
            program in prop::collection::vec(any::<u8>(), 0..50),
            job in prop::option::of((2..i32::MAX, any::<u64>(), any::<Option<u64>>())),
            code in prop::option::of(any::<i32>()),
            empty in any::<bool>(),
        ) {
            let job = job.map(|(pid, start, inode)| Who { pid, start, inode });
            let status = |code| End { at: 1, cause: Cause::Expired, status: ExitStatus::Code(code) };
            let end = code.map(status);
            let record = Record { reason, program, job, end, empty, outer: None, ..full() };
            prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
        }
    }
}
