//! The picture of `delegate ps` as one JSON object.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ownership::sight::{ChildView, Picture, ProcessView, WhyAlive};
use serde_json::{Value, json};

use super::tasks::{Task, Tasks};
use super::{Runs, known_by, run_of, state_of};

/// All of it.
pub(super) fn report(picture: &Picture, runs: &Runs, tasks: &Tasks) -> Value {
    let owners = picture.owners.iter().map(|owner| {
        let run = run_of(owner, runs);
        let pid = owner.identity.pid;
        let child = |child: &ChildView| child_value(child, super::task_of(tasks, pid, child));
        let threads = super::tasks::in_threads(tasks, pid).map(Task::value);
        json!({
            "pid": owner.identity.pid,
            "start_ticks": owner.identity.start,
            "name": owner.name,
            "command": owner.command,
            "age_seconds": owner.age.map(|age| age.as_secs_f64()),
            "state": state_of(owner),
            "guarding": owner.guarding.word(),
            "guard_pids": owner.guards,
            "in_ledger": owner.in_ledger,
            "owned_by_pid": owner.below,
            "run_id": run.map(|run| &run.id),
            "run_title": run.map(|run| &run.title),
            "children": owner.children.iter().map(child).collect::<Vec<_>>(),
            "tasks_in_threads": tasks.contains_key(&pid).then(|| threads.collect::<Vec<_>>()),
        })
    });
    let jobs = picture.jobs.iter().map(|job| {
        json!({
            "id": job.id,
            "reason": job.reason,
            "expires_at": job.expires.map(from_millis),
            "program": job.program,
            "processes": job.processes.iter().map(process_value).collect::<Vec<_>>(),
        })
    });
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "schema": "delegate.ps/1",
        "time": now.as_secs_f64(),
        "owners": owners.collect::<Vec<_>>(),
        "exempt_jobs": jobs.collect::<Vec<_>>(),
        "ledger": picture.ledger,
        "ledger_trouble": picture.trouble,
        "ledger_rows_unreadable": picture.unreadable,
        "all_users_shown": picture.whole,
    })
}

/// Seconds since the epoch.
fn from_millis(millis: u64) -> f64 {
    Duration::from_millis(millis).as_secs_f64()
}

fn child_value(child: &ChildView, task: Option<&Task>) -> Value {
    let row = child.row.as_ref();
    let (reason, expires) = match &child.why {
        WhyAlive::Exempt { reason, expires, .. } => (Some(reason), expires.map(from_millis)),
        WhyAlive::OwnerLives | WhyAlive::Ending | WhyAlive::LeftOver | WhyAlive::Unknown | _ => {
            (None, None)
        }
    };
    json!({
        "spawn": child.spawn.to_string(),
        "purpose": row.map(|row| &row.purpose),
        "started_at": row.map(|row| from_millis(row.intent_at)),
        "task": task.map(Task::value),
        "why_alive": child.why.word(),
        "tier": child.tier.word(),
        "exempt_reason": reason,
        "exempt_until": expires,
        "rss_bytes": child.rss(),
        "cpu_seconds": child.cpu().as_secs_f64(),
        "processes": child.processes.iter().map(process_value).collect::<Vec<_>>(),
    })
}

fn process_value(one: &ProcessView) -> Value {
    json!({
        "pid": one.pid,
        "start_ticks": one.start,
        "parent_pid": one.parent,
        "depth": one.depth,
        "name": one.name,
        "command": one.command,
        "state": one.state,
        "age_seconds": one.age.as_secs_f64(),
        "rss_bytes": one.rss,
        "pss_bytes": one.pss,
        "cpu_seconds": one.cpu.as_secs_f64(),
        "listens": one.ports.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "known_by": known_by(one),
    })
}
