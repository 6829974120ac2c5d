//! The loop of `delegate run`: events, signals and the redraw of the live view. The one file of the
//! command that reads a clock.

use std::io::{self, Write};
use std::pin::pin;
use std::time::{Duration, Instant};

use delegate_core::delegator::Delegator;
use delegate_core::report::Report;
use delegate_core::run::{Control, Run};
use delegate_protocol::Event;
use tokio::time::MissedTickBehavior;

use crate::cli::Context;
use crate::cli::args::OutputArgs;
use crate::cli::exit::Exit;
use crate::cli::printer::{self, Printer};
use crate::cli::render::live::Model;
use crate::cli::render::text::escape;
use crate::cli::render::{Style, human, json};
use crate::cli::screen::Screen;
use crate::cli::signals::{self, Action, Heard, Policy, Signals};

/// Between two drawings of the live view.
const REDRAW: Duration = Duration::from_millis(100);

/// For the last output when somebody wants to leave at once.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// For the children to stop or go on after Ctrl-Z. Most need a few milliseconds.
const SETTLE: Duration = Duration::from_secs(2);

/// Time of the run as people see it: it stands still while the run is stopped by Ctrl-Z.
#[derive(Debug)]
struct Clock {
    start: Instant,
    stopped: Duration,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this file waits")]
    fn start() -> Self {
        Self { start: Instant::now(), stopped: Duration::ZERO }
    }

    fn now(&self) -> Duration {
        self.start.elapsed().saturating_sub(self.stopped)
    }

    fn leave_out(&mut self, real: impl FnOnce()) {
        let before = self.start.elapsed();
        real();
        self.stopped += self.start.elapsed().saturating_sub(before);
    }
}

/// How progress is shown.
#[derive(Debug)]
enum View {
    /// Lines that are redrawn.
    Live(Screen),
    /// A line per change.
    Plain,
    /// Nothing.
    Silent,
}

/// A run that somebody watches.
#[derive(Debug)]
pub(crate) struct Watch {
    control: Control,
    model: Model,
    view: View,
    style: Style,
    clock: Clock,
    policy: Policy,
    /// Somebody wants to wait no longer for whoever reads our output.
    leaving: bool,
    out: Printer,
    err: Printer,
    jsonl: bool,
    id: delegate_protocol::RunId,
}

/// What is known at the end.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The report.
    pub(crate) report: Report,
    /// The names of the tasks.
    pub(crate) model: Model,
}

impl Watch {
    /// Of this run, with `places` at once.
    pub(crate) fn new(
        run: &Run,
        output: OutputArgs,
        places: u32,
        context: &Context,
        out: Printer,
        err: Printer,
    ) -> Self {
        let redrawable = context.err.width.is_some()
            && context.env.iter().all(|(name, value)| name != "TERM" || value != "dumb");
        let view = if output.quiet || output.jsonl {
            View::Silent
        } else if redrawable && !context.logs_to_stderr {
            View::Live(Screen::new())
        } else {
            View::Plain
        };
        Self {
            control: run.control(),
            model: Model::new(places),
            view,
            style: context.err,
            clock: Clock::start(),
            policy: Policy::default(),
            leaving: false,
            out,
            err,
            jsonl: output.jsonl,
            id: run.id(),
        }
    }

    /// Says that it began.
    pub(crate) fn begin(&self, headline: &str) {
        if !matches!(self.view, View::Silent) {
            self.tell(headline.to_owned());
        }
        if matches!(self.view, View::Live(_)) {
            let keys = "Ctrl-C interrupts, twice kills";
            self.tell(self.style.paint(crate::cli::render::Paint::Faint, keys));
        }
        if self.jsonl {
            let head = json::EventsHead::of(self.id);
            self.print(move |to| json::line(to, &head));
        }
    }

    /// Takes in everything until each child has its outcome.
    pub(crate) async fn follow(
        &mut self,
        mut run: Run,
        signals: &mut Signals,
        delegator: &Delegator,
    ) -> Watched {
        let mut redraw = tokio::time::interval(REDRAW);
        redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Who leaves gets no more events: the next one might wait for room that never comes.
        while !self.leaving {
            tokio::select! {
                biased;
                heard = signals.next() => self.act(heard),
                _ = redraw.tick() => self.draw(delegator),
                event = next_event(&self.out, &self.err, &mut run) => match event {
                    Some(event) => self.take(event),
                    None => break,
                },
            }
        }
        let mut finish = pin!(run.finish());
        let report = loop {
            tokio::select! {
                biased;
                heard = signals.next() => self.act(heard),
                report = &mut finish => break report,
                _ = redraw.tick() => self.draw(delegator),
            }
        };
        self.draw(delegator);
        if let View::Live(screen) = &self.view {
            screen.clear();
        }
        let model = std::mem::replace(&mut self.model, Model::new(0));
        Watched { report, model }
    }

    fn take(&mut self, event: Event) {
        self.model.apply(&event, self.clock.now());
        if matches!(self.view, View::Plain)
            && let Some(line) = human::plain_line(&event, &self.model, self.style)
        {
            self.err.line(line);
        }
        if self.jsonl {
            self.out.print(move |to| json::line(to, &json::EventLine::of(&event)));
        }
    }

    fn draw(&mut self, delegator: &Delegator) {
        while let Some(warning) = delegator.store().take_warning() {
            self.tell(format!("warning: {}", escape(&warning)));
        }
        if let View::Live(screen) = &self.view {
            let (columns, rows) = screen.room();
            let style = Style { width: Some(columns), ..self.style };
            screen.show(&self.model.lines(self.clock.now(), rows, style));
        }
    }

    fn act(&mut self, heard: Heard) {
        match self.policy.hear(heard) {
            Action::Interrupt => {
                self.control.interrupt();
                self.tell("interrupting the children; Ctrl-C again kills them".to_owned());
            }
            Action::Kill => {
                self.control.kill();
                self.tell("killing the children".to_owned());
            }
            Action::LeaveOutput => self.leaving = true,
            Action::Suspend => self.suspend(),
        }
    }

    fn suspend(&mut self) {
        if let View::Live(screen) = &self.view {
            screen.clear();
        }
        let control = self.control.clone();
        let mut refused = None;
        self.clock.leave_out(|| {
            control.suspend();
            control.settle(SETTLE);
            refused = signals::stop_self().err();
            control.resume();
            control.settle(SETTLE);
        });
        if let Some(error) = refused {
            self.tell(format!("warning: this process cannot be stopped: {error}"));
        }
    }

    /// A line for people, above the live view where there is one.
    pub(crate) fn tell(&self, line: String) {
        match &self.view {
            View::Live(screen) => screen.say(&line),
            View::Plain | View::Silent => self.err.line(line),
        }
    }

    /// Something for standard output.
    pub(crate) fn print(
        &self,
        job: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
    ) {
        self.out.print(job);
    }

    /// Waits until everything is printed, and says which signal ended the run, if one did. Whoever
    /// does not want to wait for a reader that stands still presses Ctrl-C.
    ///
    /// `last_words` go to standard error where standard output did not take them.
    ///
    /// # Errors
    /// Those of standard output, a closed pipe apart, and all of them after the terminal was closed.
    pub(crate) async fn leave(
        self,
        last_words: Option<String>,
        signals: &mut Signals,
    ) -> io::Result<Option<Exit>> {
        let Self { out, err, mut policy, leaving, .. } = self;
        let mut printed = pin!(async {
            let result = out.finish().await;
            let told = result.is_ok() && !printer::was_closed(io::stdout());
            if let Some(last_words) = last_words.filter(|_| !told) {
                err.line(last_words);
            }
            // Nobody can be told that standard error is gone.
            drop(err.finish().await);
            printer::forgive_closed_pipe(result)
        });
        if leaving {
            // A reader that does read gets the end all the same.
            let result = tokio::time::timeout(LAST_WORDS, &mut printed).await;
            return said(result.unwrap_or(Ok(())), policy.ended_by());
        }
        loop {
            tokio::select! {
                biased;
                result = &mut printed => return said(result, policy.ended_by()),
                heard = signals.next() => match policy.hear(heard) {
                    Action::Suspend => {
                        drop(signals::stop_self());
                    }
                    Action::Interrupt | Action::Kill | Action::LeaveOutput => {
                        return Ok(policy.ended_by());
                    }
                },
            }
        }
    }
}

/// Nobody reads at a terminal that was closed, and writing to it fails.
fn said(result: io::Result<()>, ended_by: Option<Exit>) -> io::Result<Option<Exit>> {
    match ended_by {
        Some(Exit::HungUp) => Ok(ended_by),
        _ => result.map(|()| ended_by),
    }
}

/// The next event, as soon as there is room to print it: whoever does not read our output slows this
/// batch down. Cancel safe, as both of its steps are.
async fn next_event(out: &Printer, err: &Printer, run: &mut Run) -> Option<Event> {
    out.ready().await;
    err.ready().await;
    run.next().await
}
