//! Contract 7, matrix 93 to 103 and C37 to C43: pools of keys, over both executors and against a real HTTP
//! server. What a pool decides by itself is tested beside it; here is what children see of it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use delegate_runtime::config::Settings;
use delegate_runtime::credentials::{
    CallLimits, Entry, Fingerprint, KeyFailure, PoolSpec, Rotation, look,
};
use delegate_runtime::{
    Agent, ApiKey, Event, Failure, Isolation, Listener, Liveness, ManualClock, Outcome, Parent,
    Routing, Session, Sign, Status, SubagentId, Task, blocking,
};
use serde::{Deserialize, Serialize};

use crate::support::{BOTH, as_asked, helper, wait_for};

/// What the agent of this file does, step by step.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Do {
    /// Says its key.
    Key,
    /// Says that a call with its key failed, with status and time of the provider, and what came of it.
    Fail(u16, Option<String>, Option<String>),
    /// Waits for a key.
    Await,
    /// Calls the provider so often, with permits and rotations.
    Call(u32),
    /// Calls it once more and more until it is served, and says when it was refused.
    CallPolitely,
    /// Takes a permit and keeps it.
    Hold,
    /// Says a word.
    Say(String),
    /// Waits for a file.
    File(String),
    /// Adds its goal to a file.
    Sign(String),
    /// Delegates to children with these goals, and waits for them.
    Delegate(Vec<(String, Vec<Do>)>),
    Panic,
    Interrupted,
}

/// Talks to a provider as an agent loop does.
pub struct Keyed;

impl Agent for Keyed {
    const NAME: &'static str = "keyed";
    type Params = Vec<Do>;
    type Answer = String;

    fn run(&mut self, steps: Vec<Do>, session: &mut Session) -> Result<String, Failure> {
        let mut held = Vec::new();
        let mut said = Vec::new();
        for step in steps {
            let word = match step {
                Do::Key => key_of(session),
                Do::Fail(status, reason, reset) => {
                    let failure = KeyFailure { reason, reset, ..KeyFailure::status(status) };
                    came_of(session, failure)?
                }
                Do::Await => {
                    session.await_key()?;
                    key_of(session)
                }
                Do::Call(times) => {
                    for _ in 0..times {
                        call_until_it_works(session)?;
                    }
                    key_of(session)
                }
                Do::CallPolitely => {
                    call_politely(session)?;
                    "served".to_owned()
                }
                Do::Hold => {
                    held.push(session.permit()?);
                    "held".to_owned()
                }
                Do::Say(word) => word,
                Do::File(path) => {
                    while !Path::new(&path).exists() {
                        session.checkpoint()?;
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    continue;
                }
                Do::Sign(path) => {
                    let mut file = fs::OpenOptions::new().append(true).create(true).open(path)?;
                    file.write_all(format!("{} ", session.spec().goal).as_bytes())?;
                    continue;
                }
                Do::Delegate(below) => {
                    let task = |(goal, steps)| Task::of::<Self>(goal, steps);
                    let told = session.delegate(below.into_iter().map(task))?;
                    format!("{} ended", told.len())
                }
                Do::Panic => panic!("as asked"),
                Do::Interrupted => {
                    while !session.is_interrupted() {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    return Err(Failure::Interrupted);
                }
            };
            session.text(&format!("<{word}>"));
            said.push(word);
        }
        Ok(said.join(" "))
    }
}

/// The key without its `sk-`.
fn key_of(session: &Session) -> String {
    let key = session.route().api_key.as_ref();
    key.map_or("none".to_owned(), |key| key.reveal().trim_start_matches("sk-").to_owned())
}

fn came_of(session: &mut Session, failure: KeyFailure) -> Result<String, Failure> {
    Ok(match session.rotate(failure)? {
        Rotation::Next => key_of(session),
        Rotation::Wait(time) => format!("wait:{}", time.as_secs()),
        Rotation::Nothing(_) => "nothing".to_owned(),
    })
}

fn call_until_it_works(session: &mut Session) -> Result<(), Failure> {
    loop {
        let permit = session.permit()?;
        let base_url = session.route().base_url.clone().unwrap_or_default();
        let key = session.route().api_key.clone();
        let key = key.ok_or_else(|| Failure::new("there is no key"))?;
        let (status, retry_after, body) = post(&base_url, key.reveal())?;
        if status == 200 {
            return Ok(());
        }
        let failure = KeyFailure {
            reset: retry_after,
            reason: (!body.is_empty()).then_some(body),
            ..KeyFailure::status(status)
        };
        // First the key is told, then the call is over: nobody begins another one with it in between.
        let rotation = session.rotate(failure)?;
        drop(permit);
        match rotation {
            Rotation::Next => {}
            Rotation::Wait(_) => session.await_key()?,
            Rotation::Nothing(why) => {
                return Err(Failure::Failed { message: why, reason: Some("no_key".to_owned()) });
            }
        }
    }
}

fn call_politely(session: &mut Session) -> Result<(), Failure> {
    loop {
        let permit = session.permit()?;
        let base_url = session.route().base_url.clone().unwrap_or_default();
        let (status, retry_after, _) = post(&base_url, "sk-k0")?;
        if status == 200 {
            return Ok(());
        }
        permit.refused(retry_after.as_deref());
    }
}

/// One request; status, Retry-After and body of the answer.
fn post(base_url: &str, key: &str) -> std::io::Result<(u16, Option<String>, String)> {
    let host = base_url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host)?;
    write!(
        stream,
        "POST /v1/call HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n\
         Content-Length: 0\r\nConnection: close\r\n\r\n"
    )?;
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let status = first.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let mut retry_after = None;
    for line in lines.by_ref() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("Retry-After: ") {
            retry_after = Some(value.to_owned());
        }
    }
    let body = lines.next().transpose()?.unwrap_or_default();
    Ok((status, retry_after, body))
}

/// What a key is worth at the provider: status, Retry-After, body.
pub type Worth = (u16, Option<&'static str>, &'static str);

#[derive(Default)]
struct Seen {
    /// Calls by key and status.
    calls: BTreeMap<(String, u16), u32>,
    now: u32,
    most_at_once: u32,
}

/// A provider: a real HTTP server on a port of its own.
pub struct Provider {
    address: SocketAddr,
    worth: Arc<Mutex<BTreeMap<&'static str, Worth>>>,
    seen: Arc<Mutex<Seen>>,
}

pub const FINE: Worth = (200, None, "");

impl Provider {
    /// Keys that it does not know are refused with 401.
    pub fn start<const N: usize>(
        worth: [(&'static str, Worth); N],
        answers_after: Duration,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let provider = Self {
            address: listener.local_addr().unwrap(),
            worth: Arc::new(Mutex::new(worth.into())),
            seen: Arc::default(),
        };
        let (worth, seen) = (Arc::clone(&provider.worth), Arc::clone(&provider.seen));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (worth, seen) = (Arc::clone(&worth), Arc::clone(&seen));
                std::thread::spawn(move || serve(stream, &worth, &seen, answers_after));
            }
        });
        provider
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn calls(&self, key: &str, status: u16) -> u32 {
        self.seen.lock().unwrap().calls.get(&(key.to_owned(), status)).copied().unwrap_or(0)
    }

    pub fn all_calls(&self) -> u32 {
        self.seen.lock().unwrap().calls.values().sum()
    }

    /// From now on.
    pub fn set(&self, key: &'static str, worth: Worth) {
        self.worth.lock().unwrap().insert(key, worth);
    }

    pub fn most_at_once(&self) -> u32 {
        self.seen.lock().unwrap().most_at_once
    }
}

fn serve(
    mut stream: TcpStream,
    worth: &Mutex<BTreeMap<&'static str, Worth>>,
    seen: &Mutex<Seen>,
    answers_after: Duration,
) {
    let mut key = String::new();
    let Ok(copy) = stream.try_clone() else { return };
    for line in BufReader::new(copy).lines() {
        let Ok(line) = line else { return };
        if let Some(value) = line.strip_prefix("Authorization: Bearer sk-") {
            key = value.to_owned();
        }
        if line.is_empty() {
            break;
        }
    }
    let (status, retry_after, body) =
        worth.lock().unwrap().get(key.as_str()).copied().unwrap_or((401, None, ""));
    {
        let mut seen = seen.lock().unwrap();
        *seen.calls.entry((key, status)).or_default() += 1;
        seen.now += 1;
        seen.most_at_once = seen.most_at_once.max(seen.now);
    }
    std::thread::sleep(answers_after);
    seen.lock().unwrap().now -= 1;
    let retry_after = retry_after.map(|at| format!("Retry-After: {at}\r\n")).unwrap_or_default();
    // Who asked may be killed.
    drop(write!(
        stream,
        "HTTP/1.1 {status} X\r\n{retry_after}Content-Length: {}\r\nConnection: close\r\n\r\n{body}\n",
        body.len() + 1
    ));
}

fn key(name: &str) -> ApiKey {
    ApiKey::new(format!("sk-{name}"))
}

fn pool(names: &[&str]) -> PoolSpec {
    let entries = names.iter().map(|name| Entry::new(*name, key(name))).collect();
    PoolSpec { entries, ..PoolSpec::default() }
}

pub fn pool_at(url: &str, names: &[&str]) -> PoolSpec {
    PoolSpec { base_url: Some(url.to_owned()), ..pool(names) }
}

/// A delegator with pools, its state, and a clock where the test moves it.
struct Bench {
    delegator: blocking::Delegator,
    state: tempfile::TempDir,
    clock: ManualClock,
    isolation: Isolation,
}

impl Bench {
    fn new(isolation: Isolation, pools: &[(&str, PoolSpec)], settings: Settings) -> Self {
        let state = tempfile::tempdir().unwrap();
        let clock = ManualClock::default();
        let builder = blocking::Delegator::builder()
            .isolation(isolation)
            .settings(as_asked(settings))
            .clock(clock.clone())
            .state_dir(state.path());
        let builder = pools
            .iter()
            .fold(builder, |builder, (name, pool)| builder.credential_pool(*name, pool.clone()));
        let delegator = builder.build().unwrap();
        Self { delegator, state, clock, isolation }
    }

    /// Children on provider `p` with a pool of these keys.
    fn with_keys(isolation: Isolation, names: &[&str]) -> Self {
        Self::new(isolation, &[("p", pool_at("http://p.example", names))], on("p"))
    }

    fn run(&self, tasks: impl IntoIterator<Item = Task>) -> Vec<Outcome> {
        self.delegator.batch(tasks).run().unwrap().results().collect()
    }

    fn says(&self, steps: Vec<Do>) -> String {
        let outcome = self.run([task(steps)]).remove(0);
        assert_eq!(outcome.status, Status::Completed, "{:?}: {outcome:?}", self.isolation);
        outcome.summary.clone().unwrap_or_default()
    }

    fn file(&self, name: &str) -> String {
        self.state.path().join(name).to_str().unwrap().to_owned()
    }

    /// Leases that are held now, by all parents of this state directory.
    fn leases(&self) -> u32 {
        leases(self.state.path())
    }

    /// A batch as an agent with this provider and pool starts it.
    fn below(&self, parent: Parent, steps: Vec<Do>) -> String {
        let report = self.delegator.batch([task(steps)]).parent(parent).run().unwrap();
        let outcome = report.results().next().unwrap();
        assert_eq!(outcome.status, Status::Completed, "{:?}: {outcome:?}", self.isolation);
        outcome.summary.clone().unwrap_or_default()
    }
}

/// Leases in the files of the living parents of a state directory.
fn leases(state: &Path) -> u32 {
    let Ok(folder) = fs::read_dir(state.join("keys")) else { return 0 };
    let mut sum = 0;
    for path in folder.map(|entry| entry.unwrap().path()) {
        if path.file_name().unwrap().to_str().unwrap().starts_with("owner-") {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let owner: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            let pools = owner["leases"].as_object().into_iter().flatten();
            let counts = pools.flat_map(|(_, keys)| keys.as_object().into_iter().flatten());
            sum += counts
                .map(|(_, count)| u32::try_from(count.as_u64().unwrap()).unwrap())
                .sum::<u32>();
        }
    }
    sum
}

pub fn on(provider: &str) -> Settings {
    Settings {
        provider: Some(provider.to_owned()),
        heartbeat_interval: Duration::from_secs(1),
        max_concurrent_children: 40,
        ..Settings::default()
    }
}

pub fn task(steps: Vec<Do>) -> Task {
    Task::of::<Keyed>("call the provider", steps)
}

fn parent_on(provider: &str, pool: Option<&str>) -> Parent {
    Parent {
        routing: Routing {
            provider: Some(provider.to_owned()),
            base_url: Some(format!("http://{provider}.example")),
            api_key: Some(key("parents-own")),
            ..Routing::default()
        },
        pool: pool.map(str::to_owned),
        ..Parent::default()
    }
}

fn two_pools(isolation: Isolation, settings: Settings) -> Bench {
    let pools = [
        ("a", pool_at("http://a.example", &["a1"])),
        ("b", pool_at("http://b.example", &["b1"])),
        (
            "empty",
            PoolSpec { base_url: Some("http://e.example".to_owned()), ..PoolSpec::default() },
        ),
    ];
    Bench::new(isolation, &pools, settings)
}

#[test]
fn m093_the_same_provider_shares_the_parents_pool() {
    for isolation in BOTH {
        let bench = two_pools(isolation, Settings::default());
        assert_eq!(bench.below(parent_on("a", Some("a")), vec![Do::Key]), "a1");
        // #71424: a parent with a fixed key shares that, and no pool of the same name.
        let steps = vec![Do::Key, Do::Fail(429, None, None)];
        assert_eq!(bench.below(parent_on("a", None), steps), "parents-own nothing");
    }
}

#[test]
fn m094_no_provider_shares_the_parents_pool() {
    for isolation in BOTH {
        let bench = two_pools(isolation, Settings::default());
        let routing = Routing { provider: None, ..parent_on("a", None).routing };
        let nameless = Parent { routing, pool: Some("a".to_owned()), ..Parent::default() };
        assert_eq!(bench.below(nameless, vec![Do::Key]), "a1");
    }
}

#[test]
fn m101_a_child_rotates_in_the_pool_of_its_parent() {
    for isolation in BOTH {
        let pools = [("a", pool_at("http://a.example", &["a1", "a2"]))];
        let bench = Bench::new(isolation, &pools, Settings::default());
        let steps = vec![Do::Key, Do::Fail(429, None, None), Do::Fail(429, None, None)];
        assert_eq!(bench.below(parent_on("a", Some("a")), steps), "a1 a2 wait:3600");
        // And what it has learned holds for the next one.
        let steps = vec![Do::Key, Do::Fail(429, None, None)];
        let next = bench.below(parent_on("a", Some("a")), steps);
        // The key that it has besides is none of the pool, so nobody is marked for it.
        assert_eq!(next, "parents-own nothing", "{isolation:?}");
    }
}

/// Hears how it stands with children.
#[derive(Default, Clone)]
pub struct Ear(Arc<Mutex<BTreeMap<SubagentId, Liveness>>>);

impl Listener for Ear {
    fn touch(&self, sign: &Sign) {
        self.0.lock().unwrap().insert(sign.child, sign.liveness);
    }
}

impl Ear {
    /// Children that are quiet on purpose: they have waited for a second at least.
    pub fn waiting(&self) -> usize {
        let heard = self.0.lock().unwrap();
        heard.values().filter(|liveness| **liveness == Liveness::NoChannel).count()
    }
}

/// It began without a key, waits for an hour, and is quiet on purpose; a child that is stale is ended
/// after 450 s.
#[test]
fn a_child_that_waits_for_a_key_is_not_stale() {
    for isolation in BOTH {
        let bench = Bench::with_keys(isolation, &["k1"]);
        assert_eq!(bench.says(vec![Do::Fail(402, None, None)]), "wait:3600");
        let ear = Ear::default();
        let batch = bench.delegator.batch([task(vec![Do::Key, Do::Await])]);
        let mut run = batch.listener(ear.clone()).start().unwrap();
        until_text(&mut run, "<none>");
        wait_for("it to be quiet on purpose", || {
            bench.clock.advance(Duration::from_secs(1));
            (ear.waiting() == 1).then_some(())
        });
        bench.clock.advance(Duration::from_secs(1000));
        bench.clock.advance(Duration::from_secs(3600));
        until_text(&mut run, "<k1>");
        let outcome = run.finish().results().next().unwrap();
        assert_eq!(outcome.status, Status::Completed, "{isolation:?} {outcome:?}");
    }
}

#[test]
fn m095_another_provider_with_credentials_has_its_own_pool() {
    for isolation in BOTH {
        let bench = two_pools(isolation, on("b"));
        assert_eq!(bench.below(parent_on("a", Some("a")), vec![Do::Key]), "b1");
    }
}

#[test]
fn m096_another_provider_without_credentials_has_none_and_is_refused() {
    for isolation in BOTH {
        let bench = two_pools(isolation, on("empty"));
        let refused = bench.delegator.batch([task(vec![])]).parent(parent_on("a", Some("a"))).run();
        let error = match refused {
            Ok(_) => panic!("nothing starts without a key"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains("no API key"), "{error}");
    }
}

/// By decision an error with its place, before anything starts, and not silently none.
#[test]
fn m097_a_pool_that_cannot_be_loaded_is_told_before_anything_starts() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("keys.yaml");
    for (text, code) in
        [("pools: {p: {credential: []}}\n", "unknown key"), ("pools: [", "not valid YAML")]
    {
        fs::write(&file, text).unwrap();
        let settings = Settings { credential_pools: Some(file.clone()), ..Settings::default() };
        let builder = blocking::Delegator::builder().settings(settings).state_dir(state.path());
        let error = match builder.build() {
            Ok(_) => panic!("it is refused"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains("keys.yaml:1") && error.contains(code), "{error}");
    }
}

/// The key of a child at this address, below a parent on the custom endpoint at `a.example`.
fn key_at(isolation: Isolation, url: &str) -> String {
    let pools = [
        ("custom:one", pool_at("http://a.example", &["a1"])),
        ("custom:two", pool_at("http://b.example", &["b1"])),
    ];
    let settings = Settings { base_url: Some(url.to_owned()), ..Settings::default() };
    let bench = Bench::new(isolation, &pools, settings);
    let base_url = Some("http://a.example".to_owned());
    let routing = Routing { base_url, ..parent_on("custom", None).routing };
    let pool = Some("custom:one".to_owned());
    bench.below(Parent { routing, pool, ..Parent::default() }, vec![Do::Key])
}

#[test]
fn m098_a_custom_endpoint_gets_its_own_pool_and_never_the_parents() {
    for isolation in BOTH {
        assert_eq!(key_at(isolation, "http://b.example"), "b1", "{isolation:?}");
    }
}

#[test]
fn m099_the_same_custom_endpoint_shares_the_pool() {
    for isolation in BOTH {
        assert_eq!(key_at(isolation, "http://A.example/"), "a1", "{isolation:?}");
    }
}

#[test]
fn m100_an_unregistered_custom_endpoint_has_no_pool() {
    for isolation in BOTH {
        assert_eq!(key_at(isolation, "http://c.example"), "parents-own", "{isolation:?}");
    }
}

#[test]
fn m102_a_run_takes_one_lease_and_gives_it_back() {
    for isolation in BOTH {
        let bench = Bench::with_keys(isolation, &["k1", "k2"]);
        let open = bench.file("open");
        let steps = vec![Do::Key, Do::File(open.clone())];
        let mut run = bench.delegator.batch([task(steps)]).start().unwrap();
        until_text(&mut run, "<k1>");
        wait_for("its lease", || (bench.leases() == 1).then_some(()));
        fs::write(&open, "").unwrap();
        drop(run.finish());
        wait_for("the lease to come back", || (bench.leases() == 0).then_some(()));
    }
}

/// Somebody holds the files of keys while a lease is taken; others hear of it as soon as that is over, though this parent
/// has nothing else to say.
#[test]
fn a_lease_that_could_not_be_told_is_told_later() {
    for isolation in BOTH {
        let bench = Bench::with_keys(isolation, &["k1"]);
        let keys = bench.state.path().join("keys");
        fs::create_dir_all(&keys).unwrap();
        let lock = fs::File::create(keys.join("status.lock")).unwrap();
        lock.lock().unwrap();
        let mut run =
            bench.delegator.batch([task(vec![Do::Key, Do::Interrupted])]).start().unwrap();
        until_text(&mut run, "<k1>");
        assert_eq!(bench.leases(), 0, "{isolation:?}");
        lock.unlock().unwrap();
        wait_for("its lease", || (bench.leases() == 1).then_some(()));
        run.control().interrupt();
        drop(run.finish());
        lease_comes_back(&bench, "one that was told late");
    }
}

fn lease_comes_back(bench: &Bench, of: &str) {
    wait_for(&format!("the lease of {of}"), || (bench.leases() == 0).then_some(()));
}

#[test]
fn m103_a_run_that_raises_gives_its_lease_back() {
    for isolation in BOTH {
        let bench = Bench::with_keys(isolation, &["k1", "k2"]);
        let outcome = bench.run([task(vec![Do::Key, Do::Panic])]).remove(0);
        assert_eq!(outcome.status, Status::Error, "{isolation:?} {outcome:?}");
        lease_comes_back(&bench, "one that panicked");
    }
}

#[test]
fn c43_a_lease_comes_back_from_a_child_that_is_stopped() {
    for isolation in BOTH {
        let bench = Bench::with_keys(isolation, &["k1", "k2"]);
        let steps = vec![Do::Key, Do::Hold, Do::Interrupted];
        let mut run = bench.delegator.batch([task(steps)]).start().unwrap();
        until_text(&mut run, "<held>");
        wait_for("its lease", || (bench.leases() == 1).then_some(()));
        run.control().interrupt();
        drop(run.finish());
        lease_comes_back(&bench, "one that was interrupted");
    }
}

#[test]
fn c43_a_lease_comes_back_from_a_child_that_is_killed() {
    let bench = Bench::with_keys(Isolation::Process, &["k1"]);
    let mut run = bench.delegator.batch([task(vec![Do::Key, Do::Interrupted])]).start().unwrap();
    let pid = loop {
        if let Event::Start { pid, .. } = run.events().next().expect("it starts") {
            break pid.unwrap();
        }
    };
    until_text(&mut run, "<k1>");
    wait_for("its lease", || (bench.leases() == 1).then_some(()));
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let outcome = run.finish().results().next().unwrap();
    assert_eq!(outcome.status, Status::Error, "{outcome:?}");
    lease_comes_back(&bench, "one that was killed");
}

#[test]
fn c43_a_lease_comes_back_from_a_child_that_never_started() {
    let pools = [("p", pool_at("http://p.example", &["k1"]))];
    let nothing = Some(vec!["/nonexistent/worker".to_owned()]);
    let settings = Settings { worker_command: nothing, ..on("p") };
    let bench = Bench::new(Isolation::Process, &pools, settings);
    let outcome = bench.run([Task::new("keyed", "never")]).remove(0);
    assert_eq!(outcome.status, Status::Error, "{outcome:?}");
    lease_comes_back(&bench, "one that never started");
    // Started, and never said a word.
    let settings = Settings { worker_command: Some(vec![helper("mute")]), ..on("p") };
    let bench = Bench::new(Isolation::Process, &pools, settings);
    let run = bench.delegator.batch([Task::new("keyed", "silent")]).start().unwrap();
    let stored = || bench.delegator.store().outcome(run.id(), 0).ok();
    wait_for("its lease", || {
        assert_eq!(stored(), None, "it has ended");
        (bench.leases() == 1).then_some(())
    });
    wait_for("the end of its time to start", || {
        bench.clock.advance(Duration::from_secs(20));
        (bench.leases() == 0).then_some(())
    });
    drop(run.finish());
}

/// Reads until a child has said this.
fn until_text(run: &mut blocking::Run, part: &str) {
    loop {
        match run.events().next().expect("it comes before the end") {
            Event::Text { text, .. } if text.contains(part) => return,
            _ => {}
        }
    }
}

#[test]
fn c37_what_a_child_is_told_after_a_failure() {
    let fail = |status, reason: &str, reset: &str| {
        let set = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Do::Fail(status, set(reason), set(reset))
    };
    for isolation in BOTH {
        for (failure, of_two, of_one) in [
            (fail(401, "", ""), "k2", "wait:300"),
            (fail(429, "", ""), "k2", "wait:60"),
            (fail(429, "", "17"), "k2", "wait:17"),
            (fail(402, "", ""), "k2", "wait:3600"),
            (fail(403, "billing", ""), "k2", "wait:3600"),
            (fail(503, "", ""), "k2", "wait:60"),
            // C38.
            (fail(401, "token_revoked", "5"), "k2", "nothing"),
        ] {
            let two = Bench::with_keys(isolation, &["k1", "k2"]);
            assert_eq!(two.says(vec![failure.clone()]), of_two, "{isolation:?} {failure:?}");
            let one = Bench::with_keys(isolation, &["k1"]);
            assert_eq!(one.says(vec![failure.clone()]), of_one, "{isolation:?} {failure:?}");
        }
        // The next run knows what this one has learned.
        let bench = Bench::with_keys(isolation, &["k1", "k2"]);
        bench.says(vec![fail(429, "", "")]);
        assert_eq!(
            bench.says(vec![Do::Key, fail(401, "token_revoked", ""), Do::Key]),
            "k2 wait:3600 k2"
        );
        bench.clock.advance(Duration::from_secs(3600));
        assert_eq!(bench.says(vec![Do::Key, fail(429, "", "")]), "k1 wait:60");
    }
}

#[test]
fn c39_one_key_in_two_entries_is_one_key() {
    for isolation in BOTH {
        let mut spec = pool_at("http://p.example", &["k1"]);
        spec.entries.push(Entry::new("again", key("k1")));
        let bench = Bench::new(isolation, &[("p", spec)], on("p"));
        assert_eq!(bench.says(vec![Do::Key, Do::Fail(429, None, None)]), "k1 wait:60");
    }
}

#[test]
fn c41_leases_of_children_at_once_spread_before_they_share() {
    for isolation in BOTH {
        let bench = Bench::with_keys(isolation, &["k1", "k2", "k3"]);
        let open = bench.file("open");
        let steps = || vec![Do::Key, Do::File(open.clone())];
        let mut run = bench.delegator.batch((0..7).map(|_| task(steps()))).start().unwrap();
        let mut by_key = BTreeMap::<String, u32>::new();
        while by_key.values().sum::<u32>() < 7 {
            if let Event::Text { text, .. } = run.events().next().expect("all say their key") {
                *by_key.entry(text).or_default() += 1;
            }
        }
        let mut counts: Vec<u32> = by_key.into_values().collect();
        counts.sort_unstable();
        assert_eq!(counts, [2, 2, 3], "{isolation:?}");
        fs::write(&open, "").unwrap();
        drop(run.finish());
    }
}

#[test]
fn c42_a_child_gets_a_key_of_its_endpoint_with_its_address() {
    for isolation in BOTH {
        let mut spec = pool_at("http://p.example", &["k1"]);
        let elsewhere =
            Entry { base_url: Some("http://q.example".to_owned()), ..Entry::new("x", key("x")) };
        spec.entries.insert(0, elsewhere);
        let bench = Bench::new(isolation, &[("p", spec)], on("p"));
        assert_eq!(
            bench.says(vec![Do::Key, Do::Fail(429, None, None)]),
            "k1 wait:3600",
            "{isolation:?}"
        );
    }
}

/// RB-43: all have the one key that there was; two more come, and then the first fails for all at once.
#[test]
fn rb_43_sixteen_children_that_meet_one_failure_are_one_rotation() {
    for isolation in BOTH {
        let state = tempfile::tempdir().unwrap();
        let file = KeyFile::new(state.path());
        file.write(&["k0"]);
        let delegator = file.delegator(isolation);
        let at = |name: &str| state.path().join(name).to_str().unwrap().to_owned();
        let steps =
            || vec![Do::Key, Do::File(at("fail")), Do::Fail(429, None, None), Do::File(at("end"))];
        let mut run = delegator.batch((0..16).map(|_| task(steps()))).start().unwrap();
        let mut next = || loop {
            if let Event::Text { text, .. } = run.events().next().expect("sixteen speak twice") {
                return text;
            }
        };
        for _ in 0..16 {
            assert_eq!(next(), "<k0>");
        }
        file.write(&["k0", "k1", "k2"]);
        fs::write(at("fail"), "").unwrap();
        let mut counts = BTreeMap::<String, u32>::new();
        (0..16).for_each(|_| *counts.entry(next()).or_default() += 1);
        let half = [("<k1>".to_owned(), 8), ("<k2>".to_owned(), 8)];
        assert_eq!(counts, half.into(), "{isolation:?}");
        fs::write(at("end"), "").unwrap();
        drop(run.finish());
        let text = fs::read_to_string(state.path().join("keys/status.json")).unwrap();
        let status: serde_json::Value = serde_json::from_str(&text).unwrap();
        let marked = |name: &str| {
            let print = Fingerprint::of(&key(name));
            status["pools"]["p"]["keys"][print.as_str()]["marked"].as_u64().unwrap_or(0)
        };
        assert_eq!([marked("k0"), marked("k1"), marked("k2")], [1, 0, 0], "{isolation:?} {status}");
    }
}

/// A file with keys that a test edits.
struct KeyFile {
    path: std::path::PathBuf,
    state: std::path::PathBuf,
}

impl KeyFile {
    fn new(state: &Path) -> Self {
        Self { path: state.join("keys.yaml"), state: state.to_owned() }
    }

    /// As an editor does: a new file in its place.
    fn write(&self, names: &[&str]) {
        let mut text =
            "pools:\n  p:\n    base_url: http://p.example\n    credentials:\n".to_owned();
        for name in names {
            text.push_str(&format!("      - {{api_key: sk-{name}}}\n"));
        }
        self.put(&text);
    }

    fn put(&self, text: &str) {
        let new = self.path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(&new, &self.path).unwrap();
    }

    fn settings(&self) -> Settings {
        Settings { credential_pools: Some(self.path.clone()), ..on("p") }
    }

    fn delegator(&self, isolation: Isolation) -> blocking::Delegator {
        let builder = blocking::Delegator::builder().isolation(isolation);
        builder.settings(as_asked(self.settings())).state_dir(&self.state).build().unwrap()
    }
}

/// How often a key was marked, as the parents of a state directory know it.
fn marked(state: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(state.join("keys/status.json")).unwrap_or_default();
    let status: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let print = Fingerprint::of(&key(name));
    status["pools"]["p"]["keys"][print.as_str()]["marked"].as_u64().unwrap_or(0)
}

/// Storms of 429, 402 and 401 (for a while, and for good) on two of three keys: thirty children all finish on the
/// third. With a limit of calls at once hardly anybody meets a bad key; without one, each child meets each once at
/// most. However many met it, it is one failure and one rotation.
#[test]
fn thirty_children_with_three_keys_survive_a_storm() {
    const STORMS: [Worth; 4] =
        [(429, Some("1000"), ""), (402, None, ""), (401, None, ""), (401, None, "token_revoked")];
    for isolation in BOTH {
        for (storm, (most, bad_calls)) in
            STORMS.into_iter().flat_map(|storm| [(storm, (Some(4), 8)), (storm, (None, 60))])
        {
            let of = |word: &str| format!("{isolation:?} {storm:?} {most:?}: {word}");
            let worth = [("k0", storm), ("k1", storm), ("k2", FINE)];
            let provider = Provider::start(worth, Duration::from_millis(5));
            let pools = [("p", pool_at(&provider.url(), &["k0", "k1", "k2"]))];
            let limits = CallLimits { max_concurrent_calls: most, requests_per_minute: None };
            let provider_limits = [("p".to_owned(), limits)].into();
            let bench = Bench::new(isolation, &pools, Settings { provider_limits, ..on("p") });
            let outcomes = bench.run((0..30).map(|_| task(vec![Do::Call(4)])));
            for outcome in &outcomes {
                assert_eq!(outcome.status, Status::Completed, "{} {outcome:?}", of(""));
                assert_eq!(outcome.summary.as_deref(), Some("k2"), "{}", of(""));
            }
            assert_eq!(provider.calls("k2", 200), 120, "{}", of("calls that worked"));
            let bad = provider.calls("k0", storm.0) + provider.calls("k1", storm.0);
            assert!((2..=bad_calls).contains(&bad), "{}", of(&format!("{bad} bad calls")));
            let marks = ["k0", "k1", "k2"].map(|name| marked(bench.state.path(), name));
            assert_eq!(marks, [1, 1, 0], "{}", of("one rotation each"));
            wait_for("the leases", || (bench.leases() == 0).then_some(()));
        }
    }
}

/// All keys are over: nobody calls until the first is back, and then all get through.
#[test]
fn while_all_keys_rest_nobody_calls_and_then_all_get_through() {
    for isolation in BOTH {
        let provider =
            Provider::start([("k0", (429, Some("1970-01-01T00:00:40Z"), ""))], Duration::ZERO);
        let pools = [("p", pool_at(&provider.url(), &["k0"]))];
        let limits = CallLimits { max_concurrent_calls: Some(2), requests_per_minute: None };
        let settings = Settings { provider_limits: [("p".to_owned(), limits)].into(), ..on("p") };
        let bench = Bench::new(isolation, &pools, settings);
        let calls = || task(vec![Do::Say("up".to_owned()), Do::Call(1)]);
        let mut run = bench.delegator.batch((0..30).map(|_| calls())).start().unwrap();
        wait_for("the first refusal", || (provider.calls("k0", 429) > 0).then_some(()));
        // None of them is below its start limit when the clock moves.
        for _ in 0..30 {
            until_text(&mut run, "up");
        }
        let state = bench.state.path().join("keys/status.json");
        wait_for("it to be known", || {
            fs::read_to_string(&state).ok().filter(|text| text.contains("exhausted"))
        });
        let refused = provider.calls("k0", 429);
        assert!(refused <= 4, "{isolation:?}: {refused} calls in a storm");
        provider.worth.lock().unwrap().insert("k0", FINE);
        bench.clock.advance(Duration::from_secs(39));
        assert!(provider.calls("k0", 200) == 0, "{isolation:?}: before its time");
        // One that was refused and says so only now makes the others wait a second more.
        wait_for("all of them", || {
            bench.clock.advance(Duration::from_secs(2));
            std::thread::sleep(Duration::from_millis(300));
            (provider.calls("k0", 200) == 30).then_some(())
        });
        let report = run.finish();
        assert!(
            report.results().all(|outcome| outcome.status == Status::Completed),
            "{isolation:?}"
        );
        assert_eq!(provider.calls("k0", 200), 30);
        assert!(provider.most_at_once() <= 2, "{isolation:?}: {}", provider.most_at_once());
    }
}

/// Every key is revoked: thirty children end, each with its reason, after three calls or little more.
#[test]
fn when_every_key_is_dead_all_children_are_told_and_nobody_calls_on() {
    for isolation in BOTH {
        let dead = (401, None, "token_revoked");
        let provider = Provider::start([("k0", dead), ("k1", dead), ("k2", dead)], Duration::ZERO);
        let pools = [("p", pool_at(&provider.url(), &["k0", "k1", "k2"]))];
        let limits = CallLimits { max_concurrent_calls: Some(3), requests_per_minute: None };
        let settings = Settings { provider_limits: [("p".to_owned(), limits)].into(), ..on("p") };
        let bench = Bench::new(isolation, &pools, settings);
        let outcomes = bench.run((0..30).map(|_| task(vec![Do::Call(1)])));
        for outcome in &outcomes {
            assert_eq!(outcome.status, Status::Failed, "{isolation:?} {outcome:?}");
            let error = outcome.error.as_deref().unwrap_or_default();
            assert!(error.contains("every key of the pool"), "{isolation:?} {error}");
            assert!(!format!("{outcome:?}").contains("sk-"), "{outcome:?}");
        }
        assert!(provider.all_calls() <= 9, "{isolation:?}: {}", provider.all_calls());
    }
}

/// The limit of the whole tree, and without it (the control).
#[test]
fn calls_at_once_stay_below_the_limit_of_the_provider() {
    for isolation in BOTH {
        for (most, holds) in [(Some(3), true), (None, false)] {
            let provider = Provider::start([("k0", FINE)], Duration::from_millis(30));
            let pools = [("p", pool_at(&provider.url(), &["k0"]))];
            let limits = CallLimits { max_concurrent_calls: most, requests_per_minute: None };
            let settings =
                Settings { provider_limits: [("p".to_owned(), limits)].into(), ..on("p") };
            let bench = Bench::new(isolation, &pools, settings);
            let outcomes = bench.run((0..12).map(|_| task(vec![Do::Call(2)])));
            assert!(
                outcomes.iter().all(|outcome| outcome.status == Status::Completed),
                "{outcomes:?}"
            );
            assert_eq!(
                provider.most_at_once() <= 3,
                holds,
                "{isolation:?}: {}",
                provider.most_at_once()
            );
        }
    }
}

#[test]
fn calls_per_minute_stay_below_the_limit_of_the_provider() {
    for isolation in BOTH {
        let provider = Provider::start([("k0", FINE)], Duration::ZERO);
        let pools = [("p", pool_at(&provider.url(), &["k0"]))];
        let limits = CallLimits { max_concurrent_calls: None, requests_per_minute: Some(5) };
        let settings = Settings { provider_limits: [("p".to_owned(), limits)].into(), ..on("p") };
        let bench = Bench::new(isolation, &pools, settings);
        let calls = || task(vec![Do::Say("up".to_owned()), Do::Call(1)]);
        let mut run = bench.delegator.batch((0..7).map(|_| calls())).start().unwrap();
        // None of them is below its start limit when the clock moves.
        for _ in 0..7 {
            until_text(&mut run, "up");
        }
        wait_for("the first five", || (provider.all_calls() == 5).then_some(()));
        bench.clock.advance(Duration::from_secs(59));
        assert_eq!(provider.all_calls(), 5, "{isolation:?}");
        bench.clock.advance(Duration::from_secs(1));
        let report = run.finish();
        let ends: Vec<_> = report.results().map(|end| (end.status, end.error.clone())).collect();
        assert_eq!(provider.all_calls(), 7, "{isolation:?} {ends:?}");
    }
}

/// Turns go by the first ancestor below the root, however deep who waits is and whoever its parent is: beside
/// four orchestrators of one branch, the one leaf of the other comes second at the latest.
#[test]
fn a_branch_of_a_tree_three_deep_has_one_turn_however_many_parents_wait_in_it() {
    for isolation in BOTH {
        let pools = [("p", pool_at("http://p.example", &["k0"]))];
        let limits = CallLimits { max_concurrent_calls: Some(1), requests_per_minute: None };
        let provider_limits = [("p".to_owned(), limits)].into();
        let settings = Settings { provider_limits, max_spawn_depth: 3, ..on("p") };
        let bench = Bench::new(isolation, &pools, settings);
        let (open, order) = (bench.file("open"), bench.file("order"));
        let leaf = |name: &str| (name.to_owned(), vec![Do::Hold, Do::Sign(order.clone()), Do::Key]);
        let parent = |below| ("a parent of one".to_owned(), vec![Do::Delegate(vec![below])]);
        let wide = ["a1", "a2", "a3", "a4"].map(|name| parent(leaf(name)));
        let holder = task(vec![Do::Hold, Do::File(open.clone())]);
        let ear = Ear::default();
        let start = |batch: blocking::Batch| batch.listener(ear.clone()).start().unwrap();
        let mut first = start(bench.delegator.batch([holder]));
        until_text(&mut first, "<held>");
        let waits = |how_many: usize| {
            wait_for("them to wait for a permit", || {
                bench.clock.advance(Duration::from_secs(1));
                (ear.waiting() == how_many).then_some(())
            });
        };
        let many = start(bench.delegator.batch([task(vec![Do::Delegate(wide.into())])]));
        waits(4);
        let few =
            start(bench.delegator.batch([task(vec![Do::Delegate(vec![parent(leaf("b1"))])])]));
        waits(5);
        fs::write(&open, "").unwrap();
        for run in [first, many, few] {
            let report = run.finish();
            assert!(report.results().all(|outcome| outcome.status == Status::Completed));
        }
        let order = fs::read_to_string(&order).unwrap();
        let order: Vec<_> = order.split_whitespace().collect();
        assert_eq!((order.len(), order[1]), (5, "b1"), "{isolation:?} {order:?}");
    }
}

#[test]
fn a_killed_child_gives_its_permit_back() {
    for isolation in BOTH {
        let pools = [("p", pool_at("http://p.example", &["k0"]))];
        let limits = CallLimits { max_concurrent_calls: Some(1), requests_per_minute: None };
        let settings = Settings { provider_limits: [("p".to_owned(), limits)].into(), ..on("p") };
        let bench = Bench::new(isolation, &pools, settings);
        let holder = || task(vec![Do::Hold, Do::Interrupted]);
        let mut run = bench.delegator.batch([holder(), holder()]).start().unwrap();
        let control = run.control();
        let first = loop {
            match run.events().next().expect("one gets it") {
                Event::Text { child, text } if text.contains("held") => break child,
                _ => {}
            }
        };
        control.stop(first);
        let second = loop {
            match run.events().next().expect("the other gets it then") {
                Event::Text { child, text } if text.contains("held") => break child,
                _ => {}
            }
        };
        assert_ne!(first, second, "{isolation:?}");
        control.interrupt();
        drop(run.finish());
    }
}

/// A key is changed in its file while children wait for it.
#[test]
fn a_key_that_is_changed_by_hand_is_taken_without_a_new_start() {
    for isolation in BOTH {
        let state = tempfile::tempdir().unwrap();
        let file = KeyFile::new(state.path());
        file.write(&["old"]);
        let delegator = file.delegator(isolation);
        let steps = vec![Do::Key, Do::Fail(402, None, None), Do::Await, Do::Key];
        let mut run = delegator.batch([task(steps)]).start().unwrap();
        until_text(&mut run, "<old>");
        until_text(&mut run, "<wait:3600>");
        // Broken meanwhile: what was read stays in use.
        file.put("pools: [");
        let second = delegator.batch([task(vec![Do::Fail(402, None, None)])]).run().unwrap();
        let outcome = second.results().next().unwrap();
        let said = outcome.summary.as_deref().unwrap_or_default();
        assert!(said.starts_with("wait:3"), "{isolation:?} {outcome:?}");
        file.write(&["new"]);
        until_text(&mut run, "<new>");
        drop(run.finish());
        let (known, _) = look(&file.path, state.path(), &[], &file.settings()).unwrap();
        let states: Vec<_> =
            known.pools()["p"].entries().map(|(_, _, record, _)| record.state.word()).collect();
        assert_eq!(states, ["ok"]);
    }
}

#[test]
fn two_parents_on_one_state_directory_take_different_keys() {
    for isolation in BOTH {
        let state = tempfile::tempdir().unwrap();
        let parent = || {
            blocking::Delegator::builder()
                .isolation(isolation)
                .settings(as_asked(on("p")))
                .credential_pool("p", pool_at("http://p.example", &["k1", "k2"]))
                .state_dir(state.path())
                .build()
                .unwrap()
        };
        let (one, two) = (parent(), parent());
        let open = state.path().join("open").to_str().unwrap().to_owned();
        let steps = || vec![Do::Key, Do::File(open.clone())];
        let mut first = one.batch([task(steps())]).start().unwrap();
        until_text(&mut first, "<k1>");
        let mut second = two.batch([task(steps())]).start().unwrap();
        until_text(&mut second, "<k2>");
        assert_eq!(leases(state.path()), 2);
        fs::write(&open, "").unwrap();
        drop(first.finish());
        drop(second.finish());
    }
}
