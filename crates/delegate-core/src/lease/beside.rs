//! What is known of keys, kept beside the process and shared by all parents of one state directory: which key
//! rests or is dead, and how many leases and calls each parent holds. Fingerprints only, never a key.
//!
//! In `keys/` of the state directory: `status.json` and `calls.json` (`calls`), changed under the lock of
//! `status.lock`, and a file per living parent with its leases and calls, which it keeps locked: a lock goes
//! with its holder, however that ends. People may edit `status.json` meanwhile: what we do not know in it stays, and what cannot be read is
//! moved aside. Used by `desk` and by `delegate keys`.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use delegate_protocol::Fingerprint;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::calls::Calls;
use super::gate::{Held, Known, Others};
use super::gates::Gates;
use super::moment::Moment;
use super::pool::Pool;
use super::status::{Record, State};

/// How long another parent's look into the file is waited for, in steps.
const LOCK_STEPS: u32 = 50;
const LOCK_STEP: Duration = Duration::from_millis(2);

/// Bytes of a file that are read. A record has some 200.
const MOST: u64 = 8 << 20;

/// What is known of a key that no pool has any more is kept so long.
const FORGET: Duration = Duration::from_secs(24 * 60 * 60);

/// Who waits for its turn says so often that it still looks.
const LOOKS: Duration = Duration::from_millis(250);

/// One that has not looked for so long stands still, and is not waited for.
const LOOKED: Duration = Duration::from_secs(1);

/// Fields of a record; others in the file are left alone.
const RECORD_FIELDS: [&str; 6] = ["state", "rest", "cause", "code", "reason", "marked"];

/// Leases of one parent, by pool.
type Leases = BTreeMap<String, BTreeMap<Fingerprint, u32>>;

/// A parent's file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct OwnerFile {
    pid: u32,
    leases: Leases,
    /// By provider.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    calls: BTreeMap<String, Held>,
    /// When it looked whether it is its turn.
    #[serde(default)]
    looked: Moment,
}

/// What the others have.
#[derive(Debug, Default)]
struct Theirs {
    leases: Leases,
    calls: BTreeMap<String, Others>,
}

/// Inode, time of change and size of a file.
pub(super) type FileState = (u64, i64, i64, u64);

pub(super) fn state_of(data: &fs::Metadata) -> FileState {
    (data.ino(), data.ctime(), data.ctime_nsec(), data.len())
}

/// What is shared with other parents.
pub trait Shared {
    /// The pools.
    fn pools(&mut self) -> &mut BTreeMap<String, Pool>;
    /// The gates.
    fn gates(&mut self) -> &mut Gates;
    /// What we have of each provider.
    fn held(&mut self, now: Moment) -> BTreeMap<String, Held>;
}

/// The files of one state directory, as one parent uses them.
#[derive(Debug)]
pub struct Beside {
    dir: PathBuf,
    /// Our own leases; locked as long as we live.
    own: Option<(PathBuf, File)>,
    written: OwnerFile,
    calls: Calls,
    root: Map<String, Value>,
    /// The state of `status.json` that `root` is.
    seen: Option<FileState>,
    /// We know something that the file does not.
    ahead: bool,
    /// The others were not told what we have: the directory could not be used, or somebody held its lock.
    behind: bool,
    /// It was told that something is wrong with the directory.
    told: bool,
}

/// The lock on `status.json`; let go when dropped.
#[derive(Debug)]
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing is not enough: a process that another thread starts just now has a copy of the descriptor until its exec,
        // and the lock is let go with the last one (man 2 flock).
        drop(self.0.unlock());
    }
}

impl Beside {
    /// Nothing is made before something is kept.
    #[must_use]
    pub fn new(state_dir: &Path) -> Self {
        let dir = state_dir.join("keys");
        Self {
            calls: Calls::new(&dir),
            dir,
            own: None,
            written: OwnerFile::default(),
            root: Map::new(),
            seen: None,
            ahead: false,
            behind: false,
            told: false,
        }
    }

    /// Where the statuses are.
    #[must_use]
    pub fn status_file(&self) -> PathBuf {
        self.dir.join("status.json")
    }

    /// Lets `act` work on pools and gates that know all that other parents know, and tells the others what
    /// became of them. Where the files cannot be used it works on what we know, and that is told later.
    pub fn shared<T: Shared>(&mut self, on: &mut T, now: Moment, act: impl FnOnce(&mut T)) {
        if on.pools().is_empty() && !on.gates().are_shared() {
            return act(on);
        }
        let locked = self
            .lock()
            .and_then(|lock| lock.map(|lock| self.load(on, now).map(|()| lock)).transpose());
        let locked = locked.unwrap_or_else(|error| {
            self.tell(&error);
            None
        });
        let before = known(on);
        act(on);
        let changed = known(on) != before;
        let stored = match &locked {
            None => {
                self.ahead |= changed;
                self.behind = true;
                return;
            }
            Some(_) if changed || self.ahead => {
                let stored = self.store(on.pools(), now);
                stored.and_then(|()| self.calls.store(on.gates().known()))
            }
            Some(_) => Ok(()),
        };
        self.ahead = stored.is_err();
        let told = stored.and_then(|()| self.store_own(on, now));
        self.behind = told.is_err();
        if let Err(error) = told {
            self.tell(&error);
        }
    }

    /// Whether there is something that others are still to be told.
    #[must_use]
    pub const fn is_behind(&self) -> bool {
        self.behind
    }

    fn tell(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.told, true) {
            let dir = self.dir.display();
            tracing::warn!(target: "delegate::keys", %error, "{dir} cannot be used: other parents do not know which keys rest");
        }
    }

    /// `None` when somebody else holds it all the time.
    fn lock(&self) -> io::Result<Option<Locked>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let file = private(self.dir.join("status.lock"), OpenOptions::new().write(true))?;
        for _ in 0..LOCK_STEPS {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Locked(file))),
                Err(TryLockError::WouldBlock) => thread::park_timeout(LOCK_STEP),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        tracing::debug!(target: "delegate::keys", "another parent holds the lock");
        Ok(None)
    }

    fn load(&mut self, on: &mut impl Shared, now: Moment) -> io::Result<()> {
        let path = self.status_file();
        let state = fs::metadata(&path).ok().map(|data| state_of(&data));
        if state != self.seen || state.is_none() {
            self.root = read_root(&path, now)?;
            self.seen = state;
        }
        let others = self.others(now)?;
        let mut calls = self.calls.load(now)?.clone();
        if self.ahead {
            for (name, ours) in on.gates().known() {
                let theirs: &mut Known = calls.entry(name).or_default();
                *theirs = std::mem::take(theirs).and(ours);
            }
        }
        on.gates().take_in(calls, others.calls);
        for (name, pool) in on.pools() {
            let mut records = records_of(&self.root, name);
            if self.ahead {
                for (print, ours) in pool.records() {
                    let theirs = records.remove(print).unwrap_or_default();
                    records.insert(print.clone(), ours.clone().newer(theirs));
                }
            }
            pool.set_records(records);
            pool.set_turns(turns_of(&self.root, name));
            pool.set_others(others.leases.get(name).cloned().unwrap_or_default());
        }
        Ok(())
    }

    fn store(&mut self, pools: &BTreeMap<String, Pool>, now: Moment) -> io::Result<()> {
        self.root.insert("version".to_owned(), Value::from(1));
        let all = object(self.root.entry("pools").or_insert_with(|| Value::Object(Map::new())));
        for (name, pool) in pools {
            let of_pool = object(all.entry(name).or_insert_with(|| Value::Object(Map::new())));
            let keys = object(of_pool.entry("keys").or_insert_with(|| Value::Object(Map::new())));
            let has = |print: &str| {
                pool.entries().any(|(_, own, ..)| own.is_some_and(|own| own.as_str() == print))
            };
            keys.retain(|print, record| has(print) || !is_old(record, now));
            for (print, record) in pool.records() {
                let known = *record != Record::default() || keys.contains_key(print.as_str());
                if known && has(print.as_str()) {
                    let entry =
                        keys.entry(print.as_str()).or_insert_with(|| Value::Object(Map::new()));
                    overlay(object(entry), record);
                }
            }
            of_pool.insert("turns".to_owned(), serde_json::to_value(pool.turns())?);
        }
        let path = self.status_file();
        let fresh = path.with_extension("json.new");
        let mut file = private(fresh.clone(), OpenOptions::new().write(true).truncate(true))?;
        file.write_all(serde_json::to_string_pretty(&self.root)?.as_bytes())?;
        file.write_all(b"\n")?;
        fs::rename(&fresh, &path)?;
        let data = file.metadata()?;
        self.seen = Some(state_of(&data));
        Ok(())
    }

    fn store_own(&mut self, on: &mut impl Shared, now: Moment) -> io::Result<()> {
        let leases: Leases = on
            .pools()
            .iter()
            .map(|(name, pool)| (name.clone(), pool.leases()))
            .filter(|(_, leases)| !leases.is_empty())
            .collect();
        let calls = on.held(now);
        let waits = calls.values().any(|held| held.waits);
        let looked = self.written.looked;
        let is_due = waits && (now.since(looked) >= LOOKS || now < looked);
        if leases == self.written.leases && calls == self.written.calls && !is_due {
            return Ok(());
        }
        if self.own.is_none() {
            let (pid, random) = (std::process::id(), uuid::Uuid::new_v4().as_fields().0);
            let path = self.dir.join(format!("owner-{pid}-{random:08x}.json"));
            let file = private(path.clone(), OpenOptions::new().read(true).write(true))?;
            file.lock()?;
            self.own = Some((path, file));
        }
        let own = OwnerFile { pid: std::process::id(), leases, calls, looked: now };
        if let Some((_, file)) = &mut self.own {
            let text = serde_json::to_vec(&own)?;
            file.rewind()?;
            file.set_len(0)?;
            file.write_all(&text)?;
        }
        self.written = own;
        Ok(())
    }

    /// What other living parents have; files of dead ones are removed.
    fn others(&self, now: Moment) -> io::Result<Theirs> {
        let mut all = Theirs::default();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_own = self.own.as_ref().is_some_and(|(own, _)| *own == path);
            if is_own || !name.starts_with("owner-") {
                continue;
            }
            let Ok(file) = File::open(&path) else { continue };
            if file.try_lock().is_ok() {
                // A file that is just being made is locked before the lock on the statuses is let go.
                drop(fs::remove_file(&path));
                continue;
            }
            let mut text = String::new();
            let read = file.take(MOST).read_to_string(&mut text);
            let Ok(other) = read
                .map_err(drop)
                .and_then(|_| serde_json::from_str::<OwnerFile>(&text).map_err(drop))
            else {
                continue;
            };
            let looks = now.since(other.looked).max(other.looked.since(now)) < LOOKED;
            for (provider, held) in other.calls {
                let sum = all.calls.entry(provider).or_default();
                *sum = sum.and(held, looks);
            }
            for (pool, leases) in other.leases {
                let of_pool = all.leases.entry(pool).or_default();
                for (print, count) in leases {
                    let sum: &mut u32 = of_pool.entry(print).or_default();
                    *sum = sum.saturating_add(count);
                }
            }
        }
        Ok(all)
    }

    /// Only looks: what all parents together know. Changes no file.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn look(&self, pools: &mut BTreeMap<String, Pool>) -> io::Result<()> {
        let text = match fs::read_to_string(self.status_file()) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::from("{}"),
            Err(error) => return Err(error),
        };
        let root: Map<String, Value> = serde_json::from_str(&text)?;
        let now = Moment::default();
        let others = if self.dir.exists() { self.others(now)? } else { Theirs::default() };
        for (name, pool) in pools {
            pool.set_records(records_of(&root, name));
            pool.set_others(others.leases.get(name).cloned().unwrap_or_default());
        }
        Ok(())
    }

    /// Forgets what is known of keys: of those whose fingerprint begins so, or of all. How many there were.
    ///
    /// # Errors
    /// The files cannot be used, or another parent holds them.
    pub fn forget(&mut self, print: Option<&str>, now: Moment) -> io::Result<usize> {
        let Some(_lock) = self.lock()? else {
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "another parent holds the files",
            ));
        };
        self.root = read_root(&self.status_file(), now)?;
        let mut forgotten = 0;
        if let Some(Value::Object(pools)) = self.root.get_mut("pools") {
            for keys in pools.values_mut().filter_map(|pool| pool.get_mut("keys")?.as_object_mut())
            {
                let before = keys.len();
                keys.retain(|own, _| print.is_some_and(|print| !own.starts_with(print)));
                forgotten += before - keys.len();
            }
        }
        self.store(&BTreeMap::new(), now)?;
        Ok(forgotten)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some((path, _)) = &self.own {
            drop(fs::remove_file(path));
        }
    }
}

/// What the others are told of: compared before and after.
#[derive(PartialEq)]
struct Told {
    keys: Vec<(BTreeMap<Fingerprint, Record>, BTreeMap<Fingerprint, u64>)>,
    calls: BTreeMap<String, Known>,
}

fn known(on: &mut impl Shared) -> Told {
    let of = |pool: &Pool| {
        let turns = if pool.takes_turns() { pool.turns().clone() } else { BTreeMap::new() };
        (pool.records().clone(), turns)
    };
    Told { keys: on.pools().values().map(of).collect(), calls: on.gates().known() }
}

pub(super) fn private(path: PathBuf, options: &mut OpenOptions) -> io::Result<File> {
    options.create(true).mode(0o600).open(path)
}

/// What the file holds; an empty map where there is none. One that cannot be understood is moved aside.
pub(super) fn read_root(path: &Path, now: Moment) -> io::Result<Map<String, Value>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => drop(file.take(MOST).read_to_end(&mut bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Map::new()),
        Err(error) => return Err(error),
    }
    match serde_json::from_slice(&bytes) {
        Ok(root) => Ok(root),
        Err(error) => {
            let aside = path.with_extension(format!("json.broken-{}", now.as_ms()));
            fs::rename(path, &aside)?;
            let aside = aside.display();
            tracing::warn!(target: "delegate::keys", %error, "what was known of keys cannot be read; it is kept in {aside}");
            Ok(Map::new())
        }
    }
}

fn records_of(root: &Map<String, Value>, pool: &str) -> BTreeMap<Fingerprint, Record> {
    let keys = root.get("pools").and_then(|pools| pools.get(pool)?.get("keys")?.as_object());
    let record = |(print, record): (&String, &Value)| {
        let print = serde_json::from_value(Value::from(print.as_str())).ok()?;
        Some((print, serde_json::from_value(record.clone()).ok()?))
    };
    keys.into_iter().flatten().filter_map(record).collect()
}

fn turns_of(root: &Map<String, Value>, pool: &str) -> BTreeMap<Fingerprint, u64> {
    let turns = root.get("pools").and_then(|pools| pools.get(pool)?.get("turns").cloned());
    turns.and_then(|turns| serde_json::from_value(turns).ok()).unwrap_or_default()
}

/// The map in a value; what else stood there is replaced.
fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            unreachable!("it was just made a map")
        }
    }
}

/// Puts our fields over what stands there.
fn overlay(entry: &mut Map<String, Value>, record: &Record) {
    entry.retain(|name, _| !RECORD_FIELDS.contains(&name.as_str()));
    if let Ok(Value::Object(ours)) = serde_json::to_value(record) {
        entry.extend(ours.into_iter().filter(|(_, value)| !value.is_null()));
    }
}

/// Whether what is known of a key was learned long ago.
fn is_old(record: &Value, now: Moment) -> bool {
    let Ok(record) = serde_json::from_value::<Record>(record.clone()) else { return false };
    match record.rest {
        Some(rest) => rest.seen(now).at.after(FORGET) < now,
        None => record.state == State::Ok,
    }
}

#[cfg(test)]
#[path = "beside_tests.rs"]
mod tests;
