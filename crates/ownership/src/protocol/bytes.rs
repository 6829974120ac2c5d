//! How the parts of a record are written and read. Reading is total.

use std::time::Duration;

use super::{Adopted, Back, Image, MAX_FDS, MAX_NAMED, Order};
use crate::containment::Containment;
use crate::exit::{Emptied, Exit, ExitStatus, Process, Reached, Released, Usage};
use crate::ration::Ration;
use crate::spawn::{Joins, Leftovers};

#[derive(Default)]
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn byte(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    pub(super) fn word(&mut self, value: u32) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    pub(super) fn signed(&mut self, value: i32) -> &mut Self {
        self.word(value.cast_unsigned())
    }

    pub(super) fn long(&mut self, value: u64) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// In microseconds; half a million years are enough.
    pub(super) fn duration(&mut self, value: Duration) -> &mut Self {
        self.long(u64::try_from(value.as_micros()).unwrap_or(u64::MAX))
    }

    /// A length; records above [`MAX_RECORD`] are refused by the sender, so it fits.
    pub(super) fn length(&mut self, value: usize) -> &mut Self {
        self.word(u32::try_from(value).unwrap_or(u32::MAX))
    }

    pub(super) fn text(&mut self, value: &[u8]) -> &mut Self {
        self.length(value.len());
        self.bytes.extend(value);
        self
    }

    pub(super) fn texts(&mut self, values: &[Vec<u8>]) -> &mut Self {
        self.length(values.len());
        for value in values {
            self.text(value);
        }
        self
    }

    pub(super) fn order(&mut self, order: &Order) -> &mut Self {
        let Order { id, image, argv, env, dir, fds, line, template, grace, .. } = order;
        let Order { leftovers, release, containment, joins, ration, .. } = order;
        self.long(*id);
        match image {
            Image::Open => self.byte(0),
            Image::Named(name) => self.byte(1).text(name),
            Image::Fork(template) => self.byte(2).long(*template),
        };
        self.texts(argv).texts(env);
        match dir {
            None => self.byte(0),
            Some(dir) => self.byte(1).text(dir),
        };
        self.length(fds.len());
        for fd in fds {
            self.signed(*fd);
        }
        for number in [line, template] {
            match number {
                None => self.byte(0),
                Some(number) => self.byte(1).signed(*number),
            };
        }
        self.duration(*grace).leftovers(*leftovers).deadline(*release).byte(*containment as u8);
        match joins {
            None => self.byte(0),
            Some(Joins { group, ignored, blocked }) => {
                self.byte(1).signed(*group).long(*ignored).long(*blocked)
            }
        };
        self.ration(ration)
    }

    fn ration(&mut self, ration: &Ration) -> &mut Self {
        let Ration { memory, processes, open_files, cpu, nice, cpu_weight } = ration;
        for count in [memory, processes, open_files] {
            match count {
                None => self.byte(0),
                Some(count) => self.byte(1).long(*count),
            };
        }
        self.deadline(*cpu);
        match nice {
            None => self.byte(0),
            Some(nice) => self.byte(1).byte(*nice),
        };
        match cpu_weight {
            None => self.byte(0),
            Some(weight) => self.byte(1).word(u32::from(*weight)),
        }
    }

    pub(super) fn adopted(&mut self, group: &Adopted) -> &mut Self {
        let Adopted { leader, start, session, mark } = group;
        self.signed(*leader).long(*start).byte(u8::from(*session)).long(*mark)
    }

    pub(super) fn back(&mut self, back: &Back) -> &mut Self {
        let Back { id, scope, pid, start, grace, leftovers, release, group, exit, kept } = back;
        self.long(*id).long(*scope).signed(*pid).long(*start).duration(*grace);
        self.leftovers(*leftovers).deadline(*release);
        match group {
            None => self.byte(0),
            Some(group) => self.byte(1).adopted(group),
        };
        match exit {
            None => self.byte(0),
            Some(exit) => self.byte(1).exit(exit),
        };
        self.byte(u8::from(*kept))
    }

    pub(super) fn deadline(&mut self, deadline: Option<Duration>) -> &mut Self {
        match deadline {
            None => self.byte(0),
            Some(deadline) => self.byte(1).duration(deadline),
        }
    }

    pub(super) fn leftovers(&mut self, leftovers: Leftovers) -> &mut Self {
        self.byte(leftovers as u8)
    }

    pub(super) fn exit(&mut self, exit: &Exit) -> &mut Self {
        let Exit { status, usage: Usage { user, system, max_rss_kib }, reached } = exit;
        let Reached { memory, processes, cpu } = *reached;
        self.status(*status).duration(*user).duration(*system).long(*max_rss_kib);
        self.word(memory).word(processes).byte(u8::from(cpu))
    }

    pub(super) fn status(&mut self, status: ExitStatus) -> &mut Self {
        match status {
            ExitStatus::Code(code) => self.byte(0).signed(code),
            ExitStatus::Signal { signal, core_dumped } => {
                self.byte(1).signed(signal).byte(u8::from(core_dumped))
            }
            ExitStatus::Unknown => self.byte(2),
        }
    }

    pub(super) fn emptied(&mut self, emptied: &Emptied) -> &mut Self {
        let Emptied { leftovers, leftover_count, left, kept, spared, release } = emptied;
        self.word(*leftover_count).processes(leftovers).processes(left).word(*kept);
        let named = &spared[..spared.len().min(MAX_NAMED)];
        self.length(named.len());
        for (process, rule) in named {
            self.word(process.pid).text(process.name.as_bytes()).text(rule.as_bytes());
        }
        match release {
            None => self.byte(0),
            Some(Released::Ended(status)) => self.byte(1).status(*status),
            Some(Released::TimedOut) => self.byte(2),
            Some(Released::NotStarted { errno }) => self.byte(3).signed(*errno),
        }
    }

    pub(super) fn processes(&mut self, processes: &[Process]) -> &mut Self {
        let named = &processes[..processes.len().min(MAX_NAMED)];
        self.length(named.len());
        for process in named {
            self.word(process.pid).text(process.name.as_bytes());
        }
        self
    }
}

pub(super) struct Reader<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(super) fn word(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn signed(&mut self) -> Option<i32> {
        self.word().map(u32::cast_signed)
    }

    pub(super) fn long(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn duration(&mut self) -> Option<Duration> {
        self.long().map(Duration::from_micros)
    }

    pub(super) fn length(&mut self) -> Option<usize> {
        usize::try_from(self.word()?).ok()
    }

    pub(super) fn text(&mut self) -> Option<Vec<u8>> {
        let length = self.length()?;
        self.take(length).map(<[u8]>::to_vec)
    }

    /// A list. Nothing is reserved on the sender's word: each element has at least one byte, so the
    /// record's own size is the bound.
    pub(super) fn list<T>(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let mut list = Vec::new();
        for _ in 0..self.length()? {
            list.push(one(self)?);
        }
        Some(list)
    }

    pub(super) fn order(&mut self) -> Option<Order> {
        Some(Order {
            id: self.long()?,
            image: self.image()?,
            argv: self.list(Self::text)?,
            env: self.list(Self::text)?,
            dir: if self.flag()? { Some(self.text()?) } else { None },
            fds: self.list(Self::signed).filter(|fds| fds.len() <= MAX_FDS)?,
            line: if self.flag()? { Some(self.signed()?) } else { None },
            template: if self.flag()? { Some(self.signed()?) } else { None },
            grace: self.duration()?,
            leftovers: self.leftovers()?,
            release: self.deadline()?,
            containment: Containment::ALL.get(usize::from(self.byte()?)).copied()?,
            joins: if self.flag()? { Some(self.joins()?) } else { None },
            ration: self.ration()?,
        })
    }

    fn ration(&mut self) -> Option<Ration> {
        Some(Ration {
            memory: if self.flag()? { Some(self.long()?) } else { None },
            processes: if self.flag()? { Some(self.long()?) } else { None },
            open_files: if self.flag()? { Some(self.long()?) } else { None },
            cpu: self.deadline()?,
            nice: if self.flag()? { Some(self.byte()?) } else { None },
            cpu_weight: match self.flag()? {
                true => Some(u16::try_from(self.word()?).ok()?),
                false => None,
            },
        })
    }

    fn image(&mut self) -> Option<Image> {
        match self.byte()? {
            0 => Some(Image::Open),
            1 => self.text().map(Image::Named),
            2 => self.long().map(Image::Fork),
            _ => None,
        }
    }

    fn joins(&mut self) -> Option<Joins> {
        Some(Joins { group: self.signed()?, ignored: self.long()?, blocked: self.long()? })
    }

    pub(super) fn adopted(&mut self) -> Option<Adopted> {
        Some(Adopted {
            leader: self.signed()?,
            start: self.long()?,
            session: self.flag()?,
            mark: self.long()?,
        })
    }

    pub(super) fn back(&mut self) -> Option<Back> {
        Some(Back {
            id: self.long()?,
            scope: self.long()?,
            pid: self.signed()?,
            start: self.long()?,
            grace: self.duration()?,
            leftovers: self.leftovers()?,
            release: self.deadline()?,
            group: if self.flag()? { Some(self.adopted()?) } else { None },
            exit: if self.flag()? { Some(self.exit()?) } else { None },
            kept: self.flag()?,
        })
    }

    pub(super) fn deadline(&mut self) -> Option<Option<Duration>> {
        Some(if self.flag()? { Some(self.duration()?) } else { None })
    }

    pub(super) fn leftovers(&mut self) -> Option<Leftovers> {
        match self.byte()? {
            0 => Some(Leftovers::Kill),
            1 => Some(Leftovers::Report),
            2 => Some(Leftovers::Keep),
            _ => None,
        }
    }

    pub(super) fn exit(&mut self) -> Option<Exit> {
        let status = self.status()?;
        let usage =
            Usage { user: self.duration()?, system: self.duration()?, max_rss_kib: self.long()? };
        let reached = Reached { memory: self.word()?, processes: self.word()?, cpu: self.flag()? };
        Some(Exit { status, usage, reached })
    }

    pub(super) fn status(&mut self) -> Option<ExitStatus> {
        match self.byte()? {
            0 => Some(ExitStatus::Code(self.signed()?)),
            1 => Some(ExitStatus::Signal { signal: self.signed()?, core_dumped: self.flag()? }),
            2 => Some(ExitStatus::Unknown),
            _ => None,
        }
    }

    pub(super) fn released(&mut self) -> Option<Option<Released>> {
        match self.byte()? {
            0 => Some(None),
            1 => Some(Some(Released::Ended(self.status()?))),
            2 => Some(Some(Released::TimedOut)),
            3 => Some(Some(Released::NotStarted { errno: self.signed()? })),
            _ => None,
        }
    }

    pub(super) fn emptied(&mut self) -> Option<Emptied> {
        Some(Emptied {
            leftover_count: self.word()?,
            leftovers: self.processes()?,
            left: self.processes()?,
            kept: self.word()?,
            spared: self.spared()?,
            release: self.released()?,
        })
    }

    fn spared(&mut self) -> Option<Vec<(Process, String)>> {
        let spared = self.list(|from| {
            let pid = from.word()?;
            let name = String::from_utf8(from.text()?).ok()?;
            Some((Process { pid, name }, String::from_utf8(from.text()?).ok()?))
        });
        spared.filter(|spared| spared.len() <= MAX_NAMED)
    }

    pub(super) fn processes(&mut self) -> Option<Vec<Process>> {
        self.list(|from| {
            let pid = from.word()?;
            let name = String::from_utf8(from.text()?).ok()?;
            Some(Process { pid, name })
        })
        .filter(|processes| processes.len() <= MAX_NAMED)
    }

    pub(super) fn finish<T>(self, value: T) -> Option<T> {
        self.rest.is_empty().then_some(value)
    }
}
