//! Control of runs from outside: by id, in the same process ([`Operator`]) or in another one of the same
//! user, over a unix socket (`Server`, [`Client`]). The protocol is JSON lines, see `docs/control.md`.
//!
//! | module | does |
//! |---|---|
//! | `protocol` | what is asked and answered |
//! | `operator` | finds what an id names and does it |
//! | `act` | does what a model asks for |
//! | `place` | the directory of the sockets: whose, which are dead |
//! | `server` | listens, on a thread of its own |
//! | `client` | asks, blocking |
//!
//! `std` and tokio carry it, and no further crate: peer credentials and the directory's mode are unix
//! matters that an abstraction over named pipes does not have.

mod act;
mod client;
mod operator;
pub(crate) mod place;
mod protocol;
mod server;

pub(crate) use act::act;
pub use client::{Called, Client, Watched, call, call_within, clients};
pub use operator::{LiveRunInfo, Meant, Operator};
pub use place::{directory, make_directory};
pub use protocol::{Ask, ControlError, SCHEMA};
pub(crate) use server::Server;
