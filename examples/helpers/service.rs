//! Helper: a service that stays. `service [--port P] [--lock FILE] [--socket FILE]` listens on that port of the
//! loopback and on that socket, holds that lock (flock), and ignores the end of its input.

use std::error::Error;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut ports, mut locks, mut sockets) = (Vec::new(), Vec::new(), Vec::new());
    let mut args = std::env::args().skip(1);
    while let (Some(what), Some(value)) = (args.next(), args.next()) {
        match what.as_str() {
            "--port" => ports.push(TcpListener::bind(("127.0.0.1", value.parse()?))?),
            "--lock" => {
                let lock = File::create(value)?;
                // Whoever looks whether it is held holds it for a moment.
                lock.lock()?;
                locks.push(lock);
            }
            "--socket" => sockets.push(UnixListener::bind(value)?),
            _ => return Err(format!("not understood: {what}").into()),
        }
    }
    loop {
        std::thread::park();
    }
}
