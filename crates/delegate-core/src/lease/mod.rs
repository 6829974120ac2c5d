//! Keys and calls of a whole tree: which child has which key, which comes next when one fails, and when a
//! call may be made. The parent is the only authority; a child has one key and asks for the next
//! (`docs/credentials.md`).
//!
//! | module | holds |
//! |---|---|
//! | [`moment`] | wall-clock time as data |
//! | [`reset`] | when a provider says that a key works again |
//! | [`status`] | ok, exhausted, dead: the machine of one key |
//! | [`pool`] | the keys of one provider: leases, strategies, rotation |
//! | [`endpoint`] | which pool a child gets |
//! | [`gate`] | how many calls a provider is sent |
//! | [`gates`] | the gates of one parent |
//! | [`mod@line`] | who waits, fair by subtree |
//! | [`authority`] | pools, gates and children of one parent |
//! | [`file`](mod@file) | the file with the keys |
//! | [`beside`] | what is known of keys, beside the process and shared with other parents |
//! | `calls` | the file in which parents tell each other of calls |
//! | `batch` | what one batch has of keys |
//! | [`desk`] | the thread that waits and acts |
//!
//! Imports `config` and `plan`; asked by `run` and `delegator`.

pub mod authority;
pub(crate) mod batch;
pub mod beside;
mod calls;
pub mod desk;
pub mod endpoint;
pub mod file;
pub mod gate;
pub mod gates;
pub mod line;
pub mod moment;
pub mod pool;
pub mod reset;
pub mod status;
