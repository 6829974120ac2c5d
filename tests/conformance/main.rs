//! Smoke.
use delegate_runtime::*;
use std::time::Duration;

struct Echo;
impl Agent for Echo {
    const NAME: &'static str = "echo";
    type Params = Option<u32>;
    type Answer = String;
    fn run(&mut self, p: Option<u32>, s: &mut Session) -> Result<String, Failure> {
        for i in 0..3 {
            s.text(&format!("{i} "));
        }
        if p == Some(1) {
            panic!("one");
        }
        if p == Some(2) {
            loop {
                s.checkpoint()?;
                std::thread::yield_now();
            }
        }
        Ok(format!("hello {p:?} {}", s.spec().goal))
    }
}
delegate_runtime::test_support!(|| Echo);

#[test]
fn smoke() {
    for isolation in [Isolation::Thread, Isolation::Process] {
        let dir = tempfile::tempdir().unwrap();
        let d = blocking::Delegator::builder()
            .isolation(isolation)
            .state_dir(dir.path())
            .build()
            .unwrap();
        let tasks = (0..5)
            .map(|i| Task::of::<Echo>(format!("g{i}"), Some(i)).timeout(Duration::from_secs(1)));
        let mut run = d.batch(tasks).start().unwrap();
        for e in run.events() {
            println!("{e:?}");
        }
        let r = run.finish();
        for o in r.results() {
            println!("{:?}", *o);
        }
        println!("{:?} {:?}", r.warnings(), r.left_running());
    }
}
