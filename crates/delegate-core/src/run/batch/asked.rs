//! What the loop answers a child that asks ([`delegate_protocol::ask`]): by itself, or through whoever decides.

use std::time::{Duration, SystemTime};

use delegate_protocol::file::{FileAnswer, FileQuestion};
use delegate_protocol::job::{Job, JobAnswer, JobQuestion};
use delegate_protocol::{Answer, Event, Question, TurnQuestion};
use tokio::sync::oneshot;

use super::Loop;
use crate::file_state::locks::{LOCKS_PER_AGENT, Ticket};
use crate::file_state::registry::Who;
use crate::file_state::{self, FileState, Turn};
use crate::run::clock::Clock;
use crate::run::reply::Reply;

impl Loop {
    /// Answers now, or hands the reply on.
    pub(super) fn asked(&mut self, index: u32, question: Question, reply: Reply) {
        tracing::debug!(target: "delegate::run", task = index, question = question.name(), "asked");
        match question {
            Question::TimeLeft => {
                let left = self.monitor.time_left(index, self.clock.now());
                let ms = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
                reply.give(Answer::TimeLeft { ms });
            }
            Question::Delegate { work, events } => self.delegate(index, work, events, reply),
            Question::Follow { run } => self.follow(index, run, reply),
            Question::StopDelegation { run, forget } => {
                self.stop_delegation(index, run, forget, reply);
            }
            Question::File(question) => self.file(index, question, reply),
            Question::Job(question) => self.job(index, question, reply),
            Question::Turn(question) => self.turn(index, question, reply),
            Question::Key(question) => {
                // One that has ended meanwhile is refused by the reply that is dropped.
                let Some(active) = self.active.get(&index) else { return };
                let branch = self.batch.kin.branch();
                let lease =
                    active.lease.get_or_init(|| self.batch.keys.enter(active.child, branch));
                lease.ask(question, Box::new(move |answer| reply.give(Answer::Key(answer))));
            }
        }
    }

    /// What its session says is told to everybody before it is told to the child: by then it is stored.
    fn turn(&self, index: u32, question: TurnQuestion, reply: Reply) {
        let Some(turns) = self.batch.common.turns.as_ref().filter(|_| index == 0) else {
            return reply.give(Answer::refused("this run has one goal and no prompts"));
        };
        // Before anything else can be told of this child.
        let answer = turns.ask(question);
        let (journal, outlet) = (self.journal(index), self.batch.outlet.clone());
        let (child, clock) = (self.batch.plan.subagent_id(index as usize), self.clock.clone());
        tokio::task::spawn_local(async move {
            let Some((answer, told)) = answer.await else { return };
            if let Some((turn, end)) = told {
                let event = Event::Turn { child, turn, end };
                journal.event(&event, clock.now()).await;
                outlet.send(vec![event]).await;
                outlet.tell();
            }
            reply.give(Answer::Turn(answer));
        });
    }

    fn job(&self, index: u32, question: JobQuestion, reply: Reply) {
        let (jobs, who) = (self.batch.common.jobs.clone(), self.who(index));
        let answer = match question {
            JobQuestion::Start(spec) => {
                match jobs.reserve(&who, &spec, &self.batch.common.caller) {
                    Ok(job) => {
                        let cwd = self.batch.plan.spec(index as usize).cwd;
                        // A start may block: not on the thread that watches deadlines.
                        tokio::task::spawn_blocking(move || {
                            reply.give(job_answer(jobs.start(job, spec, cwd)));
                        });
                        return;
                    }
                    Err(why) => Err(why),
                }
            }
            JobQuestion::List => {
                return reply.give(Answer::Job(JobAnswer::Jobs(jobs.list(&who))));
            }
            JobQuestion::Wait { job, wait_ms } => {
                let until = self.clock.now().saturating_add(Duration::from_millis(wait_ms));
                if wait_ms > 0
                    && let Some(end) = jobs.end_of(job)
                {
                    let clock = self.clock.clone();
                    tokio::task::spawn_local(async move {
                        tokio::select! {
                            _ = end => {}
                            () = clock.sleep_until(Some(until)) => {}
                        }
                        reply.give(job_answer(jobs.look(&who, job).ok_or_else(|| no_job(job))));
                    });
                    return;
                }
                jobs.look(&who, job).ok_or_else(|| no_job(job))
            }
            JobQuestion::End { job } => {
                let grace = self.batch.plan.settings.terminate_grace;
                jobs.end(&who, job, grace).ok_or_else(|| no_job(job))
            }
            JobQuestion::HandOff { job, purpose } => {
                jobs.hand_off(&who, job, &purpose, &self.batch.common.caller)
            }
        };
        reply.give(job_answer(answer));
    }

    fn file(&self, index: u32, question: FileQuestion, reply: Reply) {
        if let Some(why) = file_state::refusal(&question) {
            return reply.give(Answer::refused(why));
        }
        let (files, who) = (&self.batch.common.files, self.who(index));
        if let Some(answer) = files.answer(&who, &question, SystemTime::now()) {
            return reply.give(Answer::File(answer));
        }
        let FileQuestion::Lock { path, wait_ms } = question else { return };
        let (wake, turn) = oneshot::channel();
        // Who waited may be gone.
        let wake = Box::new(move || _ = wake.send(()));
        match files.lock(&who, &path, SystemTime::now(), wake) {
            Turn::Now(lock) => reply.give(Answer::File(FileAnswer::Locked { lock })),
            Turn::TooMany => {
                let most = LOCKS_PER_AGENT;
                reply.give(Answer::refused(format!(
                    "it has {most} paths locked, which is the most"
                )));
            }
            Turn::Later(lock) => {
                let until = self.clock.now().saturating_add(Duration::from_millis(wait_ms));
                let wait = Wait { files: files.clone(), who, lock, turn };
                tokio::task::spawn_local(wait.out(self.clock.clone(), until, reply));
            }
        }
    }
}

fn no_job(job: u64) -> String {
    format!("job {job} is not yours")
}

fn job_answer(answer: Result<Job, String>) -> Answer {
    match answer {
        Ok(job) => Answer::Job(JobAnswer::Job(job)),
        Err(why) => Answer::refused(why),
    }
}

/// A child that waits for its turn at a path.
struct Wait {
    files: FileState,
    who: Who,
    lock: Ticket,
    turn: oneshot::Receiver<()>,
}

impl Wait {
    async fn out(self, clock: Clock, until: Duration, reply: Reply) {
        let Self { files, who, lock, turn } = self;
        let answer = tokio::select! {
            biased;
            turn = turn => match turn {
                Ok(()) => FileAnswer::Locked { lock },
                // It has ended, and its wish with it; dropping the reply says so to nobody.
                Err(_) => return,
            },
            () = clock.sleep_until(Some(until)) => {
                match files.give_up(&who, lock, SystemTime::now()) {
                    Ok(()) => FileAnswer::Locked { lock },
                    Err(busy) => FileAnswer::Busy(busy),
                }
            }
        };
        reply.give(Answer::File(answer));
    }
}
