//! What an agent works with: [`Session`].

use std::fmt::Display;

use delegate_protocol::{TaskSpec, Tokens, Value};

use crate::agent::Interrupted;

/// One child's connection to its parent.
#[derive(Debug)]
pub struct Session {}

impl Session {
    /// The task.
    #[must_use]
    pub fn spec(&self) -> &TaskSpec {
        unimplemented!("skeleton")
    }

    /// One atomic load.
    ///
    /// # Errors
    /// [`Interrupted`] once the child was asked to stop, or its parent is gone.
    pub fn checkpoint(&self) -> Result<(), Interrupted> {
        Ok(())
    }

    /// Whether [`Session::checkpoint`] would fail.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        false
    }

    /// Streams text.
    pub fn text(&mut self, _delta: &str) {}

    /// Shows a thought.
    pub fn thinking(&mut self, _line: &str) {}

    /// Says how far the work has come. Content, so it counts as life.
    pub fn progress(&mut self, _summary: impl Display) {}

    /// Says that a tool starts; it is the current tool until the next call or [`Session::tool_done`].
    pub fn tool(&mut self, _name: &str, _preview: Option<&str>, _args: Value) {}

    /// Says how the current tool ended, for the trace.
    pub fn tool_done(&mut self, _result_bytes: u64, _ok: bool) {}

    /// Counts a model call.
    pub fn api_call(&mut self, _tokens: Tokens, _cost_usd: Option<f64>) {}

    /// The empty answer that follows is meant to be empty.
    pub fn allow_empty_answer(&mut self) {}

    /// Starts programs that belong to this child and end with it.
    #[must_use]
    pub fn owner(&self) -> Option<&ownership::Owner> {
        None
    }
}
