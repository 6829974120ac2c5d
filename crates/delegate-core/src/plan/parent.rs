//! [`Parent`]: what the delegating agent has and its children inherit. A program that delegates for
//! itself gives none, and is the root at depth 0. Used by `routing`, `toolsets` and [`crate::plan`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use delegate_protocol::{ApiKey, Routing, SubagentId};

/// An endpoint and the key for it: one bundle, never taken apart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Endpoint {
    /// Address.
    pub base_url: Option<String>,
    /// Key.
    pub api_key: Option<ApiKey>,
}

/// The toolsets of a parent, by name. Which tools a set holds is the agent loop's knowledge.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tools {
    /// Sets that are on; `None` is all.
    pub enabled: Option<Vec<String>>,
    /// Where all are on: the sets of the tools that are loaded. Empty: not known.
    pub loaded: Vec<String>,
    /// Sets that are off; children inherit them.
    pub disabled: Vec<String>,
    /// Those of the sets that MCP servers brought in.
    pub mcp: Vec<String>,
    /// Tools by set, as far as known. A set that is not here counts as one tool of its own name.
    pub contents: BTreeMap<String, Vec<String>>,
}

/// What a parent that calls a model has left in its context, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headroom {
    /// Context of its model.
    pub context_length: u64,
    /// Size of its last prompt; never the sum over a session.
    pub last_prompt_tokens: u64,
    /// Kept free for its next answer.
    pub output_reserve: u64,
}

/// What a delegating agent has. The default is a program of its own: depth 0, nothing to inherit.
#[derive(Debug, Clone, PartialEq)]
pub struct Parent {
    /// Set when it is itself a child.
    pub subagent_id: Option<SubagentId>,
    /// 0 is the root.
    pub depth: u32,
    /// Its session.
    pub session_id: Option<String>,
    /// The turn in which it delegates.
    pub turn_id: Option<String>,
    /// The delegation that the batch belongs to.
    pub delegation_id: Option<String>,
    /// Session database; a child opens the same file for itself.
    pub session_db_path: Option<PathBuf>,
    /// Its route.
    pub routing: Routing,
    /// What its client really talks to, where that may differ from `routing` (it fell back to another
    /// endpoint): wins over both fields there, as a pair.
    pub live: Option<Endpoint>,
    /// The pool of keys that its own key is from ([`crate::lease`]); its children share it. `None`: it has
    /// one fixed key.
    pub pool: Option<String>,
    /// Its toolsets.
    pub tools: Tools,
    /// Working directory of tasks that name none.
    pub cwd: Option<PathBuf>,
    /// Candidates for the directory that a prompt names: the first that exists and is absolute counts.
    pub workspaces: Vec<PathBuf>,
    /// Container that commands run in.
    pub container: Option<String>,
    /// Prompt cache tier; children get no more than `5m`.
    pub cache_ttl: Option<String>,
    /// Whether anybody listens to thinking and tool events.
    pub relay_events: bool,
    /// What its context has left for the answers; `None`: not known, then only `max_summary_chars` counts.
    pub headroom: Option<Headroom>,
}

impl Default for Parent {
    fn default() -> Self {
        Self {
            subagent_id: None,
            depth: 0,
            session_id: None,
            turn_id: None,
            delegation_id: None,
            session_db_path: None,
            routing: Routing::default(),
            live: None,
            pool: None,
            tools: Tools::default(),
            cwd: None,
            workspaces: Vec::new(),
            container: None,
            cache_ttl: None,
            relay_events: true,
            headroom: None,
        }
    }
}

impl Parent {
    /// Endpoint and key that are in use.
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.live.clone().unwrap_or_else(|| Endpoint {
            base_url: self.routing.base_url.clone(),
            api_key: self.routing.api_key.clone(),
        })
    }

    /// The tier for children, whose conversations are short.
    pub(crate) fn child_cache_ttl(&self) -> Option<String> {
        let lowered = |ttl: &String| if ttl == "1h" { "5m".to_owned() } else { ttl.clone() };
        self.cache_ttl.as_ref().map(lowered)
    }

    /// A directory that is there now.
    pub(crate) fn workspace(&self) -> Option<PathBuf> {
        self.workspaces.iter().find(|dir| dir.is_absolute() && dir.is_dir()).cloned()
    }
}

/// What a batch inherits, for those who start it.
impl super::Plan {
    /// The route of every child.
    pub(crate) const fn routing(&self) -> &Routing {
        &self.frame.routed.routing
    }

    /// Who delegates; a program of its own is no agent.
    pub(crate) fn delegating_agent(&self) -> Option<&Parent> {
        self.frame.by_agent.then_some(&self.frame.parent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_gets_no_cache_tier_of_an_hour() {
        let of = |ttl: Option<&str>| {
            Parent { cache_ttl: ttl.map(str::to_owned), ..Parent::default() }.child_cache_ttl()
        };
        assert_eq!(of(Some("1h")).as_deref(), Some("5m"));
        assert_eq!((of(Some("5m")).as_deref(), of(None)), (Some("5m"), None));
    }

    #[test]
    fn the_workspace_is_the_first_that_exists_and_is_absolute() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        let parent = Parent {
            workspaces: vec![".".into(), gone, dir.path().to_owned(), "/".into()],
            ..Parent::default()
        };
        assert_eq!(parent.workspace().as_deref(), Some(dir.path()));
        assert_eq!(Parent::default().workspace(), None);
    }
}
