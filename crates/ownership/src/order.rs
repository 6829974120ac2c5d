//! From a [`Spawn`] to the record that asks for it: what the supervisor cannot know is resolved here,
//! the owner's environment and its working directory.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use crate::child::request_error;
use crate::launch;
use crate::line;
use crate::program::Kind;
use crate::protocol::{Command, Image, MAX_FDS, Order};
use crate::spawn::{Spawn, SpawnError};

/// The wire form of a spawn; the identifier is set when it is sent.
pub(crate) fn order(spawn: Spawn) -> Result<(Order, Vec<OwnedFd>), SpawnError> {
    let Spawn { program, args, env, env_clear, dir, fds, line, .. } = spawn;
    let Spawn {
        grace,
        leftovers,
        release,
        purpose,
        containment,
        joins,
        template,
        copies,
        ration,
        ..
    } = spawn;
    tracing::debug!(purpose, ?program, "spawn");
    if fds.len() > MAX_FDS {
        return Err(request_error("more than 240 descriptors", libc::EMFILE));
    }
    let mut argv = vec![program.argv0().as_bytes().to_vec()];
    argv.extend(args.iter().map(|arg| arg.as_bytes().to_vec()));
    let cwd = open_cwd().map_err(|errno| {
        request_error("the working directory cannot be opened", errno.raw_os_error())
    })?;
    let mut carried = vec![cwd];
    let image = match program.kind {
        _ if copies.is_some() => Image::Fork(copies.unwrap_or_default()),
        Kind::Named(name) => Image::Named(name.as_bytes().to_vec()),
        Kind::Open(fd) => {
            let copy = fd.try_clone().map_err(|error| {
                request_error(
                    "a descriptor cannot be copied",
                    error.raw_os_error().unwrap_or(libc::EMFILE),
                )
            })?;
            carried.push(copy);
            Image::Open
        }
    };
    let (numbers, given): (Vec<_>, Vec<_>) = fds.into_iter().unzip();
    carried.extend(given);
    let order = Order {
        id: 0,
        image,
        argv,
        env: environment(env, env_clear),
        dir: dir.map(|dir| dir.into_os_string().as_bytes().to_vec()),
        fds: numbers,
        line,
        template,
        grace,
        leftovers,
        release: release.as_ref().map(|(_, deadline)| *deadline),
        containment,
        joins,
        ration,
    };
    let command = release.map(|(argv, _)| Command {
        argv: argv.iter().map(|word| word.as_bytes().to_vec()).collect(),
        env: order.env.clone(),
    });
    let texts = order.argv.iter().chain(&order.env).chain(&order.dir);
    let texts = texts.chain(command.iter().flat_map(|command| &command.argv));
    if texts.into_iter().any(|text| text.contains(&0)) {
        return Err(request_error("a NUL byte in an argument or variable", libc::EINVAL));
    }
    if let Some(command) = command {
        carried.push(sealed(&command)?);
    }
    Ok((order, carried))
}

/// The release command where both guards can keep it, and nobody can change it.
fn sealed(command: &Command) -> Result<OwnedFd, SpawnError> {
    if command.argv.is_empty() {
        return Err(request_error("a release command without a program", libc::EINVAL));
    }
    line::sealed(&command.encode())
        .map_err(|errno| request_error("the release command", errno.raw_os_error()))
}

/// The directory that relative paths of a spawn are relative to: this process's, not the supervisor's.
fn open_cwd() -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    open(".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn environment(changes: Vec<(OsString, Option<OsString>)>, clear: bool) -> Vec<Vec<u8>> {
    let mut all: Vec<(OsString, OsString)> =
        if clear { Vec::new() } else { std::env::vars_os().collect() };
    for (key, value) in changes {
        all.retain(|(known, _)| *known != key);
        all.extend(value.map(|value| (key, value)));
    }
    launch::entries(all)
}
