//! Telling the owner's next program what lives: one record for each child that the program before it had started,
//! whichever guard has it, with its handle; then what happened to them and was not told, or may not have been
//! read; then that this was all.
//!
//! The other guard says its news only after that ([`Note::Recounted`]): no word comes about a child that is not
//! known.

use std::collections::{HashSet, VecDeque};
use std::os::fd::OwnedFd;

use super::voice::Word;
use super::{BATCH, Loop};
use crate::identity::Stat;
use crate::peer::{Held, Note};
use crate::protocol::{Adopted, Back, Reply};
use crate::registry::ScopeId;
use crate::sys::wait;
use crate::table::{Flag, Row, Stage};

/// What is still to be told.
pub(super) struct Recount {
    number: u64,
    rows: VecDeque<Row>,
    /// Those of which nothing is left but the word of their end.
    over: VecDeque<Back>,
}

impl Loop {
    pub(super) fn recount(&mut self, number: u64) {
        let mut rows = self.table.rows(self.generation);
        if let Some(peer) = &self.peer {
            rows.extend(self.table.rows(peer.generation));
        }
        rows.retain(is_to_be_told);
        rows.sort_by_key(|row| row.id);
        let mut known: HashSet<_> = rows.iter().map(|row| row.id).collect();
        let held = self.lines.get(&ScopeId::ALL).map(|line| line.held()).unwrap_or_default();
        let news = held.iter().filter_map(|word| word.news.clone());
        let over = news.filter(|back| known.insert(back.id)).collect();
        self.recount = Some(Recount { number, rows: rows.into(), over });
    }

    /// As much of it as there is room for.
    pub(super) fn go_on_recounting(&mut self) {
        while let Some(mut recount) = self.recount.take() {
            let mut words = VecDeque::new();
            while words.len() < BATCH {
                if let Some(row) = recount.rows.pop_front() {
                    words.push_back(self.returned(&row));
                } else if let Some(back) = recount.over.pop_front() {
                    let gone = self.null.try_clone().into_iter().collect();
                    words.push_back(Word::new(&Reply::Returned(Box::new(back)), gone));
                } else {
                    break;
                }
            }
            let is_all = words.len() < BATCH;
            let Some(line) = self.lines.get_mut(&ScopeId::ALL) else { return };
            line.waiting.extend(words);
            if is_all {
                line.tell_held();
                let (number, next) = (recount.number, self.table.next_id());
                line.waiting.push_back(Word::new(&Reply::Recounted { number, next }, Vec::new()));
            }
            let mut heard = Vec::new();
            let is_there = line.flush(&mut heard);
            let is_full = !line.waiting.is_empty();
            self.note_heard(&heard);
            self.die_at(if is_all { "recounted" } else { "recounting" });
            if is_all {
                self.tell_peer(&Note::Recounted, Vec::new());
            } else {
                self.recount = Some(recount);
            }
            if !is_there {
                return self.close(ScopeId::ALL);
            }
            if is_full {
                return;
            }
        }
    }

    /// Who asks a new guard where it stands was told everything by the one before, perhaps in its last moment.
    pub(super) fn owner_knows_all(&mut self, line: ScopeId) {
        if line == ScopeId::ALL {
            self.tell_held_news();
            self.tell_peer(&Note::Recounted, Vec::new());
        }
    }

    /// The owner's next program knows whom the news are about.
    pub(super) fn tell_held_news(&mut self) {
        if let Some(line) = self.lines.get_mut(&ScopeId::ALL) {
            line.tell_held();
        }
    }

    /// What a reply to the owner tells of a child, for a program that does not know it.
    pub(super) fn news(
        &self,
        line: ScopeId,
        reply: &Reply,
        about: Option<ScopeId>,
    ) -> Option<Back> {
        let is_news = matches!(reply, Reply::Exited { .. } | Reply::Emptied { .. });
        let slot = about.filter(|_| is_news && line == ScopeId::ALL).and_then(|of| self.row(of))?;
        self.table.read(slot).filter(is_to_be_told).map(|row| back(&row))
    }

    fn returned(&self, row: &Row) -> Word {
        let command = match row.release {
            Some(_) => self.commands.get(&row.scope).or(self.mirrors.get(&held(row))),
            None => None,
        };
        let handle = self.handle_of(row).or_else(|| self.null.try_clone().ok());
        let command = command.and_then(|command| command.try_clone().ok());
        let fds = handle.into_iter().chain(command).collect();
        Word::new(&Reply::Returned(Box::new(back(row))), fds)
    }

    /// `None` when it is dead.
    fn handle_of(&self, row: &Row) -> Option<OwnedFd> {
        let group = self.groups.get(&row.scope).map(|group| &group.handle);
        let group = group.or(self.mirrors.get(&(Held::Group, row.scope)));
        let foster = self.fosters.get(&row.scope).map(|foster| &foster.handle);
        let own =
            matches!(row.stage, Stage::Intent | Stage::Alive).then(|| self.handles.get(&row.pid));
        if let Some(held) = group.or(foster).or(own.flatten()) {
            return held.try_clone().ok();
        }
        // A child of the other guard.
        let handle = wait::open_child(row.pid).ok()?;
        let stat = Stat::read(row.pid)?;
        let same = match row.start {
            0 => self.tag_of(row.pid) == Some(row.scope),
            start => stat.start == start,
        };
        same.then_some(handle)
    }
}

fn held(row: &Row) -> (Held, ScopeId) {
    (Held::Command, row.scope)
}

/// What the owner itself has started, or taken over. A scope without a process ended with its line.
fn is_to_be_told(row: &Row) -> bool {
    let is_there = row.pid != 0 && row.failed.is_none();
    let other = row.has(Flag::Rootless) || row.has(Flag::Releases);
    row.parent == ScopeId::ALL && row.id != 0 && is_there && !other
}

fn back(row: &Row) -> Back {
    let group = row.has(Flag::Group).then(|| Adopted {
        leader: row.pid,
        start: row.start,
        session: row.has(Flag::Session),
        mark: row.mark,
    });
    Back {
        id: row.id,
        scope: row.scope.0,
        pid: row.pid,
        start: row.start,
        grace: row.grace,
        leftovers: row.policy(),
        release: row.release,
        group,
        exit: row.exit.clone(),
        kept: row.has(Flag::ToldEmptied) && row.stage != Stage::Empty,
    }
}
