//! `delegate config`: show with origins, check with every fault, path, and the schema.

use serde_json::Value;

use crate::rig::{Rig, Said};

const CONFIG: &str = "delegation:
  max_iterations: 9
  child_timeout: 90s
  base_url: https://example.org/v1
  api_key: sk-canary
  fallback_providers: [{provider: p, model: m, api_key: sk-canary}]
";

fn with(rig: &Rig, args: &[&str], env: &[(&str, &str)]) -> Said {
    Said::of(rig.command(args).envs(env.iter().copied()).output().unwrap())
}

#[test]
fn each_value_is_shown_with_what_set_it() {
    let rig = Rig::new();
    rig.file(".config/delegate/config.yaml", CONFIG);
    let env = [("DELEGATE_MAX_BATCH_SIZE", "7"), ("DELEGATION_MAX_CONCURRENT_CHILDREN", "3")];
    let args = ["config", "show", "--origin", "--set", "terminate_grace=250ms"];
    let said = with(&rig, &args, &env);
    said.expect(0).is_plain();
    let file = rig.path(".config/delegate/config.yaml").display().to_string();
    for (entry, origin) in [
        ("max_iterations: 9", format!("{file}:2")),
        ("child_timeout_seconds: 90", format!("{file}:3")),
        ("api_key: \"***\"", format!("{file}:5")),
        ("max_batch_size: 7", "DELEGATE_MAX_BATCH_SIZE".to_owned()),
        ("max_concurrent_children: 3", "DELEGATION_MAX_CONCURRENT_CHILDREN".to_owned()),
        ("terminate_grace_seconds: 0.25", "--set".to_owned()),
        ("worker.command: null", "default".to_owned()),
    ] {
        let line = said.out.lines().find(|line| line.starts_with(entry));
        let line = line.unwrap_or_else(|| panic!("no {entry} in\n{}", said.out));
        assert!(line.ends_with(&format!("# {origin}")), "{line}");
    }
    // Without the flag no origin; in JSON always.
    assert!(!with(&rig, &["config", "show"], &env).expect(0).out.contains(&file));
    let json = with(&rig, &["config", "show", "--json"], &env).expect(0).json();
    assert_eq!(json["schema"], "delegate.config/1");
    let of = |key: &str| {
        let settings = json["settings"].as_array().unwrap();
        settings.iter().find(|setting| setting["key"] == key).unwrap().clone()
    };
    assert_eq!(of("max_iterations")["origin"]["line"], 2);
    assert_eq!(of("max_batch_size")["origin"]["kind"], "variable");
    assert_eq!(of("worker.command")["origin"]["kind"], "default");
    assert_eq!(of("fallback_providers")["value"][0]["api_key"], "***");
    for said in [said, with(&rig, &["config", "show", "--json"], &env)] {
        assert!(!said.out.contains("canary") && !said.err.contains("canary"), "{said:?}");
    }
}

#[test]
fn a_check_tells_everything_that_is_wrong_and_exits_with_2() {
    let rig = Rig::new();
    let text =
        "delegation:\n  max_iteration: 1\n  max_batch_size: 0\n  independent_completions: 1\n";
    rig.file("bad.yaml", text);
    let said = rig.run(["config", "check", "bad.yaml"]);
    said.expect(2).is_plain();
    for told in [
        "error: unknown key `max_iteration`\n --> bad.yaml:2:3",
        "did you mean `max_iterations`?",
        "error: `max_batch_size` must be",
        "bad.yaml:3:19",
        "error: `independent_completions` must be true or false",
    ] {
        assert!(said.err.contains(told), "{told}\n{}", said.err);
    }
    assert_eq!(said.out, "1 file checked, 3 faults\n");
    let json = rig.run(["config", "check", "bad.yaml", "--json"]).expect(2).json();
    assert_eq!((&json["schema"], &json["ok"]), (&"delegate.config_check/1".into(), &false.into()));
    let errors = json["errors"].as_array().unwrap();
    let told: Vec<(&str, u64)> = errors
        .iter()
        .map(|error| (error["code"].as_str().unwrap(), error["line"].as_u64().unwrap()))
        .collect();
    assert_eq!(told, [("unknown_key", 2), ("out_of_range", 3), ("wrong_type", 4)]);
    assert!(errors.iter().all(|error| error["hint"].is_string() && error["column"].is_u64()));

    rig.file("good.yaml", "delegation:\n  max_iterations: 1\n  routes: {}\n");
    let said = rig.run(["config", "check", "good.yaml"]);
    said.expect(0)
        .says("1 file checked, nothing is wrong")
        .says("the agent loop's own key: routes");
    rig.run(["config", "check", "none.yaml"]).expect(2).says("there is no such file");
}

#[test]
fn without_a_file_everything_that_counts_is_checked() {
    let rig = Rig::new();
    rig.run(["config", "check"]).expect(0).says("0 files checked");
    let wrong = with(&rig, &["config", "check"], &[("DELEGATE_MAX_ITERATIONS", "many")]);
    wrong.expect(2).says("DELEGATE_MAX_ITERATIONS");
    rig.file("delegate.yaml", "delegation:\n  provider: p\n");
    rig.run(["config", "check"]).expect(2).says("delegate trust");
    let states = |rig: &Rig| -> Vec<String> {
        let json = rig.run(["config", "path", "--json"]).expect(0).json();
        let files = json["files"].as_array().unwrap().clone();
        files.iter().map(|file| file["state"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(states(&rig), ["untrusted", "absent", "absent"]);
    rig.run(["trust", "delegate.yaml"]).expect(0);
    assert_eq!(states(&rig)[0], "read");
    rig.run(["config", "check"]).expect(0);
    let said = rig.run(["config", "path"]);
    said.expect(0).is_plain().says("(working tree)");
    said.says(&rig.path("state").display().to_string());
}

#[test]
fn the_schema_is_json_and_speaks_of_every_key() {
    let rig = Rig::new();
    let schema: Value = serde_json::from_str(&rig.run(["config", "schema"]).expect(0).out).unwrap();
    let keys = &schema["properties"]["delegation"]["properties"];
    let json = rig.run(["config", "show", "--json"]).expect(0).json();
    for setting in json["settings"].as_array().unwrap() {
        let path = setting["key"].as_str().unwrap().replace('.', "/properties/");
        let key = keys.pointer(&format!("/{path}")).unwrap_or_else(|| panic!("{path} is missing"));
        assert_eq!(key["description"], setting["about"]);
        assert_eq!(key["default"], setting["value"], "{path}");
    }
}

/// Nobody waits for who may never write, or reads what has no end; a pipe that a shell has opened is read.
#[test]
fn what_may_have_no_end_is_refused_at_once() {
    let rig = Rig::new();
    assert!(rig.program("mkfifo").arg(rig.path("fifo")).status().unwrap().success());
    for file in ["fifo", "/dev/zero"] {
        let what = if file == "fifo" { "named pipe" } else { "device" };
        rig.run(["config", "check", file]).expect(2).says(what).says("regular file");
        rig.run(["run", "--config", file, "--agent", "sleep", "x"]).expect(2).says(what);
        rig.run(["run", file]).expect(2).says(what).says("nothing was started");
    }
    rig.batch("b.yaml", &["exit 0"]);
    let mut shell = rig.program("bash");
    shell.arg("-c").arg(format!("{} run <(cat b.yaml)", crate::rig::DELEGATE));
    crate::rig::Said::of(shell.output().unwrap()).expect(0);
}
