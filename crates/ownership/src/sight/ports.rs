//! Lines of `/proc/PID/net/{tcp,tcp6,udp,udp6,unix}` (man 5 proc_pid_net): who listens where. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A place where somebody listens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Port {
    /// A TCP socket that accepts.
    Tcp(IpAddr, u16),
    /// A UDP socket that is bound and connected to nobody.
    Udp(IpAddr, u16),
    /// A Unix socket that accepts: its path, or `@` and its name where it has no file.
    Unix(String),
}

impl fmt::Display for Port {
    /// As in `tcp 127.0.0.1:8080`, `unix /run/x`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(at, port) => write!(f, "tcp {}", std::net::SocketAddr::new(*at, *port)),
            Self::Udp(at, port) => write!(f, "udp {}", std::net::SocketAddr::new(*at, *port)),
            Self::Unix(path) => write!(f, "unix {path}"),
        }
    }
}

/// One of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Tcp,
    Tcp6,
    Udp,
    Udp6,
    Unix,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [Self::Tcp, Self::Tcp6, Self::Udp, Self::Udp6, Self::Unix];

    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tcp6 => "tcp6",
            Self::Udp => "udp",
            Self::Udp6 => "udp6",
            Self::Unix => "unix",
        }
    }
}

/// The inode of the socket and where it listens; `None` for one that does not, and for what is no such line.
pub(super) fn parse(kind: Kind, line: &str) -> Option<(u64, Port)> {
    /// `TCP_LISTEN` and, for UDP, `TCP_CLOSE` (include/net/tcp_states.h).
    const LISTENS: &str = "0A";
    const UNCONNECTED: &str = "07";
    if kind == Kind::Unix {
        return unix(line);
    }
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (address, port) = fields.get(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let inode = fields.get(9)?.parse().ok()?;
    let at = address_of(address)?;
    let (wanted, port) = match kind {
        Kind::Tcp | Kind::Tcp6 => (LISTENS, Port::Tcp(at, port)),
        Kind::Udp | Kind::Udp6 | Kind::Unix => (UNCONNECTED, Port::Udp(at, port)),
    };
    (*fields.get(3)? == wanted).then_some((inode, port))
}

/// Words of 32 bits in the machine's own order.
fn address_of(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(hex.get(at * 8..at * 8 + 8)?, 16).ok();
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?.to_ne_bytes()).into()),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?.to_ne_bytes());
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

fn unix(line: &str) -> Option<(u64, Port)> {
    /// `__SO_ACCEPTCON`.
    const ACCEPTS: u32 = 1 << 16;
    let mut fields = line.split_ascii_whitespace().skip(3);
    let flags = u32::from_str_radix(fields.next()?, 16).ok()?;
    let inode: u64 = fields.nth(2)?.parse().ok()?;
    let path: Vec<&str> = fields.collect();
    (flags & ACCEPTS != 0).then(|| (inode, Port::Unix(path.join(" "))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn those_who_listen_are_seen_and_others_are_not() {
        let tcp = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1";
        let (inode, port) = parse(Kind::Tcp, tcp).expect("listens");
        assert_eq!((inode, port.to_string()), (4242, "tcp 127.0.0.1:8080".to_owned()));
        assert_eq!(parse(Kind::Tcp, &tcp.replace(" 0A ", " 01 ")), None, "a connection");
        let six = "1: 00000000000000000000000001000000:0035 0:0 07 0:0 0:0 0 0 0 7 2";
        let (inode, port) = parse(Kind::Udp6, six).expect("bound");
        assert_eq!((inode, port.to_string()), (7, "udp [::1]:53".to_owned()));
        let unix = "0000: 00000002 00000000 00010000 0001 01 99 /run/a b";
        assert_eq!(parse(Kind::Unix, unix), Some((99, Port::Unix("/run/a b".into()))));
        assert_eq!(parse(Kind::Unix, &unix.replace("00010000", "00000000")), None);
    }

    proptest! {
        #[test]
        fn parsing_is_total(line in ".{0,120}") {
            for kind in Kind::ALL {
                drop(parse(kind, &line));
            }
        }
    }
}
