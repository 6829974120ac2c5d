//! Groups that something else started in the owner: adopted, and let go.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Client, lock};
use crate::child::{Child, Terms, Wanted};
use crate::containment::Containment;
use crate::group::{Group, GroupError};
use crate::identity::{self, Stat};
use crate::launch::TAG;
use crate::number::next_spawn;
use crate::protocol::Request;
use crate::spawn::{DEFAULT_GRACE, Leftovers};
use crate::supervisor_loop::FIRST_MARK;
use crate::sys::Pid;

impl Client {
    /// All of them, or none if one is refused.
    pub(crate) fn own_groups(self: &Arc<Self>, leaders: &[Pid]) -> Result<(), GroupError> {
        let line = lock(&self.state).line.clone();
        let guards = line.map(|line| line.guards()).unwrap_or_default();
        let own = self.identity();
        let groups: Result<Vec<_>, _> =
            leaders.iter().map(|leader| Group::led_by(*leader, &own, &guards)).collect();
        for group in groups? {
            let leader = group.adopted.leader;
            self.own_group(group).map_err(|detail| GroupError { leader, detail })?;
        }
        Ok(())
    }

    fn own_group(self: &Arc<Self>, group: Group) -> Result<(), String> {
        let Group { adopted, handle } = group;
        let known = lock(&self.state).groups.get(&adopted.leader).cloned();
        let is_same = |known: &Arc<Child>| {
            known.terms.group == Some(adopted) && known.want(|_| ()).disown.is_none()
        };
        if known.as_ref().is_some_and(is_same) {
            return Ok(());
        }
        let grace = DEFAULT_GRACE;
        let (leftovers, group) = (Leftovers::Kill, Some(adopted));
        let containment = Containment::Auto;
        let terms = Terms {
            grace,
            leftovers,
            release: None,
            group,
            containment,
            ration: crate::ration::Ration::default(),
        };
        let id = next_spawn();
        let child = Child::new(id, terms, PathBuf::new(), None, Box::new(|_| ()));
        let request = Request::Adopt { id, group: adopted, grace };
        let (child, _) = self.ask(child, &request, vec![handle]).map_err(|error| error.detail)?;
        lock(&self.state).groups.insert(adopted.leader, child);
        // One that was to be let go is owned again; another one that had this number is over.
        if let Some(known) = known {
            self.disown(&known, false);
        }
        Ok(())
    }

    /// They are let go when this returns.
    pub(crate) fn release_groups(&self, leaders: &[Pid]) {
        let groups: Vec<_> = {
            let mut state = lock(&self.state);
            leaders.iter().filter_map(|leader| state.groups.remove(leader)).collect()
        };
        for group in &groups {
            self.disown(group, false);
        }
        for group in groups {
            group.wait_empty();
        }
    }

    pub(crate) fn release_group_once_empty(&self, leader: Pid) {
        let group = lock(&self.state).groups.get(&leader).cloned();
        if let Some(group) = group {
            self.disown(&group, true);
        }
    }

    fn disown(&self, group: &Arc<Child>, once_empty: bool) {
        group.want(|wanted: &mut Wanted| wanted.disown = Some(once_empty));
        self.tell(group, &Request::Disown { id: group.id, once_empty });
    }

    pub(super) fn forget_group(&self, child: &Arc<Child>) {
        if let Some(group) = child.terms.group {
            let mut state = lock(&self.state);
            if state.groups.get(&group.leader).is_some_and(|known| known.id == child.id) {
                state.groups.remove(&group.leader);
            }
        }
    }

    /// Name and value of a variable that nothing else has.
    pub(crate) fn mark(&self) -> (String, String) {
        let number = {
            let mut state = lock(&self.state);
            state.last_mark += 1;
            FIRST_MARK + state.last_mark
        };
        (TAG.to_owned(), format!("{}:{number}", self.identity()))
    }

    /// As its guards know it.
    pub(super) fn identity(&self) -> String {
        let own = identity::own_pid();
        let start = Stat::read(own).map_or(0, |stat| stat.start);
        format!("{own}.{start}.{}", self.number)
    }
}

impl super::Connection {
    /// Numbers of the guards that serve it.
    fn guards(&self) -> Vec<Pid> {
        self.with_guards(|guard| identity::pid_of(guard.as_fd()))
    }
}
