//! What a front does: a function of what it knows and what happened. No I/O, no clock.

use crate::exit::{Emptied, ExitStatus};

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// A signal came to the front.
    Signal {
        number: i32,
        /// A process sent it, perhaps to the front alone.
        by_process: bool,
        /// The terminal that there was is gone.
        hung_up: bool,
        /// The program stands still.
        stands: bool,
    },
    /// The program was stopped by this signal.
    Stopped {
        signal: i32,
        /// It still is.
        stands: bool,
        /// Without us, nobody could let this job go on: the kernel would not have stopped it for a terminal.
        orphaned: bool,
    },
    /// The front itself was stopped and goes on.
    Woke {
        stands: bool,
        /// We were given the terminal, and the program leads a group of its own.
        apart: bool,
        /// As of a stop: whoever could have let it go on is gone.
        orphaned: bool,
    },
    Exited(ExitStatus),
    Emptied(Emptied),
    /// Nobody knows any more what became of it.
    Lost,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Send this to the program.
    Forward(i32),
    /// Stop the front by this signal.
    Stop(i32),
    /// Send CONT to the front's own group.
    ContinueGroup,
    /// Send HUP, then CONT, to the front's own group.
    HangUpGroup,
    /// Give the terminal to the program's group.
    HandTerminal,
    /// End the program and all of its scope, with the grace.
    End,
    /// End what is left without grace.
    Hurry,
    /// It is over.
    Leave,
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Machine {
    /// Ends are asked for once.
    ending: bool,
    hurried: bool,
    /// How the program ended.
    pub(super) status: Option<ExitStatus>,
    /// What it left.
    pub(super) emptied: Option<Emptied>,
    /// It was ended because the terminal was closed.
    pub(super) hung_up: bool,
    /// Nobody could let it go on when it was stopped: a group that was an orphaned one before does not become one.
    alone: bool,
}

impl Machine {
    pub(super) fn step(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::Signal { number, .. } if self.status.is_some() => self.impatience(number),
            Event::Signal { number, by_process, hung_up, stands } => {
                self.signal(number, by_process, hung_up, stands)
            }
            // Gone on meanwhile, or dead.
            Event::Stopped { stands: false, .. } | Event::Woke { stands: false, .. } => Vec::new(),
            Event::Stopped { .. } | Event::Woke { .. } if self.status.is_some() => Vec::new(),
            Event::Stopped { signal, orphaned: true, .. } if is_of_terminal(signal) => {
                vec![Effect::ContinueGroup]
            }
            Event::Stopped { signal, orphaned, .. } => {
                self.alone = orphaned;
                vec![Effect::Stop(signal)]
            }
            // What the kernel does with a group that has become an orphaned one while somebody in it stands.
            Event::Woke { orphaned: true, .. } if !self.alone => vec![Effect::HangUpGroup],
            // Before it runs: a shell that reads in the background reads nothing more.
            Event::Woke { apart: true, .. } => {
                vec![Effect::HandTerminal, Effect::Forward(libc::SIGCONT)]
            }
            Event::Woke { .. } => vec![Effect::Forward(libc::SIGCONT)],
            Event::Exited(status) => {
                self.status = Some(status);
                Vec::new()
            }
            Event::Emptied(emptied) => {
                self.emptied = Some(emptied);
                vec![Effect::Leave]
            }
            Event::Lost => vec![Effect::Leave],
        }
    }

    fn signal(
        &mut self,
        number: i32,
        by_process: bool,
        hung_up: bool,
        stands: bool,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        // What the kernel sends for a terminal has reached the program as well.
        let forward = match number {
            libc::SIGCONT => stands,
            _ => by_process,
        };
        if forward {
            effects.push(Effect::Forward(number));
        }
        if number == libc::SIGHUP && hung_up && !self.ending {
            self.ending = true;
            self.hung_up = true;
            effects.push(Effect::End);
        }
        effects
    }

    /// The program is dead, so that nobody else hears what is asked for.
    fn impatience(&mut self, number: i32) -> Vec<Effect> {
        let asks = matches!(number, libc::SIGINT | libc::SIGTERM | libc::SIGQUIT | libc::SIGHUP);
        if !asks || std::mem::replace(&mut self.hurried, true) {
            return Vec::new();
        }
        vec![Effect::Hurry]
    }
}

/// The kernel sends it for a terminal, and does not stop an orphaned group by it.
fn is_of_terminal(signal: i32) -> bool {
    matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [bool; 2] = [false, true];
    const SIGNALS: [i32; 8] = [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGQUIT,
        libc::SIGTSTP,
        libc::SIGCONT,
        libc::SIGUSR1,
        libc::SIGWINCH,
    ];

    fn states() -> Vec<Machine> {
        let mut all = Vec::new();
        for ending in BOTH {
            for hurried in BOTH {
                for status in [None, Some(ExitStatus::Code(3))] {
                    for alone in BOTH {
                        let (emptied, hung_up) = (None, ending);
                        all.push(Machine { ending, hurried, status, emptied, hung_up, alone });
                    }
                }
            }
        }
        all
    }

    fn signals() -> Vec<Event> {
        let mut all = Vec::new();
        for number in SIGNALS {
            for by_process in BOTH {
                for hung_up in BOTH {
                    for stands in BOTH {
                        all.push(Event::Signal { number, by_process, hung_up, stands });
                    }
                }
            }
        }
        all
    }

    #[test]
    fn every_signal_in_every_state() {
        for before in states() {
            for event in signals() {
                let mut machine = before.clone();
                let effects = machine.step(event.clone());
                let Event::Signal { number, by_process, hung_up, stands } = event else { continue };
                let shown = format!("{before:?} {number} {by_process} {hung_up} {stands}");
                let dead = before.status.is_some();
                let forwarded = effects.contains(&Effect::Forward(number));
                let wanted = if number == libc::SIGCONT { stands } else { by_process };
                assert_eq!(forwarded, wanted && !dead, "{shown}");
                let ends = number == libc::SIGHUP && hung_up && !before.ending && !dead;
                assert_eq!(effects.contains(&Effect::End), ends, "{shown}");
                let asks = SIGNALS[..4].contains(&number);
                let hurries = dead && asks && !before.hurried;
                assert_eq!(effects.contains(&Effect::Hurry), hurries, "{shown}");
                assert_eq!(effects.len(), [forwarded, ends, hurries].map(usize::from).iter().sum());
                // Twice asked for, once done.
                let again = machine.step(Event::Signal { number, by_process, hung_up, stands });
                assert!(
                    !again.contains(&Effect::End) && !again.contains(&Effect::Hurry),
                    "{shown}"
                );
            }
        }
    }

    #[test]
    fn every_stop_in_every_state() {
        for before in states() {
            for signal in [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
                for stands in BOTH {
                    for orphaned in BOTH {
                        let mut machine = before.clone();
                        let effects = machine.step(Event::Stopped { signal, stands, orphaned });
                        let expected = match before.status.is_none() && stands {
                            false => vec![],
                            true if orphaned && signal != libc::SIGSTOP => {
                                vec![Effect::ContinueGroup]
                            }
                            true => vec![Effect::Stop(signal)],
                        };
                        assert_eq!(effects, expected, "{before:?} {signal} {stands} {orphaned}");
                        let stops = matches!(effects[..], [Effect::Stop(_)]);
                        let alone = if stops { orphaned } else { before.alone };
                        assert_eq!(machine, Machine { alone, ..before.clone() });
                    }
                }
            }
        }
    }

    #[test]
    fn every_other_event_in_every_state() {
        for before in states() {
            let step = |event| {
                let mut machine = before.clone();
                (machine.step(event), machine)
            };
            let alive = before.status.is_none();
            for stands in BOTH {
                for (apart, orphaned) in BOTH.into_iter().flat_map(|a| BOTH.map(|b| (a, b))) {
                    let (effects, after) = step(Event::Woke { stands, apart, orphaned });
                    let goes_on = vec![Effect::Forward(libc::SIGCONT)];
                    let expected = match (stands && alive, orphaned && !before.alone, apart) {
                        (false, ..) => vec![],
                        (true, true, _) => vec![Effect::HangUpGroup],
                        (true, false, true) => [vec![Effect::HandTerminal], goes_on].concat(),
                        (true, false, false) => goes_on,
                    };
                    assert_eq!(effects, expected);
                    assert_eq!(after, before);
                }
            }
            let (effects, after) = step(Event::Exited(ExitStatus::Code(7)));
            assert_eq!((effects, after.status), (vec![], Some(ExitStatus::Code(7))));
            let (effects, after) = step(Event::Emptied(Emptied::default()));
            assert_eq!((effects, after.emptied.is_some()), (vec![Effect::Leave], true));
            assert_eq!(step(Event::Lost).0, [Effect::Leave]);
        }
    }
}
