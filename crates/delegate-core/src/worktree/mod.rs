//! A git worktree and a branch of its own for each child (`worktree_isolation`): made before the child starts,
//! looked at when it has ended, removed only when it is proved to hold nothing. What an owner left that was
//! killed is found by its record when the next one starts.
//!
//! | module | does |
//! |---|---|
//! | `git` | runs git, owned and bounded |
//! | `record` | what is written down, and whose it is |
//! | `inspect` | looks |
//! | `decide` | judges, pure |
//!
//! [`crate::delegator`] finds the repositories, [`crate::run`] has worktrees made and judged.

mod decide;
mod git;
mod inspect;
mod record;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use delegate_protocol::RunId;
use delegate_protocol::outcome::Worktree as Entry;
use ownership::Owner;

use self::decide::{Verdict, judge};
use self::git::{Git, Trouble};
use self::record::{Held, Record};

/// How often a worktree is tried to be added.
const ATTEMPTS: usize = 3;

/// Folder of worktrees and their records in the state directory.
pub const FOLDER: &str = "worktrees";

/// Why a child cannot have a worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoWorktree {
    /// In a sentence without a stop.
    pub why: String,
}

impl fmt::Display for NoWorktree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl From<Trouble> for NoWorktree {
    fn from(trouble: Trouble) -> Self {
        Self { why: trouble.to_string() }
    }
}

/// A repository as a task's directory leads to it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Repository {
    top: PathBuf,
    /// Of the directory, below `top`.
    prefix: PathBuf,
    base: String,
}

/// What one child gets.
#[derive(Debug, Clone)]
struct Place {
    repository: Arc<Repository>,
    path: PathBuf,
    branch: String,
    name: String,
}

impl Place {
    /// Where the child works.
    fn cwd(&self) -> PathBuf {
        self.path.join(&self.repository.prefix)
    }
}

/// Makes worktrees below one folder. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Worktrees {
    git: Git,
    folder: PathBuf,
    /// `git worktree add` writes to files that all worktrees of a repository share.
    one_at_a_time: Arc<Mutex<()>>,
}

/// The worktrees of one batch, by task.
#[derive(Debug)]
pub struct Trees {
    worktrees: Worktrees,
    places: Vec<Option<Place>>,
    /// Those that are there. Dropping one leaves it to whoever cleans up next.
    made: Mutex<HashMap<u32, Held>>,
}

impl Worktrees {
    /// Those below a state directory.
    #[must_use]
    pub fn of(state_dir: &Path, owner: Owner) -> Self {
        let folder = state_dir.join(FOLDER);
        Self { git: Git::of(owner), folder, one_at_a_time: Arc::default() }
    }

    fn guard(&self) -> MutexGuard<'_, ()> {
        self.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a repository and a commit for each task that wants a worktree (`None`: it wants none). Makes
    /// nothing. `again` says that the run was begun before: its worktrees may be there and hold work, so those of
    /// this time have names of their own.
    ///
    /// # Errors
    /// The first task that can have none, and why: no git, no repository, no commit yet.
    pub fn find(
        &self,
        run: RunId,
        again: bool,
        dirs: &[Option<PathBuf>],
    ) -> Result<Trees, (usize, PathBuf, NoWorktree)> {
        // A part of a random id.
        let time = again.then(|| RunId::random().to_string().chars().take(6).collect::<String>());
        let mut known: HashMap<&Path, Arc<Repository>> = HashMap::new();
        let mut places = Vec::with_capacity(dirs.len());
        for (index, dir) in dirs.iter().enumerate() {
            let Some(dir) = dir else {
                places.push(None);
                continue;
            };
            let repository = match known.get(dir.as_path()) {
                Some(repository) => Arc::clone(repository),
                None => {
                    let found = self.repository(dir).map_err(|why| (index, dir.clone(), why))?;
                    Arc::clone(known.entry(dir).or_insert(Arc::new(found)))
                }
            };
            let name = match &time {
                Some(time) => format!("{run}-{index}-{time}"),
                None => format!("{run}-{index}"),
            };
            let (path, branch) = (self.folder.join(&name), format!("delegate/{name}"));
            let place = Place { repository, path, branch, name };
            // It goes to the child as text.
            if place.cwd().to_str().is_none() {
                let why = format!("its place {} is not UTF-8", place.path.display());
                return Err((index, dir.clone(), NoWorktree { why }));
            }
            places.push(Some(place));
        }
        Ok(Trees { worktrees: self.clone(), places, made: Mutex::default() })
    }

    fn repository(&self, dir: &Path) -> Result<Repository, NoWorktree> {
        let asked = ["rev-parse", "--path-format=absolute", "--show-toplevel"];
        let top = self.git.line(dir, "rev-parse", &asked)?;
        let prefix = self.git.line(dir, "rev-parse", &["rev-parse", "--show-prefix"])?;
        let head = ["rev-parse", "--verify", "--quiet", "HEAD^{commit}"];
        let base = self.git.line(dir, "rev-parse", &head).map_err(|trouble| match trouble {
            Trouble::Failed(..) => {
                NoWorktree { why: format!("the repository {top} has no commit yet") }
            }
            Trouble::NoGit | Trouble::System(_) | Trouble::TooLong(_) => trouble.into(),
        })?;
        Ok(Repository { top: top.into(), prefix: prefix.into(), base })
    }

    /// Cleans up after owners that are gone: what is proved clean is removed, the rest is let go and told.
    /// Worktrees of living owners, and those in use, are left alone.
    #[must_use]
    pub fn sweep(&self) -> Vec<Entry> {
        let places = record::all(&self.folder, SystemTime::now()).unwrap_or_else(|error| {
            tracing::warn!(target: "delegate::worktree", %error, "worktrees cannot be listed");
            Vec::new()
        });
        let mut swept = Vec::new();
        for place in places {
            match Held::take_over(&place) {
                Ok(Some(held)) => swept.extend(self.sweep_one(held)),
                Ok(None) => {}
                Err(error) => {
                    let record = place.display();
                    tracing::warn!(target: "delegate::worktree", %record, %error, "left alone");
                }
            }
        }
        swept
    }

    fn sweep_one(&self, held: Held) -> Option<Entry> {
        if held.record.path.symlink_metadata().is_err() {
            // Killed before it was there, or after it was gone.
            self.remove_traces(&held.record);
            forget(held);
            return None;
        }
        let index = held.place().with_extension(record::INDEX);
        if inspect::is_half_a_checkout(&self.git, &held.record, &index) {
            self.remove_traces(&held.record);
            if held.record.path.symlink_metadata().is_err() {
                let place = held.record.path.display();
                tracing::info!(target: "delegate::worktree", %place, "half a checkout, removed");
                forget(held);
                return None;
            }
        }
        let entry = self.end(held, None, true);
        (!entry.note.as_deref().is_some_and(|note| note.starts_with(IN_USE))).then_some(entry)
    }

    /// Removes one that no child has worked in: what `git worktree add` leaves that failed, or was killed early (a folder
    /// of git's own, and a branch).
    fn remove_traces(&self, record: &Record) {
        let (top, path) = (&record.repository, record.path.as_os_str());
        // Twice: it is locked, by us.
        let words = ["worktree", "remove", "--force", "--force"].map(AsRef::<OsStr>::as_ref);
        let remove = [&words[..], &[path]].concat();
        let _held = self.guard();
        // Each may have nothing to do.
        let done = self.git.run(top, "worktree remove", &remove);
        let gone = self.delete_branch(record, &record.base);
        if let Err(trouble) = done.and(gone) {
            tracing::debug!(target: "delegate::worktree", %trouble, "traces");
        }
    }

    /// Deletes its branch if it still points at that commit.
    fn delete_branch(&self, record: &Record, tip: &str) -> Result<(), Trouble> {
        let name = format!("refs/heads/{}", record.branch);
        let delete = ["update-ref", "-d", &name, tip];
        self.git.run(&record.repository, "update-ref", &delete).map(drop)
    }

    /// Looks at it, judges it, and removes it or lets it go.
    fn end(&self, held: Held, alive: Option<&str>, later_if_used: bool) -> Entry {
        let record = held.record.clone();
        let inspection = inspect::inspect(&self.git, &record);
        let mut entry = Entry {
            path: record.path.clone(),
            branch: record.branch.clone(),
            base: record.base.clone(),
            commits: inspection.as_ref().map_or(0, |seen| seen.commits),
            dirty: inspection.as_ref().is_ok_and(|seen| seen.dirty),
            pruned: false,
            inspection_failed: inspection.is_err(),
            note: None,
        };
        let in_use = inspection.as_ref().ok().and_then(|seen| seen.used_by);
        if let Some(pid) = in_use.filter(|_| later_if_used) {
            entry.note = Some(format!("{IN_USE} process {pid}"));
            return entry;
        }
        let why = match judge(&inspection, alive) {
            Verdict::Prune => match self.prune(&record) {
                Ok(()) => {
                    entry.pruned = true;
                    forget(held);
                    return entry;
                }
                Err(trouble) => format!("kept, since it could not be removed: {trouble}"),
            },
            Verdict::Keep(why) => why,
        };
        entry.note = Some(why);
        if alive.is_some() {
            STILL_USED.lock().unwrap_or_else(PoisonError::into_inner).push(held);
        } else {
            self.let_go(&record);
            forget(held);
        }
        entry
    }

    /// Removes it. Git looks once more and refuses where something came since.
    fn prune(&self, record: &Record) -> Result<(), Trouble> {
        let top = &record.repository;
        let path = record.path.as_os_str();
        let named = ["rev-parse", "--verify", &format!("refs/heads/{}", record.branch)];
        let tip = self.git.line(top, "rev-parse", &named)?;
        let _held = self.guard();
        self.git.run(top, "worktree unlock", &["worktree".as_ref(), "unlock".as_ref(), path])?;
        let remove = ["worktree".as_ref(), "remove".as_ref(), path];
        self.git.run(top, "worktree remove", &remove)?;
        if let Err(trouble) = self.delete_branch(record, &tip) {
            tracing::warn!(target: "delegate::worktree", %trouble, "a branch stays");
        }
        Ok(())
    }

    /// From now on it is an ordinary worktree of whoever wants it.
    fn let_go(&self, record: &Record) {
        let _held = self.guard();
        let unlock = ["worktree".as_ref(), "unlock".as_ref(), record.path.as_os_str()];
        if let Err(trouble) = self.git.run(&record.repository, "worktree unlock", &unlock) {
            tracing::debug!(target: "delegate::worktree", %trouble, "it stays locked");
        }
    }
}

/// Those whose child may still run in this process: nobody takes them over before its end.
static STILL_USED: Mutex<Vec<Held>> = Mutex::new(Vec::new());

/// Begins the note of one that is looked at again later.
const IN_USE: &str = "in use by";

fn forget(held: Held) {
    if let Err(error) = held.forget() {
        tracing::warn!(target: "delegate::worktree", %error, "a record stays");
    }
}

/// Pid and start time, for people: whether it lives is told by the lock on its record.
#[cfg(target_os = "linux")]
fn this_process() -> String {
    let own = ownership::Identity::own();
    let start = own.start.map_or_else(|| "unknown".to_owned(), |start| start.to_string());
    format!("{}, start {start}", own.pid)
}

#[cfg(not(target_os = "linux"))]
fn this_process() -> String {
    format!("{}, start unknown", std::process::id())
}

impl Trees {
    /// Where the child of a task works; `None` where it has no worktree.
    #[must_use]
    pub fn cwd(&self, index: usize) -> Option<PathBuf> {
        self.places.get(index)?.as_ref().map(Place::cwd)
    }

    /// Makes the worktree of a task, if it has one. Blocks.
    ///
    /// # Errors
    /// Why not; what was begun is taken away again.
    pub fn make(&self, index: u32) -> Result<(), NoWorktree> {
        let Some(Some(place)) = self.places.get(index as usize) else { return Ok(()) };
        if place.path.symlink_metadata().is_ok() {
            // Somebody's, whoever that was: what is in it is not ours to take away.
            return Err(NoWorktree { why: format!("{} is there already", place.path.display()) });
        }
        let owner = format!("delegate: process {}, task {}", this_process(), place.name);
        let record = Record {
            owner: owner.clone(),
            repository: place.repository.top.clone(),
            path: place.path.clone(),
            branch: place.branch.clone(),
            base: place.repository.base.clone(),
            checked_out: false,
        };
        let held = Held::new(&self.worktrees.folder, &place.name, record).map_err(|error| {
            let folder = self.worktrees.folder.display();
            NoWorktree { why: format!("its record cannot be written in {folder}: {error}") }
        })?;
        let made = self.add(place, &owner);
        if let Err(trouble) = made {
            // Nobody has worked in it: it goes without a look.
            self.worktrees.remove_traces(&held.record);
            forget(held);
            return Err(trouble.into());
        }
        // From here on a child may work in it.
        let record = held.record.clone();
        match held.checked_out(&place.name) {
            Ok(held) => drop(self.made().insert(index, held)),
            Err(error) => {
                self.worktrees.remove_traces(&record);
                let folder = self.worktrees.folder.display();
                let why = format!("its record cannot be written in {folder}: {error}");
                return Err(NoWorktree { why });
            }
        }
        Ok(())
    }

    fn add(&self, place: &Place, reason: &str) -> Result<(), Trouble> {
        let Worktrees { git, .. } = &self.worktrees;
        let words =
            ["worktree", "add", "--no-checkout", "--lock", "--reason", reason, "--no-track"];
        let mut args: Vec<&OsStr> = words.iter().map(AsRef::as_ref).collect();
        // Its name is used once, so nobody else's branch is reset.
        args.extend(["-B", &*place.branch].map(AsRef::<OsStr>::as_ref));
        args.extend([place.path.as_os_str(), place.repository.base.as_ref()]);
        let guard = self.worktrees.guard();
        let mut made = git.run(&place.repository.top, "worktree add", &args);
        // Another process may be half through with one of its own, which git stumbles over.
        for _ in 1..ATTEMPTS {
            if !matches!(made, Err(Trouble::Failed(..))) {
                break;
            }
            made = git.run(&place.repository.top, "worktree add", &args);
        }
        drop(guard);
        made?;
        // What takes its time needs nothing of the others.
        let reset = ["reset", "--hard", "--quiet", "--no-recurse-submodules"];
        git.run(&place.path, "reset", &reset)?;
        // A folder that is not in the commit: the child is to work in it all the same.
        fs::create_dir_all(place.cwd()).map_err(|error| Trouble::System(error.to_string()))
    }

    /// Looks at the worktree of a task whose child has ended, and removes it if it is proved clean. Blocks.
    /// `alive` says why the child may still work in it, if it may. `None`: it had none.
    #[must_use]
    pub fn end(&self, index: u32, alive: Option<&str>) -> Option<Entry> {
        let held = self.made().remove(&index)?;
        Some(self.worktrees.end(held, alive, false))
    }

    fn made(&self) -> MutexGuard<'_, HashMap<u32, Held>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
