//! What a process and its threads are doing, read from /proc (man 5 proc) as text for people: where
//! each thread waits, in which call, at which place of which file. `serve` tells it of its own process, a
//! parent of its child's. Every part survives its own failure and says what failed.

use std::fmt::Write;
use std::fs;
use std::io;

/// Threads that are told beside the first one.
const OTHERS: usize = 40;

/// Bytes of one file that are kept.
const PART: usize = 8 * 1024;

/// Process and thread that call this; `None` where the system does not tell.
pub(crate) fn this_thread() -> Option<(u32, u32)> {
    let link = fs::read_link("/proc/thread-self").ok()?;
    let mut parts = link.to_str()?.split('/');
    let process = parts.next()?.parse().ok()?;
    Some((process, parts.nth(1)?.parse().ok()?))
}

/// The state of a process in short, and what it started.
#[must_use]
pub fn process(pid: u32) -> String {
    const LINES: [&str; 9] = [
        "Name:", "State:", "PPid:", "Threads:", "VmRSS:", "SigPnd:", "ShdPnd:", "SigBlk:",
        "SigCgt:",
    ];
    let mut text = String::new();
    part(
        &mut text,
        "status",
        read(&format!("/proc/{pid}/status")).map(|status| {
            let kept =
                status.lines().filter(|line| LINES.iter().any(|head| line.starts_with(head)));
            kept.fold(String::new(), |text, line| text + line + "\n")
        }),
    );
    part(&mut text, "children", children(pid));
    text
}

/// Every thread, `first` before the others, of which at most 40 are told.
#[must_use]
pub fn threads(pid: u32, first: Option<u32>) -> String {
    let mut text = String::new();
    let listed = fs::read_dir(format!("/proc/{pid}/task")).map(|entries| {
        let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        entries.filter_map(name).collect::<Vec<u32>>()
    });
    match listed {
        Ok(mut threads) => {
            threads.sort_by_key(|thread| (Some(*thread) != first, *thread));
            for thread in threads.iter().take(1 + OTHERS) {
                text.push_str(&one_thread(pid, *thread));
            }
            if threads.len() > 1 + OTHERS {
                _ = writeln!(text, "({} more threads)", threads.len() - 1 - OTHERS);
            }
        }
        Err(error) => part(&mut text, "threads", Err(error)),
    }
    text
}

/// One thread: name, state, what it waits for, its system call and place, its stack in the kernel.
#[must_use]
pub fn one_thread(pid: u32, thread: u32) -> String {
    let at = |name: &str| read(&format!("/proc/{pid}/task/{thread}/{name}"));
    let mut text = format!("== thread {thread} ==\n");
    line(&mut text, "name", at("comm"));
    line(
        &mut text,
        "state",
        at("stat").map(|stat| {
            let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            after.split_whitespace().next().unwrap_or("?").to_owned()
        }),
    );
    line(
        &mut text,
        "waits in",
        at("wchan").map(|word| match word.trim() {
            "0" | "" => "nothing that the kernel names".to_owned(),
            word => word.to_owned(),
        }),
    );
    let call = at("syscall");
    let place = call.as_ref().ok().and_then(|call| place(pid, call));
    line(&mut text, "system call", call);
    line(&mut text, "place", place.ok_or_else(|| io::Error::other("it runs, or is hidden")));
    part(&mut text, "kernel stack", at("stack"));
    text
}

/// The last number of a `syscall` file is where the thread is; as file and offset, as `addr2line` wants
/// it.
fn place(pid: u32, call: &str) -> Option<String> {
    let counter = call.split_whitespace().last()?.strip_prefix("0x")?;
    let counter = u64::from_str_radix(counter, 16).ok()?;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    maps.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (from, to) = (number(from)?, number(to)?);
        if !(from..to).contains(&counter) {
            return None;
        }
        let offset = number(fields.nth(1)?)?;
        let file = fields.nth(2).unwrap_or("memory without a file");
        Some(format!("{file}+{:#x}", counter - from + offset))
    })
}

/// Processes that its threads started and that are still its own, with names and states.
fn children(pid: u32) -> io::Result<String> {
    let mut text = String::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end meanwhile.
        let Ok(list) = fs::read_to_string(entry?.path().join("children")) else { continue };
        for child in list.split_whitespace() {
            let stat =
                read(&format!("/proc/{child}/stat")).unwrap_or_else(|error| error.to_string());
            let end = stat.rfind(')').map_or(stat.len(), |at| stat.len().min(at + 3));
            text.push_str(stat.get(..end).unwrap_or(child));
            text.push('\n');
        }
    }
    Ok(if text.is_empty() { "none\n".to_owned() } else { text })
}

fn read(path: &str) -> io::Result<String> {
    let mut text = String::from_utf8_lossy(&fs::read(path)?).replace('\0', " ");
    let end = crate::tail::clip(&text, PART).len();
    text.truncate(end);
    Ok(text)
}

fn line(text: &mut String, name: &str, value: io::Result<String>) {
    let value = value.unwrap_or_else(|error| format!("(not readable: {error})"));
    _ = writeln!(text, "{name}: {}", value.trim_end());
}

fn part(text: &mut String, name: &str, value: io::Result<String>) {
    let value = value.unwrap_or_else(|error| format!("(not readable: {error})"));
    _ = writeln!(text, "-- {name} --\n{}", value.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_thread_that_waits_is_told_with_its_name_and_call() {
        let (told, here) = crossbeam_channel::bounded(1);
        let (go, stop) = crossbeam_channel::bounded::<()>(0);
        let waiting = thread::Builder::new().name("waits-here".to_owned()).spawn(move || {
            told.send(this_thread()).unwrap();
            assert!(stop.recv().is_err());
        });
        let (process_id, thread_id) = here.recv().unwrap().unwrap();
        assert_eq!(process_id, std::process::id());
        // It may not wait yet.
        let mut text = String::new();
        for _ in 0..10_000 {
            text = one_thread(process_id, thread_id);
            if text.contains("state: S") {
                break;
            }
            thread::yield_now();
        }
        drop(go);
        waiting.unwrap().join().unwrap();
        assert!(text.contains("name: waits-here") && text.contains("state: S"), "{text}");
        assert!(text.contains("system call: ") && text.contains("place: "), "{text}");
        let all = threads(process_id, Some(thread_id));
        assert!(all.contains("== thread "), "{all}");
        assert!(process(process_id).contains("State:"));
    }

    #[test]
    fn each_part_survives_its_own_failure() {
        // No process has this number (the largest is 4,194,304).
        let text = [process(u32::MAX), threads(u32::MAX, None), one_thread(u32::MAX, 1)].concat();
        assert_eq!(text.matches("(not readable: ").count(), 9, "{text}");
    }
}
