//! Agents that ship.
