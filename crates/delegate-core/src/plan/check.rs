//! What is wrong with a list of tasks, and with one of them in itself. Used by [`super::plan`], in its order.

use std::collections::BTreeSet;

use delegate_protocol::spec::CrossingError;

use super::{MAX_IMAGES, MIN_TIMEOUT, SHOWN_GOAL, StartError, Task};
use crate::config::{Settings, duration, shorten};

/// What is wrong with one task in itself.
pub(super) fn check(
    index: usize,
    task: &mut Task,
    known: Option<&BTreeSet<&str>>,
) -> Result<(), StartError> {
    if let Some(known) = known
        && !known.contains(task.agent.as_str())
    {
        return Err(StartError::UnknownAgent {
            task: index,
            goal: shorten(&task.goal, SHOWN_GOAL),
            agent: shorten(&task.agent, SHOWN_GOAL),
            known: known.iter().map(|&name| name.to_owned()).collect(),
        });
    }
    if let Err(reason) = task.params.value() {
        let source = CrossingError { field: "params", reason };
        return Err(crossing(index, task, source));
    }
    if let Some(timeout) = task.timeout.filter(|timeout| *timeout < MIN_TIMEOUT) {
        let reason = format!("its timeout is {}, at least 1s is needed", duration::show(timeout));
        return Err(invalid(index, task, reason));
    }
    if let Some(cwd) = task.cwd.as_mut().filter(|cwd| !cwd.is_absolute()) {
        match std::path::absolute(&cwd) {
            Ok(whole) => *cwd = whole,
            Err(error) => {
                let reason = format!("its cwd {} cannot be resolved: {error}", cwd.display());
                return Err(invalid(index, task, reason));
            }
        }
    }
    Ok(())
}

pub(super) fn check_images(index: usize, task: &Task) -> Result<(), StartError> {
    let count = task.images.len();
    if count > MAX_IMAGES {
        let reason = format!("it has {count} images, at most {MAX_IMAGES} are taken");
        return Err(invalid(index, task, reason));
    }
    Ok(())
}

pub(super) fn invalid(task: usize, of: &Task, reason: String) -> StartError {
    StartError::InvalidTask { task, goal: shorten(&of.goal, SHOWN_GOAL), reason }
}

pub(super) fn crossing(index: usize, task: &Task, source: CrossingError) -> StartError {
    StartError::Crossing { task: index, goal: shorten(&task.goal, SHOWN_GOAL), source }
}

pub(super) fn check_count(tasks: &[Task], settings: &Settings) -> Result<u32, StartError> {
    if tasks.is_empty() {
        return Err(StartError::EmptyBatch);
    }
    let limit = settings.max_batch_size.unwrap_or(u32::MAX);
    u32::try_from(tasks.len())
        .ok()
        .filter(|count| *count <= limit)
        .ok_or(StartError::TooManyTasks { given: tasks.len(), limit })
}

pub(super) fn check_blank(tasks: &[Task]) -> Result<(), StartError> {
    match tasks.iter().position(|task| task.goal.trim().is_empty()) {
        Some(task) => Err(StartError::BlankGoal { task }),
        None => Ok(()),
    }
}
