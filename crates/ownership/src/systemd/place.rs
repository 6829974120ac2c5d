//! Where a systemd listens, from the environment: a pure function, and the addresses that it gives.

use std::path::{Path, PathBuf};

use rustix::net::SocketAddrUnix;

use crate::containment::Systemd;

/// A socket at which one may listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    socket: Socket,
    /// A bus, and not a systemd itself.
    pub(super) is_bus: bool,
    /// Whose it must be.
    pub(super) user: u32,
    /// For people.
    pub(super) name: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Socket {
    Path(PathBuf),
    /// A name that is no file.
    Abstract(Vec<u8>),
}

impl Place {
    pub(super) fn path(path: PathBuf, is_bus: bool, user: u32) -> Self {
        let name = path.display().to_string();
        Self { socket: Socket::Path(path), is_bus, user, name }
    }

    pub(super) fn address(&self) -> rustix::io::Result<SocketAddrUnix> {
        match &self.socket {
            Socket::Path(path) => SocketAddrUnix::new(path),
            Socket::Abstract(name) => SocketAddrUnix::new_abstract_name(name),
        }
    }
}

/// Where to ask: buses first, which are the door that is meant for it, and then the socket of systemd itself, which is
/// there without a bus too. `variable` gives what the environment has.
pub(crate) fn places(
    asked: Systemd,
    user: u32,
    variable: impl Fn(&str) -> Option<String>,
) -> Vec<Place> {
    let variable = |name| variable(name).filter(|value| !value.is_empty());
    if asked == Systemd::Machines {
        return vec![
            Place::path("/run/dbus/system_bus_socket".into(), true, 0),
            Place::path("/run/systemd/private".into(), false, 0),
        ];
    }
    let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
    let named = variable("DBUS_SESSION_BUS_ADDRESS").unwrap_or_default();
    let named = named.split(';').filter_map(|one| bus(one, runtime.as_deref(), user));
    let mut all: Vec<_> = named.collect();
    if let Some(runtime) = &runtime {
        let usual = Place::path(runtime.join("bus"), true, user);
        if !all.contains(&usual) {
            all.push(usual);
        }
        all.push(Place::path(runtime.join("systemd/private"), false, user));
    }
    // Each may cost its part of the time.
    all.truncate(MOST);
    all
}

const MOST: usize = 4;

/// One address of a bus (D-Bus specification, "Server Addresses"). Only sockets of this machine: the answer is about
/// processes of it.
fn bus(address: &str, runtime: Option<&Path>, user: u32) -> Option<Place> {
    let keys = address.strip_prefix("unix:")?;
    let value = |wanted: &str| {
        let mut pairs = keys.split(',').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == wanted).and_then(|(_, value)| unescaped(value))
    };
    if let Some(path) = value("path") {
        let path = PathBuf::from(String::from_utf8(path).ok()?);
        return Some(Place::path(path, true, user));
    }
    if let Some(name) = value("abstract") {
        let shown = format!("@{}", String::from_utf8_lossy(&name));
        return Some(Place { socket: Socket::Abstract(name), is_bus: true, user, name: shown });
    }
    let usual = value("runtime").filter(|yes| yes == b"yes")?;
    runtime.filter(|_| !usual.is_empty()).map(|dir| Place::path(dir.join("bus"), true, user))
}

/// `%` and two digits stand for a byte.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digits = [bytes.next()?, bytes.next()?];
        out.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Vec<(String, bool)> {
        let value = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let all = places(Systemd::Users, 7, value);
        assert!(all.iter().all(|place| place.user == 7));
        all.into_iter().map(|place| (place.name, place.is_bus)).collect()
    }

    #[test]
    fn the_bus_comes_first_and_systemd_itself_last() {
        let usual = [("/r/bus".to_owned(), true), ("/r/systemd/private".to_owned(), false)];
        assert_eq!(found(&[]), []);
        assert_eq!(found(&[("XDG_RUNTIME_DIR", "/r")]), usual);
        let named =
            |address| found(&[("XDG_RUNTIME_DIR", "/r"), ("DBUS_SESSION_BUS_ADDRESS", address)]);
        assert_eq!(named("unix:path=/r/bus"), usual, "not twice");
        assert_eq!(named("unix:path=/r/bus,guid=3"), usual);
        assert_eq!(named("unix:runtime=yes"), usual);
        let first = |address| named(address)[0].clone();
        assert_eq!(first("unix:path=/t/a%20b"), ("/t/a b".to_owned(), true));
        assert_eq!(first("tcp:host=x;unix:abstract=/t/x,guid=3"), ("@/t/x".to_owned(), true));
        for none in ["", "unix:", "tcp:host=x,port=1", "unix:path=%4", "unixexec:path=sh", ";;"] {
            assert_eq!(named(none), usual, "{none}");
        }
        assert_eq!(named(&"unix:path=/x;".repeat(99)).len(), MOST);
    }

    #[test]
    fn the_machines_is_roots() {
        let all = places(Systemd::Machines, 7, |_| Some("/r".to_owned()));
        let shown: Vec<_> = all.iter().map(|p| (p.name.as_str(), p.is_bus, p.user)).collect();
        let expected =
            [("/run/dbus/system_bus_socket", true, 0), ("/run/systemd/private", false, 0)];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_path_that_is_too_long_is_an_error_and_not_another_path() {
        let place = Place::path(format!("/{}", "x".repeat(200)).into(), true, 0);
        assert!(place.address().is_err());
    }
}
