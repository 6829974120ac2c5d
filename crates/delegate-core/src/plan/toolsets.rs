//! Which toolsets a child has: a subset of its parent's by name, delegation by role excepted.
//! Pure; what a set holds is told by the parent ([`super::parent::Tools`]).

use std::collections::BTreeSet;

use delegate_protocol::Role;

use super::parent::Tools;

/// Tools that no child may have: they reach the person, other conversations, or the future.
pub const BLOCKED: [&str; 6] =
    ["delegate_task", "clarify", "memory", "send_message", "cronjob_manage", "start_chat"];

/// The tool that an orchestrator keeps.
const DELEGATE: &str = "delegate_task";

/// The toolset of that tool, which comes by role and in no other way.
const DELEGATION: &str = "delegation";

/// Toolsets that are the parent's alone whatever they hold.
const STRIPPED: [&str; 2] = [DELEGATION, "kanban"];

/// What a spec carries of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildTools {
    /// `None`: the agent's default.
    pub enabled: Option<Vec<String>>,
    /// Applied after expansion.
    pub disabled: Vec<String>,
    /// Removed from whatever set brings them in.
    pub blocked: Vec<String>,
}

/// Decides. `asked` is the task's own list; without one a child has what its parent has.
#[must_use]
pub fn child_tools(
    parent: &Tools,
    asked: Option<&[String]>,
    inherit_mcp: bool,
    role: Role,
) -> ChildTools {
    let blocked = BLOCKED.iter().filter(|tool| role == Role::Leaf || **tool != DELEGATE);
    let blocked: Vec<String> = blocked.map(|tool| (*tool).to_owned()).collect();
    let held = held(parent);
    let base = match (asked, &held) {
        (Some(asked), _) => {
            let mut sets: Vec<String> =
                asked.iter().filter(|set| allowed(set, held.as_deref(), parent)).cloned().collect();
            if inherit_mcp {
                sets.extend(parent.mcp.iter().cloned());
            }
            Some(sets)
        }
        (None, held) => held.clone(),
    };
    let mut enabled = base.map(|sets| strip(sets, &blocked, parent));
    if let (Role::Orchestrator, Some(sets)) = (role, &mut enabled) {
        sets.push(DELEGATION.to_owned());
    }
    ChildTools { enabled, disabled: parent.disabled.clone(), blocked }
}

/// The parent's sets; `None` where nobody knows them.
fn held(parent: &Tools) -> Option<Vec<String>> {
    parent.enabled.clone().or_else(|| (!parent.loaded.is_empty()).then(|| parent.loaded.clone()))
}

/// Whether the parent holds a set: by name, or (a composite) every tool in it.
fn allowed(set: &str, held: Option<&[String]>, parent: &Tools) -> bool {
    let Some(held) = held else { return true };
    if held.iter().any(|name| name == set) {
        return true;
    }
    let Some(tools) = parent.contents.get(set).filter(|tools| !tools.is_empty()) else {
        return false;
    };
    let theirs: BTreeSet<&str> = held.iter().flat_map(|name| contents(name, parent)).collect();
    tools.iter().all(|tool| theirs.contains(tool.as_str()))
}

/// The tools of a set; one of its own name where they are not known.
fn contents<'a>(set: &'a str, parent: &'a Tools) -> Vec<&'a str> {
    match parent.contents.get(set) {
        Some(tools) => tools.iter().map(String::as_str).collect(),
        None => vec![set],
    }
}

/// Takes out what a child may not have, and what is named twice.
fn strip(sets: Vec<String>, blocked: &[String], parent: &Tools) -> Vec<String> {
    let is_blocked = |tool: &&str| blocked.iter().any(|name| name == tool);
    let mut seen = BTreeSet::new();
    sets.into_iter()
        .filter(|set| {
            let tools = contents(set, parent);
            let all_blocked = !tools.is_empty() && tools.iter().all(is_blocked);
            !STRIPPED.contains(&set.as_str()) && !all_blocked
        })
        .filter(|set| seen.insert(set.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn parent(enabled: &[&str]) -> Tools {
        Tools { enabled: Some(texts(enabled)), ..Tools::default() }
    }

    fn inherited(tools: &Tools) -> Vec<String> {
        child_tools(tools, None, true, Role::Leaf).enabled.unwrap()
    }

    #[test]
    fn m016_blocked_toolsets_are_stripped_and_code_execution_stays() {
        let held =
            parent(&["terminal", "file", "delegation", "clarify", "memory", "code_execution"]);
        assert_eq!(inherited(&held), ["terminal", "file", "code_execution"]);
        assert_eq!(inherited(&parent(&["kanban", "web"])), ["web"]);
    }

    #[test]
    fn m017_allowed_toolsets_stay_as_they_are() {
        assert_eq!(inherited(&parent(&["web", "file", "terminal"])), ["web", "file", "terminal"]);
    }

    #[test]
    fn m018_an_empty_list_stays_empty() {
        assert_eq!(inherited(&parent(&[])), [""; 0]);
        let none = child_tools(&parent(&["web"]), Some(&[]), true, Role::Leaf);
        assert_eq!(none.enabled, Some(Vec::new()));
    }

    #[test]
    fn m019_the_cronjob_toolset_is_stripped() {
        let mut held = parent(&["cronjob", "web"]);
        held.contents.insert("cronjob".to_owned(), texts(&["cronjob_manage"]));
        assert_eq!(inherited(&held), ["web"]);
    }

    #[test]
    fn m020_a_toolset_of_blocked_tools_only_is_stripped_and_a_mixed_one_is_not() {
        let mut held = parent(&["talk", "mixed", "void"]);
        held.contents.insert("talk".to_owned(), texts(&["clarify", "send_message"]));
        held.contents.insert("mixed".to_owned(), texts(&["clarify", "read_file"]));
        held.contents.insert("void".to_owned(), Vec::new());
        assert_eq!(inherited(&held), ["mixed", "void"]);
        // The tool in the mixed set is named to the child, which removes it after expansion.
        let child = child_tools(&held, None, true, Role::Leaf);
        assert!(child.blocked.contains(&"clarify".to_owned()));
        for tool in BLOCKED {
            assert_eq!(inherited(&parent(&[tool])), [""; 0], "{tool}");
        }
    }

    #[test]
    fn m021_the_block_list_is_the_contracts() {
        let leaf = child_tools(&Tools::default(), None, true, Role::Leaf).blocked;
        let expected =
            ["delegate_task", "clarify", "memory", "send_message", "cronjob_manage", "start_chat"];
        assert_eq!(leaf, expected);
        assert!(!leaf.contains(&"execute_code".to_owned()));
        let orchestrator = child_tools(&Tools::default(), None, true, Role::Orchestrator).blocked;
        assert_eq!(orchestrator, expected[1..]);
    }

    #[test]
    fn m022_a_narrowed_child_keeps_the_mcp_toolsets() {
        let mut held = parent(&["web", "browser", "mcp-X"]);
        held.mcp = texts(&["mcp-X"]);
        let asked = texts(&["web", "browser"]);
        let child = child_tools(&held, Some(&asked), true, Role::Leaf);
        assert_eq!(child.enabled.unwrap(), ["web", "browser", "mcp-X"]);
    }

    #[test]
    fn m023_without_inherit_mcp_toolsets_it_has_what_was_asked() {
        let mut held = parent(&["web", "browser", "mcp-X"]);
        held.mcp = texts(&["mcp-X"]);
        let asked = texts(&["web", "browser"]);
        let child = child_tools(&held, Some(&asked), false, Role::Leaf);
        assert_eq!(child.enabled.unwrap(), ["web", "browser"]);
    }

    #[test]
    fn m024_an_orchestrator_gets_delegation_by_role() {
        let child = child_tools(&parent(&["web"]), None, true, Role::Orchestrator);
        assert_eq!(child.enabled.unwrap(), ["web", "delegation"]);
    }

    #[test]
    fn a_composite_counts_by_what_it_holds() {
        let mut held = parent(&["file", "web"]);
        held.contents.insert("file".to_owned(), texts(&["read_file", "write_file"]));
        held.contents.insert("web".to_owned(), texts(&["search"]));
        held.contents.insert("research".to_owned(), texts(&["read_file", "search"]));
        held.contents.insert("coding".to_owned(), texts(&["read_file", "terminal"]));
        let asked = texts(&["research", "coding", "unknown"]);
        let child = child_tools(&held, Some(&asked), true, Role::Leaf);
        assert_eq!(child.enabled.unwrap(), ["research"]);
    }

    #[test]
    fn where_all_are_on_the_loaded_ones_count() {
        let mut all = Tools { disabled: texts(&["x"]), ..Tools::default() };
        let child = child_tools(&all, None, true, Role::Leaf);
        assert_eq!((child.enabled, child.disabled), (None, texts(&["x"])));
        all.loaded = texts(&["web", "memory"]);
        assert_eq!(inherited(&all), ["web"]);
    }

    proptest! {
        #[test]
        fn a_leaf_never_has_more_than_its_parent(
            held in prop::collection::vec("[a-f]", 0..6),
            mcp in prop::collection::vec("[a-f]", 0..3),
            asked in prop::option::of(prop::collection::vec("[a-h]", 0..6)),
            inherit in any::<bool>(),
        ) {
            let mcp: Vec<String> = mcp.into_iter().filter(|set| held.contains(set)).collect();
            let tools = Tools { enabled: Some(held.clone()), mcp, ..Tools::default() };
            let child = child_tools(&tools, asked.as_deref(), inherit, Role::Leaf).enabled.unwrap();
            prop_assert!(child.iter().all(|set| held.contains(set)));
            let unique: BTreeSet<&String> = child.iter().collect();
            prop_assert_eq!(unique.len(), child.len());
        }
    }
}
