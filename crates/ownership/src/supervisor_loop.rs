//! A guard's process, keeper or supervisor: the one file of this side that waits, reads the clock and
//! acts. Decisions come from [`crate::supervisor`] and, for what concerns the other guard, from
//! [`crate::succession`].
//!
//! One thread, one `poll` over the owner's pidfd, the other guard, deaths of children, and the lines. It
//! ignores what terminals send, holds nothing that it inherited but its descriptors, and a panic aborts
//! it: an unwound guard would be one that looks alive and does nothing.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::journal::Journal;
use crate::line::{self, Received};
use crate::membership::{Identity, Member, Protected, Source};
use crate::peer::Held;
use crate::protocol::Request;
use crate::registry::ScopeId;
use crate::succession::{Role, Succession};
use crate::supervisor::{Event, Supervisor};
use crate::sys::Pid;
use crate::table::{Slot, Table};

mod act;
mod ahead;
mod begin;
mod chronicle;
mod containment;
mod door;
mod fork;
mod fosters;
mod groups;
mod keep;
mod namespace;
mod off;
mod peer;
mod ration;
mod record;
mod recount;
mod release;
mod scope;
mod set_up;
mod stock;
mod voice;

pub(crate) use set_up::{run_keeper, run_supervisor};

use ahead::Ahead;
use door::Doorway;
use fosters::Foster;
pub(crate) use groups::FIRST_MARK;
use groups::Group;
use off::Off;
use peer::Peer;
use recount::Recount;
use voice::Line;

/// Without children for this long, the guards leave.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Replies that wait for one reader before its requests are no longer read. Above it come at most two
/// for each of its living scopes (`Exited`, `Emptied`), which are never dropped.
const MAX_WAITING: usize = 4096;

/// What the kernel refused for want of something is tried again after this time; `poll` would not tell.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Records read from one line before the others get their turn.
const BATCH: usize = 64;

/// Members that were sent TERM.
#[derive(Default)]
struct Reached {
    /// By the group of the root.
    group: Option<Pid>,
    /// One by one.
    members: HashSet<Identity>,
    written_down: chronicle::Sent,
}

struct Loop {
    machine: Supervisor,
    succession: Succession,
    /// This guard's number; those of its scopes begin with it.
    generation: u32,
    table: Table,
    /// Where what is done is written down, if the owner wants it.
    journal: Option<Journal>,
    /// The rows of our scopes.
    rows: HashMap<ScopeId, Slot>,
    /// What was started and not looked at yet.
    unread: Vec<(Slot, Pid)>,
    peer: Option<Peer>,
    /// A supervisor is to be started as soon as everything that we have to say was said.
    start_due: bool,
    /// What the other guard holds of its scopes, for the case that it dies.
    mirrors: HashMap<(Held, ScopeId), OwnedFd>,
    /// What is held by guards alone: who holds the other end sees when none is left.
    alive: OwnedFd,
    /// Those of our scopes' processes that are number 1 of a pid namespace.
    firsts: HashMap<ScopeId, Pid>,
    /// Release commands of our scopes, sealed.
    commands: HashMap<ScopeId, OwnedFd>,
    /// Whether requests on the owner's line are ours to read.
    serves: bool,
    owner: OwnedFd,
    /// The owner's number and start time, for the tag.
    owner_identity: String,
    owner_gone: bool,
    idle_limit: Duration,
    deaths: OwnedFd,
    null: OwnedFd,
    own_handle: OwnedFd,
    lines: HashMap<ScopeId, Line>,
    /// Lines of scopes that are over, on which something is still to be said.
    parting: Vec<Line>,
    /// Lines to templates, on which they are asked to fork.
    templates: HashMap<ScopeId, OwnedFd>,
    /// Handles of the roots.
    handles: HashMap<Pid, OwnedFd>,
    /// Roots that are no children of ours.
    fosters: HashMap<ScopeId, Foster>,
    /// Groups that something else started.
    groups: HashMap<ScopeId, Group>,
    /// Members of scopes whose roots are no children of ours, as they were last met, with handles.
    met: HashMap<ScopeId, Vec<(Member, OwnedFd)>>,
    /// Processes by the scope that their environment names, as read in this turn.
    marks: Option<HashMap<ScopeId, Vec<Member>>>,
    /// The other ends of lines that were made and not yet handed out.
    fresh: HashMap<ScopeId, OwnedFd>,
    /// Who was sent TERM: nobody is sent it twice, many programs take that for an order to hurry.
    reached: HashMap<ScopeId, Reached>,
    source: Source,
    protected: Protected,
    open_files: Option<(u64, u64)>,
    /// What we had before we lowered it, for those whom we start.
    oom_score: Option<CString>,
    off: Off,
    tier: containment::Tier,
    /// What a rule lets live when the rest is ended.
    keeping: keep::Keeping,
    /// Where the owner's next program finds us.
    doorway: Doorway,
    /// What it is to be told.
    recount: Option<Recount>,
    buffer: Vec<u8>,
    /// Somebody is dead, and what was left could not be read.
    unburied: bool,
    /// More may be dead, or nobody is left, after the last burial.
    backlog: bool,
    leaving: bool,
    done: bool,
}

#[expect(clippy::disallowed_methods, reason = "this is the file that waits")]
fn now() -> Instant {
    Instant::now()
}

impl Loop {
    fn run(mut self) {
        // Its owner waits for the hello, and we have much to look at.
        self.flush();
        self.find_stale();
        while !self.done {
            self.go_on_recounting();
            self.flush();
            // That an owner is away may only now be known.
            self.look_after_door();
            let all = self.lines.get(&ScopeId::ALL);
            if self.leaving && all.is_none_or(|line| line.away || line.waiting.is_empty()) {
                break;
            }
            self.start_when_silent();
            self.read_starts();
            let ready = self.wait();
            self.marks = None;
            if ready.owner {
                self.see_owner_gone();
            }
            if ready.deaths {
                self.drain_deaths();
                self.see_stops();
            }
            self.bury();
            self.hear_peer(ready.peer, ready.link);
            self.fosters_died(ready.fosters);
            for leader in ready.leaders {
                self.leader_died(leader);
            }
            for line in ready.lines {
                self.listen(line);
            }
            if ready.door {
                self.answer_door();
            }
            self.stay_while_busy();
            self.feed(Event::Tick);
            self.watch_the_other();
            self.end_next();
            self.look_at_cells();
            self.look_at_rations();
        }
        self.leave_place();
    }

    fn flush(&mut self) {
        let mut heard = Vec::new();
        self.parting.retain_mut(|line| {
            let is_there = line.flush(&mut heard);
            if !is_there {
                line.silence(&mut heard);
            }
            is_there && !line.waiting.is_empty()
        });
        let unheard: Vec<_> = self
            .lines
            .iter_mut()
            .filter_map(|(scope, line)| (!line.flush(&mut heard)).then_some(*scope))
            .collect();
        self.flush_link();
        self.note_heard(&heard);
        for scope in unheard {
            self.close(scope);
        }
    }

    /// Waits for the next thing to happen.
    fn wait(&self) -> Ready {
        let mut watched = Watched::default();
        watched.add(&self.deaths, PollFlags::IN, Of::Deaths);
        if !self.owner_gone && !self.off.pidfd {
            watched.add(&self.owner, PollFlags::IN, Of::Owner);
        }
        let mut look_again = self.unburied || self.start_due;
        if let Some(peer) = &self.peer {
            // The death of a child comes as a signal.
            if self.succession.role() == Role::Supervisor && !self.off.keeper_watch {
                watched.add(&peer.handle, PollFlags::IN, Of::Peer);
            }
            if !peer.hung_up {
                watched.add(&peer.link.socket, flags(&peer.link, true), Of::Link);
                look_again |= peer.link.starved;
            }
        }
        for (scope, foster) in &self.fosters {
            watched.add(&foster.handle, PollFlags::IN, Of::Foster(*scope));
        }
        for (scope, group) in self.groups.iter().filter(|(_, group)| !group.leader_died) {
            watched.add(&group.handle, PollFlags::IN, Of::Leader(*scope));
        }
        for (scope, line) in &self.lines {
            let listens = (*scope != ScopeId::ALL || self.serves) && !line.away;
            let reads = listens && line.waiting.len() < MAX_WAITING && !self.leaving;
            look_again |= line.starved;
            // Of a line that is not ours to read, a hang-up would be told without end.
            if listens || line.waits_for_room() {
                watched.add(&line.socket, flags(line, reads), Of::Line(*scope));
            }
        }
        if let Some(listener) = self.doorway.listener() {
            watched.add(listener, PollFlags::IN, Of::Door);
        }
        for line in &self.parting {
            watched.add(&line.socket, flags(line, false), Of::Parting);
            look_again |= line.starved;
        }
        let again = look_again.then(|| now() + LOOK_AGAIN);
        let at_once = (self.backlog || self.tier.has_found()).then(now);
        let look = self.succession.due().filter(|_| !self.off.mark);
        let until =
            [self.machine.deadline(), look, again, at_once, self.tier.due(), self.doorway.due()];
        watched.wait(until.into_iter().flatten().min())
    }

    /// Whether so few descriptors are free that nothing more may be started, where a start needs `more`.
    fn is_full(&self, more: usize) -> bool {
        let Some((_, limit)) = self.open_files else { return false };
        let waiting =
            self.lines.values().chain(&self.parting).chain(self.peer.iter().map(|p| &p.link));
        let waiting: usize =
            waiting.flat_map(|line| &line.waiting).map(|word| word.fds.len()).sum();
        let met: usize = self.met.values().map(Vec::len).sum();
        let maps = [self.handles.len(), self.lines.len(), self.parting.len(), self.fresh.len()];
        let maps = maps.iter().sum::<usize>() + self.mirrors.len() + self.fosters.len();
        let maps = maps + self.commands.len() + self.groups.len() + self.tier.files();
        let maps = maps + self.templates.len();
        let held = OWN_FILES + maps + met + waiting + more + SPARE_FILES;
        u64::try_from(held).is_ok_and(|held| held > limit)
    }

    fn drain_deaths(&self) {
        // Fails only when there is nothing to read.
        let _ = rustix::io::read(&self.deaths, &mut [0; 8]);
    }

    fn listen(&mut self, scope: ScopeId) {
        for _ in 0..BATCH {
            // It may have become the other guard's meanwhile.
            if scope == ScopeId::ALL && !self.serves {
                return;
            }
            let Some(line) = self.lines.get(&scope) else { return };
            if line.away || line.waiting.len() >= MAX_WAITING {
                return;
            }
            match line::receive(line.socket.as_fd(), &mut self.buffer, false) {
                Ok(Received::Record { bytes, fds }) => {
                    // What is no request does nothing.
                    if let Some(request) = Request::decode(&bytes) {
                        self.feed(Event::Request { line: scope, request, fds });
                    }
                }
                Ok(Received::Bodiless { id }) => self.feed(Event::Unreadable { line: scope, id }),
                Ok(Received::Junk) => {}
                Err(Errno::AGAIN) => return,
                Ok(Received::End) | Err(_) => return self.close(scope),
            }
        }
    }

    fn close(&mut self, scope: ScopeId) {
        if scope == ScopeId::ALL && !self.owner_gone {
            return self.owner_went_away();
        }
        if let Some(mut line) = self.lines.remove(&scope) {
            let mut heard = Vec::new();
            line.silence(&mut heard);
            self.note_heard(&heard);
            self.unmirror(Held::Line, scope);
            self.feed(Event::LineClosed { line: scope });
        }
    }

    /// Gives an event to the machine and does what follows, including what follows from that.
    fn feed(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let effects = self.machine.step(event, now());
            let mut ahead = Ahead::of(&effects);
            // What an effect leads to comes before the effects that follow from later events.
            for effect in effects {
                self.freeze_ahead(&mut ahead, &effect);
                events.extend(self.act(effect));
            }
        }
    }
}

/// What `poll` has told.
#[derive(Default)]
struct Ready {
    owner: bool,
    deaths: bool,
    peer: bool,
    link: bool,
    fosters: Vec<ScopeId>,
    leaders: Vec<ScopeId>,
    lines: Vec<ScopeId>,
    door: bool,
}

/// What a descriptor that is watched stands for.
#[derive(Clone, Copy)]
enum Of {
    Deaths,
    Owner,
    Peer,
    Link,
    Foster(ScopeId),
    Leader(ScopeId),
    Line(ScopeId),
    Parting,
    Door,
}

/// What is waited for.
#[derive(Default)]
struct Watched<'a> {
    asked: Vec<PollFd<'a>>,
    of: Vec<Of>,
}

impl<'a> Watched<'a> {
    fn add(&mut self, fd: &'a OwnedFd, flags: PollFlags, of: Of) {
        self.asked.push(PollFd::new(fd, flags));
        self.of.push(of);
    }

    fn wait(mut self, until: Option<Instant>) -> Ready {
        let timeout = until.map(|until| timespec(until.saturating_duration_since(now())));
        let mut ready = Ready::default();
        if poll(&mut self.asked, timeout.as_ref()).is_err() {
            return ready;
        }
        for (asked, of) in self.asked.iter().zip(self.of) {
            let told = asked.revents();
            let heard = !(told - PollFlags::OUT).is_empty();
            match of {
                Of::Deaths => ready.deaths = !told.is_empty(),
                Of::Owner => ready.owner = heard,
                Of::Peer => ready.peer = heard,
                Of::Link => ready.link = heard,
                Of::Foster(scope) if heard => ready.fosters.push(scope),
                Of::Leader(scope) if heard => ready.leaders.push(scope),
                Of::Line(scope) if heard => ready.lines.push(scope),
                Of::Door => ready.door = heard,
                // What waits to be said is said at the next flush.
                Of::Foster(_) | Of::Leader(_) | Of::Line(_) | Of::Parting => {}
            }
        }
        ready
    }
}

fn flags(line: &Line, reads: bool) -> PollFlags {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, reads);
    flags.set(PollFlags::OUT, line.waits_for_room());
    flags
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// Descriptors of a guard that has nothing: streams, owner, table, link, the other guard, deaths, null, itself, what
/// is held by guards alone; and of a door, its directory and who knocks.
const OWN_FILES: usize = 14;

/// Descriptors that are kept free of what is started, for looking at processes and signalling them.
const SPARE_FILES: usize = 8;

/// Descriptors that a start with a line takes for a moment: the other end, a copy for the other guard and two
/// handles that the hello carries, its cgroup and three groups of version 1; and those that stay, the line and the handle.
const START_FILES: usize = 10;

/// What a start in a pid namespace of its own takes beside that: the program, the guards' pipe and both ends of a line to
/// number 1, and its handle.
const NAMESPACE_FILES: usize = 5;
