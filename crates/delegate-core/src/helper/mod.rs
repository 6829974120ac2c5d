//! Shared helpers: stdio servers (an MCP server, say) that are started once for a whole tree of children, instead
//! of once per child, owned by the program that delegates.
//!
//! | module | does |
//! |---|---|
//! | `rpc` | one JSON-RPC message |
//! | `mux` | many clients, one server; pure |
//! | `server` | the process of one helper |
//! | `hub` | the socket that children come to; waits and acts |
//!
//! Children are told the address in their spec; `delegate_child::helper` is the other end.

mod hub;
mod mux;
mod rpc;
mod server;

pub(crate) use self::hub::Hub;
