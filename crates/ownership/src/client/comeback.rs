//! The program that an owner executed in its own place takes up what the one before it had: finds the guards
//! that wait for this process, and has itself told what lives. Waits for that, and reads the clock for it.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{Answer, Child, Client, Source, lock};
use crate::attach::REPLY_BYTES;
use crate::child::Terms;
use crate::connection::Connection;
use crate::containment::Containment;
use crate::door::{self, Hall, Name};
use crate::exit::{ChildEvent, Emptied, Exit};
use crate::line::{self, Received};
use crate::number;
use crate::program::{KEEPER_ROLE, Program, SUPERVISOR_ROLE, Stand, is_role};
use crate::protocol::{Back, Reply, Request, VERSION};
use crate::recorder::Entry;
use crate::sys::Pid;
use crate::{hook, identity};

/// For guards to see that the line has ended, and to be replaced meanwhile.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);

/// Guards that are nowhere to be seen for this long are not there.
const SURE: Duration = Duration::from_millis(50);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// For tests only: milliseconds in place of [`LIMIT`].
const TEST_LIMIT: &str = "OWNERSHIP_TEST_REATTACH_MS";

/// What one attempt found.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Looked {
    /// No guard watches this process that none of its owners has.
    NoGuards,
    /// They have not seen the line end yet, or one of them is being replaced, or why there is no door.
    NoDoor(Option<String>),
    /// They closed the line before all was told, or sent us away.
    Closed,
}

/// What follows from it, this long after the first attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    Again(Duration),
    GiveUp(Why),
}

/// Why there is nothing to take up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Why {
    NoGuards,
    TimedOut(String),
    Failed(String, Option<i32>),
}

fn next(looked: &Looked, after: Duration, limit: Duration) -> Next {
    match looked {
        Looked::NoGuards if after >= SURE.min(limit) => Next::GiveUp(Why::NoGuards),
        Looked::NoDoor(_) | Looked::Closed if after >= limit => {
            let why = match looked {
                Looked::NoDoor(Some(why)) => why.clone(),
                Looked::Closed => "they closed the line again and again".to_owned(),
                Looked::NoDoor(None) | Looked::NoGuards => {
                    "they do not answer, or a copy of this process made by fork still holds their line"
                        .to_owned()
                }
            };
            Next::GiveUp(Why::TimedOut(why))
        }
        Looked::NoGuards | Looked::NoDoor(_) | Looked::Closed => {
            Next::Again(PAUSE.min(limit.saturating_sub(after)))
        }
    }
}

/// What was taken up.
pub(crate) struct Found {
    pub(crate) client: Arc<Client>,
    pub(crate) children: Vec<Came>,
    /// Leaders of adopted groups.
    pub(crate) groups: Vec<Pid>,
}

/// A child that was taken up.
pub(crate) struct Came {
    pub(crate) child: Arc<Child>,
    pub(crate) answer: Answer,
    pub(crate) grace: Duration,
    pub(crate) exit: Option<Exit>,
    /// Where its events go.
    pub(crate) late: Late,
    /// Its arguments, as `/proc` has them.
    pub(crate) argv: Vec<OsString>,
    /// The mark in its environment.
    pub(crate) tag: String,
}

/// The row of a child that is known only later: what happens until then is kept.
#[derive(Clone, Default)]
pub(crate) struct Late(Arc<Mutex<(Option<Entry>, Vec<ChildEvent>)>>);

impl Late {
    fn event(&self, event: ChildEvent) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &known.0 {
            Some(entry) => entry.event(&event),
            None => known.1.push(event),
        }
    }

    /// This is its row.
    #[cfg(feature = "ledger")]
    pub(crate) fn is(&self, entry: Entry) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.1.drain(..).for_each(|event| entry.event(&event));
        known.0 = Some(entry);
    }

    pub(crate) fn entry(&self) -> Option<Entry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

/// What the guards told.
struct Told {
    socket: OwnedFd,
    generation: u32,
    guards: Vec<OwnedFd>,
    backs: BTreeMap<u64, (Back, Vec<OwnedFd>)>,
    news: Vec<Reply>,
    next: u64,
}

/// The owners of this process, by number: those that were made here, and those that were taken up.
static OWN: Mutex<Option<HashSet<u64>>> = Mutex::new(None);

/// From now on that number is of an owner in this program. `false` if it was before.
pub(super) fn claim_number(number: u64) -> bool {
    lock(&OWN).get_or_insert_default().insert(number)
}

fn give_back_number(number: u64) {
    lock(&OWN).get_or_insert_default().remove(&number);
}

fn is_own_number(number: u64) -> bool {
    lock(&OWN).as_ref().is_some_and(|own| own.contains(&number))
}

#[expect(clippy::disallowed_methods, reason = "this is the file that waits")]
fn now() -> Instant {
    Instant::now()
}

/// Takes up what an owner before has left to this process.
pub(crate) fn reattach(program: Program, args: Vec<OsString>) -> Result<Found, Why> {
    let limit = hook::setting(TEST_LIMIT).and_then(|millis| millis.parse().ok());
    let limit = limit.map_or(LIMIT, Duration::from_millis);
    let begun = now();
    loop {
        let looked = match attempt(limit)? {
            Ok((owner, told)) => return take_up(program, args, owner, told),
            Err(looked) => looked,
        };
        match next(&looked, now().saturating_duration_since(begun), limit) {
            Next::Again(pause) => wait(pause),
            Next::GiveUp(why) => return Err(why),
        }
    }
}

fn wait(pause: Duration) {
    let _ = poll(&mut [], Timespec::try_from(pause).ok().as_ref());
}

/// One look at all the doors. Nobody else in this program looks at the one that is taken.
fn attempt(limit: Duration) -> Result<Result<(u64, Told), Looked>, Why> {
    let failed = |what: &str| Why::Failed(what.to_owned(), None);
    let own = Name::of(identity::own_pid(), 0).ok_or(failed("/proc is missing"))?;
    if !identity::proc_is_ours() {
        return Err(failed("/proc is of another pid namespace"));
    }
    let mut looked = Looked::NoDoor(None);
    for place in door::places() {
        let hall = match Hall::open(&place) {
            Ok(hall) => hall,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    looked = Looked::NoDoor(Some(error.to_string()));
                }
                continue;
            }
        };
        let mut names = hall.names();
        names.retain(|name| name.is_of(&own) && !is_own_number(name.owner));
        names.sort();
        for name in names {
            if !claim_number(name.owner) {
                continue;
            }
            let told = match hall.knock(&name) {
                Ok(socket) => hear(socket, limit),
                Err(_) => Ok(None),
            };
            match told {
                Ok(Some(told)) => return Ok(Ok((name.owner, told))),
                Ok(None) => looked = Looked::Closed,
                Err(why) => {
                    give_back_number(name.owner);
                    return Err(why);
                }
            }
            give_back_number(name.owner);
        }
    }
    if looked == Looked::NoDoor(None) && !has_guards() {
        looked = Looked::NoGuards;
    }
    Ok(Err(looked))
}

/// Whether anybody guards an owner of this process that is none of this program's.
fn has_guards() -> bool {
    let own = format!("Pid:\t{}", identity::own_pid());
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse::<Pid>().ok()).any(|pid| {
        let number = std::fs::read(format!("/proc/{pid}/cmdline")).ok().and_then(owner_number);
        // A guard keeps its owner's handle where it got it.
        number.is_some_and(|number| !is_own_number(number))
            && std::fs::read_to_string(format!("/proc/{pid}/fdinfo/4"))
                .is_ok_and(|info| info.lines().any(|line| line == own))
    })
}

/// Which owner a guard with these arguments has.
fn owner_number(cmdline: Vec<u8>) -> Option<u64> {
    let role = std::str::from_utf8(cmdline.split(|byte| *byte == 0).nth(1)?).ok()?;
    let word = std::ffi::OsStr::new(role);
    let is_guard = is_role(word, KEEPER_ROLE) || is_role(word, SUPERVISOR_ROLE);
    role.split_once('=').filter(|_| is_guard)?.1.split_once('.')?.1.parse().ok()
}

/// Has itself told everything. `None` where the line ends before that, or nothing is said for so long. A guard that
/// took over meanwhile is asked again.
fn hear(socket: OwnedFd, limit: Duration) -> Result<Option<Told>, Why> {
    let (backs, guards) = (BTreeMap::new(), Vec::new());
    let mut told = Told { socket, generation: 0, guards, backs, news: Vec::new(), next: 0 };
    let mut asked = 0;
    let mut until = now() + limit;
    let mut buffer = vec![0; REPLY_BYTES];
    loop {
        let (bytes, mut fds) = match line::receive(told.socket.as_fd(), &mut buffer, false) {
            Ok(Received::Record { bytes, fds }) => {
                until = now() + limit;
                (bytes, fds)
            }
            Err(Errno::AGAIN) => {
                let left = until.saturating_duration_since(now());
                let mut asked = [PollFd::new(&told.socket, PollFlags::IN)];
                let _ = poll(&mut asked, Timespec::try_from(left).ok().as_ref());
                if left.is_zero() {
                    return Ok(None);
                }
                continue;
            }
            Ok(Received::Bodiless { .. } | Received::Junk) => continue,
            Ok(Received::End) | Err(_) => return Ok(None),
        };
        match Reply::decode(&bytes) {
            Some(Reply::Hello { version, .. }) if version != VERSION => {
                let text = format!(
                    "its guards speak version {version}, this program {VERSION}: they were started by another release"
                );
                return Err(Why::Failed(text, None));
            }
            Some(Reply::Hello { generation, .. }) => {
                (told.generation, told.guards) = (told.generation.max(generation), fds);
                asked += 1;
                let request = Request::Recount { number: asked }.encode();
                // Where it fails the line has ended.
                let _ = line::send(told.socket.as_fd(), &request, &[], false);
            }
            Some(Reply::Returned(back)) => {
                if fds.is_empty() {
                    let text = "too few descriptors are free for the handles of all children: \
                        raise the limit (ulimit -n) and try again";
                    return Err(Why::Failed(text.to_owned(), Some(libc::EMFILE)));
                }
                fds.truncate(2);
                told.backs.insert(back.id, (*back, fds));
            }
            Some(news @ (Reply::Exited { .. } | Reply::Emptied { .. } | Reply::NoScope { .. })) => {
                told.news.push(news)
            }
            Some(Reply::Recounted { number, next }) if number == asked => {
                told.next = next;
                return Ok(Some(told));
            }
            Some(Reply::Leaving) => return Ok(None),
            Some(
                Reply::Started { .. }
                | Reply::Failed { .. }
                | Reply::Opened { .. }
                | Reply::Resynced { .. }
                | Reply::Stopped { .. }
                | Reply::Pong { .. }
                | Reply::Recounted { .. },
            )
            | None => {}
        }
    }
}

fn take_up(program: Program, args: Vec<OsString>, owner: u64, told: Told) -> Result<Found, Why> {
    let failed = |what: &str, error: &io::Error| {
        Why::Failed(format!("{what}: {error}"), error.raw_os_error())
    };
    let Told { socket, generation, guards, backs, news, next } = told;
    let client = Client::with(Source::Start { program, args, stand: Stand::Apart }, None, owner);
    let line = Connection::new(socket)
        .map_err(|errno| failed("no event counter", &io::Error::from(errno)))?;
    line.served_by(guards);
    number::go_on_from(next);
    let identity = client.identity();
    let (mut children, mut groups) = (Vec::new(), Vec::new());
    {
        let mut state = lock(&client.state);
        state.generation = generation;
        // Those of the program before are not known.
        state.last_mark = number::next_spawn();
        for (back, fds) in backs.into_values() {
            number::go_on_from(back.id + 1);
            let tag = format!("{identity}:{}", back.scope);
            let (exit, kept, group) = (back.exit.clone(), back.kept, back.group);
            let came = came(back, fds, tag)?;
            state.children.insert(came.child.id, Arc::clone(&came.child));
            if let Some(group) = group {
                state.groups.insert(group.leader, Arc::clone(&came.child));
                groups.push(group.leader);
                continue;
            }
            if let Some(exit) = exit {
                came.child.tell(ChildEvent::Exited(exit));
            }
            if kept {
                // That was told to the program before; how many it were is not known any more.
                came.child.tell(ChildEvent::Emptied(Emptied { kept: 1, ..Emptied::default() }));
            } else {
                children.push(came);
            }
        }
        state.line = Some(Arc::clone(&line));
    }
    for reply in news {
        client.take(&line, reply, Vec::new());
    }
    for came in &mut children {
        came.exit = came.child.exit();
    }
    client.begin_reading(&line).map_err(|error| failed("no reader thread", &error))?;
    Ok(Found { client, children, groups })
}

fn came(back: Back, fds: Vec<OwnedFd>, tag: String) -> Result<Came, Why> {
    let Back { id, scope, pid, start, grace, leftovers, release, group, exit, kept: _ } = back;
    let mut fds = fds.into_iter();
    let Some(handle) = fds.next() else {
        return Err(Why::Failed("a handle is missing".into(), None));
    };
    let release = fds.next().zip(release);
    let argv = match exit {
        None => arguments(pid, start),
        Some(_) => Vec::new(),
    };
    let program = argv.first().map(PathBuf::from).unwrap_or_default();
    let late = Late::default();
    let told = late.clone();
    let terms = Terms {
        grace,
        leftovers,
        release,
        group,
        containment: Containment::Auto,
        ration: crate::ration::Ration::default(),
    };
    let on_event = Box::new(move |event| told.event(event));
    let child = Arc::new(Child::new(id, terms, program, None, on_event));
    let fd = Arc::new(handle);
    child.answer(Ok(Answer { pid, scope, fd: Arc::clone(&fd) }));
    let answer = child.wait_answer().map_err(|error| Why::Failed(error.detail, error.errno))?;
    Ok(Came { child, answer, grace, exit, late, argv, tag })
}

/// The arguments of the process with this number and start time.
fn arguments(pid: Pid, start: u64) -> Vec<OsString> {
    use std::os::unix::ffi::OsStringExt;
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let same = identity::Stat::read(pid).is_some_and(|stat| start == 0 || stat.start == start);
    let words = words.strip_suffix(&[0]).filter(|_| same).unwrap_or_default();
    let words = words.split(|byte| *byte == 0).filter(|_| !words.is_empty());
    words.map(|word| OsString::from_vec(word.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that can be found, before, at and after the times that count.
    #[test]
    fn it_is_tried_again_until_the_deadline_and_not_where_nobody_is() {
        let limit = Duration::from_secs(5);
        let before = limit - Duration::from_millis(1);
        let bad = Looked::NoDoor(Some("others can enter it".into()));
        for looked in [Looked::NoDoor(None), bad.clone(), Looked::Closed] {
            assert_eq!(next(&looked, Duration::ZERO, limit), Next::Again(PAUSE));
            assert_eq!(next(&looked, before, limit), Next::Again(Duration::from_millis(1)));
            for after in [limit, limit * 2] {
                let Next::GiveUp(Why::TimedOut(why)) = next(&looked, after, limit) else {
                    panic!("{looked:?} at {after:?}")
                };
                assert_eq!(why == "others can enter it", looked == bad);
            }
        }
        assert_eq!(next(&Looked::NoGuards, Duration::ZERO, limit), Next::Again(PAUSE));
        for after in [SURE, limit] {
            assert_eq!(next(&Looked::NoGuards, after, limit), Next::GiveUp(Why::NoGuards));
        }
        let none = Duration::ZERO;
        assert_eq!(next(&Looked::NoGuards, none, none), Next::GiveUp(Why::NoGuards));
    }

    #[test]
    fn guards_are_known_by_their_role() {
        let cmdline = |words: &str| words.replace(' ', "\0").into_bytes();
        assert_eq!(owner_number(cmdline(&format!("warden {KEEPER_ROLE}=0.7 more"))), Some(7));
        assert_eq!(owner_number(cmdline(&format!("minder {SUPERVISOR_ROLE}=3.8 "))), Some(8));
        for other in ["warden", "warden other=1.2", "", "warden @=1.2"] {
            assert_eq!(owner_number(cmdline(other)), None, "{other}");
        }
        assert_eq!(owner_number(cmdline(&format!("warden {KEEPER_ROLE}=x"))), None);
    }
}
