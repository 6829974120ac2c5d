//! The file with the keys: a person writes it, we only read it. It names where each key is (a variable, a
//! file), or holds it, and then only its owner may read it. `docs/credentials.md` shows one.
//!
//! [`read`] gives pools or the first fault with its place; [`Stamp`] tells when to read again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use delegate_protocol::{ApiKey, Value};
use sha2::{Digest as _, Sha256};

use super::pool::{Entry, PoolSpec};
use crate::config::yaml::{self, Key, Kind, Node, Source};
use crate::config::{Diagnostic, PoolStrategy, address_fault, did_you_mean, read_text, shorten};

const POOL_FIELDS: [&str; 3] = ["base_url", "strategy", "credentials"];

const ENTRY_FIELDS: [&str; 7] =
    ["id", "label", "priority", "base_url", "api_key_env", "key_file", "api_key"];

/// Bytes of a file that holds one key.
const KEY_FILE: u64 = 64 * 1024;

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pools {
    /// By name: a provider, or `custom:NAME`.
    pub pools: BTreeMap<String, PoolSpec>,
    /// Variables that hold keys: no child may inherit them.
    pub variables: BTreeSet<String>,
    /// What to tell: keys that are not there, each with its place.
    pub notes: Vec<String>,
    /// Files that were looked at, the pool file first.
    files: Vec<PathBuf>,
}

/// State of the files behind pools, to see that somebody has edited one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stamp(Vec<Option<(u64, i64, i64, u64)>>);

impl Pools {
    /// How its files stand now.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp(self.files.iter().map(|file| look(file)).collect())
    }
}

/// Inode, time of the last change in two parts, size.
fn look(file: &Path) -> Option<(u64, i64, i64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let data = fs::metadata(file).ok()?;
    Some((data.ino(), data.ctime(), data.ctime_nsec(), data.len()))
}

/// Reads the file. Variables are looked up in `env`, a `~` in its `HOME`.
///
/// # Errors
/// The first fault: what is wrong, where, and what to do.
pub fn read(path: &Path, env: &[(String, String)]) -> Result<Pools, Diagnostic> {
    let text = read_text(path)?;
    let mut reader = Reader {
        source: Source { file: Some(path), text: &text },
        env,
        found: Pools { files: vec![path.to_owned()], ..Pools::default() },
    };
    let read = yaml::parse(reader.source).and_then(|root| reader.root(root));
    read.map_err(without_text)?;
    Ok(reader.found)
}

/// A fault may end in a log, and a misplaced key may stand in any line of this file, as a name too: its place is
/// told, and never what stands there.
fn without_text(mut fault: Diagnostic) -> Diagnostic {
    fault.source = None;
    match fault.code {
        "duplicate_key" => "a key is set twice".clone_into(&mut fault.message),
        "not_yaml" => {
            "not valid YAML (is it indented as it should be?)".clone_into(&mut fault.message)
        }
        _ => {}
    }
    fault
}

/// A path with its `~/` replaced.
#[must_use]
pub fn expand(path: &Path, env: &[(String, String)]) -> PathBuf {
    let home = env.iter().find(|(name, _)| name == "HOME").map(|(_, home)| home);
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => Path::new(home).join(rest),
        _ => path.to_owned(),
    }
}

struct Reader<'a> {
    source: Source<'a>,
    env: &'a [(String, String)],
    found: Pools,
}

impl Reader<'_> {
    fn fault(&self, code: &'static str, key: &Key, message: String) -> Diagnostic {
        self.source.fault(code, key.place, message)
    }

    fn unknown<const N: usize>(&self, key: &Key, known: [&'static str; N]) -> Diagnostic {
        match did_you_mean(&key.text, known) {
            Some(hint) => {
                let fault = format!("unknown key `{}`", shorten(&key.text, 60));
                self.fault("unknown_key", key, fault).hint(hint)
            }
            None => {
                let fault = self.fault("unknown_key", key, "unknown key".to_owned());
                fault.hint(known.join(", "))
            }
        }
    }

    fn map(&self, node: Node, what: &str) -> Result<Vec<(Key, Node)>, Diagnostic> {
        let wrong = || format!("{what} must be a map");
        let fault = self.source.fault("wrong_type", node.place, wrong());
        match node.kind {
            Kind::Map(entries) => Ok(entries),
            Kind::Scalar(Value::Null) => Ok(Vec::new()),
            Kind::Scalar(_) | Kind::List(_) => Err(fault),
        }
    }

    fn text(&self, key: &Key, node: &Node) -> Result<String, Diagnostic> {
        let text = match &node.kind {
            Kind::Scalar(Value::Text(text)) => text.trim(),
            Kind::Scalar(_) | Kind::List(_) | Kind::Map(_) => "",
        };
        if text.is_empty() {
            // What stands there may be a key.
            return Err(self.fault("wrong_type", key, format!("`{}` must be a text", key.text)));
        }
        Ok(text.to_owned())
    }

    fn url(&self, key: &Key, node: &Node) -> Result<String, Diagnostic> {
        let text = self.text(key, node)?;
        match address_fault(&text) {
            None => Ok(text),
            Some(fault) => {
                Err(self.fault("not_an_address", key, format!("`{}` {fault}", key.text)))
            }
        }
    }

    fn root(&mut self, root: Node) -> Result<(), Diagnostic> {
        for (key, node) in self.map(root, "a file with keys")? {
            if key.text != "pools" {
                return Err(self.unknown(&key, ["pools"]));
            }
            for (key, node) in self.map(node, "`pools`")? {
                let name = key.text.trim().to_owned();
                let pool = self.pool(&name, node)?;
                self.found.pools.insert(name, pool);
            }
        }
        Ok(())
    }

    fn pool(&mut self, name: &str, node: Node) -> Result<PoolSpec, Diagnostic> {
        let mut pool = PoolSpec::default();
        for (key, node) in self.map(node, "a pool")? {
            match key.text.as_str() {
                "base_url" => pool.base_url = Some(self.url(&key, &node)?),
                "strategy" => {
                    let word = self.text(&key, &node)?;
                    pool.strategy = PoolStrategy::of_word(&word).ok_or_else(|| {
                        let words = PoolStrategy::ALL.map(PoolStrategy::word);
                        let fault = format!("`strategy` must be one of {}", words.join(", "));
                        let hint = did_you_mean(&word, words);
                        let fault = self.fault("unknown_word", &key, fault);
                        hint.into_iter().fold(fault, Diagnostic::hint)
                    })?;
                }
                "credentials" => pool.entries = self.entries(name, &key, node)?,
                _ => return Err(self.unknown(&key, POOL_FIELDS)),
            }
        }
        Ok(pool)
    }

    fn entries(&mut self, pool: &str, key: &Key, node: Node) -> Result<Vec<Entry>, Diagnostic> {
        let Kind::List(items) = node.kind else {
            let hint = "write it as - api_key_env: NAME, one a line";
            return Err(self
                .fault("wrong_type", key, "`credentials` must be a list".to_owned())
                .hint(hint));
        };
        let mut ids = BTreeSet::new();
        let mut entries = Vec::new();
        for item in items {
            let place = Key { text: String::new(), place: item.place };
            let mut entry = self.entry(pool, &place, item)?;
            if entry.id.is_empty() {
                entry.id = id(pool, &entry, &ids);
            } else if ids.contains(&entry.id) {
                let fault = "its id is that of an entry before it".to_owned();
                return Err(self.fault("duplicate_id", &place, fault).hint("leave the ids away"));
            }
            ids.insert(entry.id.clone());
            entries.push(entry);
        }
        Ok(entries)
    }

    fn entry(&mut self, pool: &str, place: &Key, node: Node) -> Result<Entry, Diagnostic> {
        let mut entry = Entry {
            id: String::new(),
            label: String::new(),
            priority: 0,
            key: None,
            base_url: None,
            source: String::new(),
        };
        let mut sources = 0;
        for (key, node) in self.map(node, "an entry of `credentials`")? {
            match key.text.as_str() {
                "id" => entry.id = self.text(&key, &node)?,
                "label" => entry.label = self.text(&key, &node)?,
                "base_url" => entry.base_url = Some(self.url(&key, &node)?),
                "priority" => {
                    let Kind::Scalar(Value::Int(priority)) = node.kind else {
                        let fault = "`priority` must be a whole number".to_owned();
                        return Err(self.fault("wrong_type", &key, fault));
                    };
                    entry.priority = priority;
                }
                "api_key_env" | "key_file" | "api_key" => {
                    sources += 1;
                    let text = self.text(&key, &node)?;
                    (entry.key, entry.source) = self.key(pool, &key, text)?;
                }
                _ => return Err(self.unknown(&key, ENTRY_FIELDS)),
            }
        }
        if sources != 1 {
            let fault = "an entry needs one of `api_key_env`, `key_file` and `api_key`".to_owned();
            return Err(self.fault("wrong_entry", place, fault).hint("keep exactly one of them"));
        }
        if entry.label.is_empty() {
            entry.label = entry.source.clone();
        }
        Ok(entry)
    }

    /// The key that an entry points at, and what to call that place. One that is not there is told, and
    /// the entry is never taken.
    fn key(
        &mut self,
        pool: &str,
        at: &Key,
        text: String,
    ) -> Result<(Option<ApiKey>, String), Diagnostic> {
        let line = at.place.line;
        let file = self.found.files[0].clone();
        let missing =
            |what: String| format!("{}:{line}: {what}; a key of {pool} is missing", file.display());
        match at.text.as_str() {
            "api_key_env" => {
                if !is_variable(&text) {
                    let fault = "`api_key_env` must be the name of a variable".to_owned();
                    let hint = "letters, digits and _ only; the key itself is `api_key`";
                    return Err(self.fault("wrong_type", at, fault).hint(hint));
                }
                let value = self.env.iter().find(|(name, _)| *name == text);
                let value = value.map(|(_, value)| value.trim()).filter(|value| !value.is_empty());
                if value.is_none() {
                    self.found.notes.push(missing(format!("the variable {text} is not set")));
                }
                self.found.variables.insert(text.clone());
                Ok((value.map(|value| ApiKey::new(value.to_owned())), format!("variable {text}")))
            }
            "key_file" => {
                let path = expand(Path::new(&text), self.env);
                if !path.is_absolute() {
                    let fault = "`key_file` must be a whole path".to_owned();
                    return Err(self.fault("wrong_type", at, fault).hint("begin it with / or ~/"));
                }
                let source = format!("file {}", path.display());
                self.found.files.push(path.clone());
                if let Some(why) = exposed(&path) {
                    return Err(self.exposed(at, &path, why));
                }
                match small_text(&path) {
                    Ok(key) => Ok((Some(key), source)),
                    Err(why) => {
                        self.found.notes.push(missing(format!("{} {why}", path.display())));
                        Ok((None, source))
                    }
                }
            }
            _ => match exposed(&file) {
                Some(why) => Err(self.exposed(at, &file, why)),
                None => Ok((Some(ApiKey::new(text)), "the file itself".to_owned())),
            },
        }
    }

    fn exposed(&self, at: &Key, path: &Path, why: &str) -> Diagnostic {
        let path = path.display();
        let fault = self.fault("key_exposed", at, format!("{path} holds a key and {why}"));
        fault.hint(format!("chmod 600 {path}, and make it yours"))
    }
}

/// Letters, digits and `_`, and no digit first (POSIX, 8.1).
fn is_variable(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.chars().all(fits) && !text.starts_with(|c: char| c.is_ascii_digit())
}

/// Why a file with a key in it is not taken; `None`: it is its owner's alone, or is not there.
fn exposed(path: &Path) -> Option<&'static str> {
    use std::os::unix::fs::MetadataExt as _;
    const OTHERS: u32 = 0o077;
    let data = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    if data.uid() != rustix::process::geteuid().as_raw() {
        Some("belongs to somebody else")
    } else if data.mode() & OTHERS != 0 {
        Some("others can read or write it")
    } else {
        None
    }
}

fn small_text(path: &Path) -> Result<ApiKey, &'static str> {
    use std::io::Read as _;
    let data = fs::metadata(path).map_err(|_| "cannot be read")?;
    if !data.is_file() {
        return Err("is no file");
    }
    let mut text = String::new();
    let file = fs::File::open(path).map_err(|_| "cannot be read")?;
    file.take(KEY_FILE).read_to_string(&mut text).map_err(|_| "is no text")?;
    match text.trim() {
        "" => Err("is empty"),
        key => Ok(ApiKey::new(key.to_owned())),
    }
}

/// Six hex digits that stay while the entry stays: from its pool, and where its key is (of one that holds
/// it, its label).
fn id(pool: &str, entry: &Entry, taken: &BTreeSet<String>) -> String {
    let hashed = |number: u32| {
        let text = format!("{pool}\0{}\0{}\0{number}", entry.source, entry.label);
        let digest = Sha256::digest(text.as_bytes());
        digest.iter().take(3).fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
    };
    (0..).map(hashed).find(|id| !taken.contains(id)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    struct World(tempfile::TempDir);

    impl World {
        fn write(&self, name: &str, mode: u32, text: &str) -> PathBuf {
            let path = self.0.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        }

        fn read(&self, text: &str) -> Result<Pools, Diagnostic> {
            let path = self.write("keys.yaml", 0o600, text);
            let home = self.0.path().to_str().unwrap().to_owned();
            read(&path, &[("HOME".into(), home), ("KEY_A".into(), " sk-a ".into())])
        }
    }

    fn world() -> World {
        World(tempfile::tempdir().unwrap())
    }

    fn keys(pools: &Pools, name: &str) -> Vec<Option<String>> {
        let reveal = |entry: &Entry| entry.key.as_ref().map(|key| key.reveal().to_owned());
        pools.pools[name].entries.iter().map(reveal).collect()
    }

    #[test]
    fn keys_come_from_variables_files_and_the_file_itself() {
        let world = world();
        world.write("b.key", 0o600, "sk-b\n");
        let pools = world
            .read(
                "pools:\n  openai:\n    base_url: https://a.example/v1\n    strategy: round_robin\n    credentials:\n      - api_key_env: KEY_A\n        label: team a\n      - key_file: ~/b.key\n        priority: 5\n      - {api_key: sk-c, id: mine, base_url: 'https://c.example'}\n  custom:x: {}\n",
            )
            .unwrap();
        let of = |key: &str| Some(key.to_owned());
        assert_eq!(keys(&pools, "openai"), [of("sk-a"), of("sk-b"), of("sk-c")]);
        let pool = &pools.pools["openai"];
        assert_eq!(pool.strategy, PoolStrategy::RoundRobin);
        assert_eq!(pool.base_url.as_deref(), Some("https://a.example/v1"));
        let shown: Vec<_> = pool.entries.iter().map(|e| (e.label.clone(), e.priority)).collect();
        let file = format!("file {}", world.0.path().join("b.key").display());
        assert_eq!(shown, [("team a".into(), 0), (file, 5), ("the file itself".into(), 0)]);
        assert_eq!(pool.entries[2].id, "mine");
        assert!(pool.entries[0].id.len() == 6 && pool.entries[0].id != pool.entries[1].id);
        assert_eq!((pools.variables.len(), pools.notes.len()), (1, 0));
        assert!(pools.pools["custom:x"].entries.is_empty());
        assert!(!format!("{pools:?}").contains("sk-"), "keys are not shown");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place_and_without_a_key() {
        let world = world();
        for (text, code, line) in [
            ("pool: {}\n", "unknown_key", 1),
            ("pools: []\n", "wrong_type", 1),
            ("pools:\n  a:\n    url: x\n", "unknown_key", 3),
            ("pools:\n  a:\n    strategy: best\n", "unknown_word", 3),
            ("pools:\n  a:\n    base_url: example.org\n", "not_an_address", 3),
            ("pools:\n  a:\n    credentials: sk-canary\n", "wrong_type", 3),
            ("pools:\n  a:\n    credentials:\n    - sk-canary\n", "wrong_type", 4),
            ("pools:\n  a:\n    credentials:\n    - api_key: [sk-canary]\n", "wrong_type", 4),
            ("pools:\n  a:\n    credentials:\n    - api_key: ''\n", "wrong_type", 4),
            ("pools:\n  a:\n    credentials:\n    - apikey: sk-canary\n", "unknown_key", 4),
            ("pools:\n  a:\n    credentials:\n    - label: x\n", "wrong_entry", 4),
            (
                "pools:\n  a:\n    credentials:\n    - {api_key: sk-canary, api_key_env: A}\n",
                "wrong_entry",
                4,
            ),
            (
                "pools:\n  a:\n    credentials:\n    - {api_key: a, id: x}\n    - {api_key: b, id: x}\n",
                "duplicate_id",
                5,
            ),
            (
                "pools:\n  a:\n    credentials:\n    - {api_key: a, priority: high}\n",
                "wrong_type",
                4,
            ),
            ("pools:\n  a:\n    credentials:\n    - key_file: b.key\n", "wrong_type", 4),
            ("pools: [\n", "not_yaml", 1),
            ("pools:\n  a: sk-canary\n", "wrong_type", 2),
            ("sk-canary\n", "wrong_type", 1),
            ("pools:\n  a:\n    credentials: {sk-canary: 1, sk-canary: 2}\n", "duplicate_key", 3),
            ("pools:\n  a:\n    credentials:\n    - sk-canary: x\n", "unknown_key", 4),
            ("pools:\n  a:\n    strategy: sk-canary\n", "unknown_word", 3),
            ("pools:\n  a:\n    credentials:\n    - api_key_env: sk-canary\n", "wrong_type", 4),
            (
                "pools:\n  a:\n    credentials:\n    - {api_key: a, id: canary}\n    - {api_key: b, id: canary}\n",
                "duplicate_id",
                5,
            ),
            ("pools:\n  a:\n   credentials:\n    - label: a\n   - sk-canary\n", "not_yaml", 5),
            ("pools:\n  a:\n    - *sk-canary\n", "not_yaml", 3),
        ] {
            let fault = world.read(text).unwrap_err();
            assert_eq!((fault.code, fault.line), (code, Some(line)), "{text}: {fault}");
            let shown = fault.render(false) + &fault.to_json();
            assert!(!shown.contains("canary"), "{shown}");
        }
    }

    #[test]
    fn a_key_that_others_can_read_is_refused_and_a_reference_is_not() {
        let world = world();
        let inline = "pools:\n  a:\n    credentials:\n    - api_key: sk-a\n";
        for mode in [0o640, 0o604, 0o622] {
            let path = world.write("open.yaml", mode, inline);
            let fault = read(&path, &[]).unwrap_err();
            assert_eq!((fault.code, fault.line), ("key_exposed", Some(4)), "{mode:o}: {fault}");
            assert!(fault.hint.unwrap().contains("chmod 600"));
        }
        let named = "pools:\n  a:\n    credentials:\n    - api_key_env: KEY_A\n";
        let path = world.write("open.yaml", 0o644, named);
        assert!(read(&path, &[]).is_ok());
        let key = world.write("b.key", 0o644, "sk-b");
        let text = format!("pools:\n  a:\n    credentials:\n    - key_file: {}\n", key.display());
        assert_eq!(world.read(&text).unwrap_err().code, "key_exposed");
    }

    #[test]
    fn a_key_that_is_not_there_is_told_and_the_others_stay() {
        let world = world();
        world.write("empty.key", 0o600, "\n");
        let pools = world
            .read("pools:\n  a:\n    credentials:\n    - api_key_env: UNSET\n    - key_file: ~/gone\n    - key_file: ~/empty.key\n    - key_file: ~/\n    - api_key: sk-a\n")
            .unwrap();
        let missing = keys(&pools, "a").iter().filter(|key| key.is_none()).count();
        assert_eq!((missing, pools.notes.len()), (4, 4), "{:?}", pools.notes);
        assert!(pools.notes[0].contains("keys.yaml:4: the variable UNSET"), "{}", pools.notes[0]);
    }

    #[test]
    fn an_edit_of_any_file_is_seen() {
        let world = world();
        world.write("b.key", 0o600, "sk-b");
        let text = "pools:\n  a:\n    credentials:\n    - key_file: ~/b.key\n";
        let pools = world.read(text).unwrap();
        let stamp = pools.stamp();
        assert_eq!(stamp, pools.stamp());
        fs::write(world.0.path().join("b.key"), "sk-changed").unwrap();
        assert_ne!(stamp, pools.stamp());
        fs::remove_file(world.0.path().join("b.key")).unwrap();
        assert_ne!(stamp, pools.stamp());
    }
}
