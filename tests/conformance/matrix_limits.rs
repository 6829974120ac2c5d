//! Matrix 11.13, limits, as the decisions change them: the default is 10, what is configured is
//! honoured, and 0 is an error.

use delegate_runtime::Event;
use delegate_runtime::config::{self, Settings, Sources};

use crate::agents::{Op, answer, script};
use crate::seen::{Seen, watch};
use crate::support::{BOTH, rig_with};

/// Settings from a file and variables, and nothing of this machine's.
fn load(yaml: Option<&str>, env: &[(&str, &str)]) -> Result<Settings, String> {
    let folder = tempfile::tempdir().unwrap();
    let explicit = yaml.map(|text| {
        let path = folder.path().join("config.yaml");
        std::fs::write(&path, text).unwrap();
        path
    });
    let mut variables = vec![
        ("HOME".to_owned(), folder.path().display().to_string()),
        ("XDG_CONFIG_HOME".to_owned(), folder.path().join("none").display().to_string()),
    ];
    variables.extend(env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    let cwd = folder.path().to_owned();
    let sources = Sources { explicit, cwd, env: variables, flags: Vec::new() };
    config::load(&sources).map(|loaded| loaded.settings).map_err(|error| error.to_string())
}

fn concurrency(number: &str) -> Result<u32, String> {
    load(Some(&format!("delegation:\n  max_concurrent_children: {number}\n")), &[])
        .map(|settings| settings.max_concurrent_children)
}

/// The most children that ran at once, by start and complete events.
fn most_at_once(seen: &Seen) -> usize {
    let (mut running, mut most) = (0usize, 0);
    for event in &seen.events {
        match event {
            Event::Start { .. } => running += 1,
            Event::Complete { .. } => running -= 1,
            _ => {}
        }
        most = most.max(running);
    }
    most
}

/// Runs more tasks than places. Each of the first `places` waits until all of them have begun, so
/// that the batch hangs (and times out) when the setting is not reached.
fn honoured(places: u32, tasks: u32) {
    for isolation in BOTH {
        let folder = tempfile::tempdir().unwrap();
        let file = |index: u32| folder.path().join(index.to_string()).display().to_string();
        let settings = Settings { max_concurrent_children: places, ..Settings::default() };
        let rig = rig_with(isolation, settings);
        let seen = watch(
            &rig,
            (0..tasks).map(|index| {
                let mut ops = vec![Op::Touch(file(index))];
                if index < places {
                    ops.extend((0..places).map(|other| Op::AwaitFile(file(other))));
                }
                script(ops, answer("done")).task(format!("task {index}"))
            }),
        );
        assert!(seen.report.all_completed(), "{isolation:?} {:?}", seen.report.counts());
        let most = most_at_once(&seen);
        assert_eq!(most, places as usize, "{isolation:?}");
    }
}

#[test]
fn m118_concurrency_is_10_where_nothing_is_said() {
    assert_eq!(Settings::default().max_concurrent_children, 10);
    assert_eq!(load(None, &[]).unwrap().max_concurrent_children, 10);
    honoured(10, 14);
}

#[test]
fn m119_10_and_100_are_honoured_there_is_no_ceiling() {
    assert_eq!(concurrency("10"), Ok(10));
    assert_eq!(concurrency("100"), Ok(100));
    assert_eq!(concurrency("100000"), Ok(100_000));
    // 100 threads at once; processes are the same number of places to the same monitor.
    let folder = tempfile::tempdir().unwrap();
    let file = |index: u32| folder.path().join(index.to_string()).display().to_string();
    let settings = Settings { max_concurrent_children: 100, ..Settings::default() };
    let rig = rig_with(delegate_runtime::Isolation::Thread, settings);
    let tasks = (0..101).map(|index| {
        let mut ops = vec![Op::Touch(file(index))];
        if index < 100 {
            ops.extend((0..100).map(|other| Op::AwaitFile(file(other))));
        }
        script(ops, answer("done")).task(format!("task {index}"))
    });
    let seen = watch(&rig, tasks);
    assert!(seen.report.all_completed());
    assert_eq!(most_at_once(&seen), 100);
}

#[test]
fn m120_0_is_an_error_that_names_the_key() {
    for number in ["0", "-1", "many", "1.5", "true"] {
        let error = concurrency(number).unwrap_err();
        assert!(error.contains("max_concurrent_children"), "{number}: {error}");
    }
    let error = load(None, &[("DELEGATE_MAX_CONCURRENT_CHILDREN", "0")]).unwrap_err();
    assert!(error.contains("DELEGATE_MAX_CONCURRENT_CHILDREN"), "{error}");
}

#[test]
fn m121_a_variable_is_honoured_where_no_file_speaks() {
    let env = [("DELEGATE_MAX_CONCURRENT_CHILDREN", "12")];
    assert_eq!(load(None, &env).unwrap().max_concurrent_children, 12);
    let silent = "delegation:\n  max_iterations: 5\n";
    assert_eq!(load(Some(silent), &env).unwrap().max_concurrent_children, 12);
    honoured(12, 13);
}

#[test]
fn m122_a_configured_number_is_honoured() {
    assert_eq!(concurrency("6"), Ok(6));
    honoured(6, 13);
}

#[test]
fn a_batch_over_max_batch_size_is_refused_with_both_numbers() {
    for isolation in BOTH {
        let settings = Settings { max_batch_size: Some(3), ..Settings::default() };
        let rig = rig_with(isolation, settings);
        let task = |index: u32| script([], answer("a")).task(format!("task {index}"));
        assert!(rig.delegator.batch((0..3).map(task)).run().unwrap().all_completed());
        let error = rig.delegator.batch((0..4).map(task)).start().unwrap_err().to_string();
        assert!(error.contains("4 tasks") && error.contains("max_batch_size is 3"), "{error}");
    }
}
