//! Agents that ship. Each is an ordinary [`crate::Agent`]: it uses nothing that another could not.

pub mod command;
