//! Where the prompts of [`super`] come from: options, or lines of standard input, read by a thread.

use std::io::{self, BufRead};

use tokio::sync::mpsc;

/// Those of the options; without any each line of standard input that is not blank, read by a thread. What cannot be a
/// prompt comes as the reason why.
pub(super) fn prompts(given: Vec<String>) -> io::Result<mpsc::Receiver<Result<String, String>>> {
    let (send, prompts) = mpsc::channel(1);
    let feed = move || {
        let all: Box<dyn Iterator<Item = Result<String, String>>> = if given.is_empty() {
            let blank =
                |line: &Result<String, String>| line.as_ref().is_ok_and(|it| it.trim().is_empty());
            Box::new(lines(io::stdin().lock()).filter(move |line| !blank(line)))
        } else {
            Box::new(given.into_iter().map(Ok))
        };
        for prompt in all {
            if send.blocking_send(prompt).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("prompts".to_owned()).spawn(feed)?;
    Ok(prompts)
}

/// Its lines, each by itself: one that is no text costs no other one.
fn lines(mut from: impl BufRead) -> impl Iterator<Item = Result<String, String>> {
    let (mut number, mut over) = (0_u64, false);
    std::iter::from_fn(move || {
        if over {
            return None;
        }
        let mut line = Vec::new();
        number += 1;
        match from.read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) => {
                let text = String::from_utf8(line);
                let no_text =
                    |_| format!("line {number} of standard input is not UTF-8; it was not asked");
                Some(text.map_err(no_text))
            }
            Err(error) => {
                over = true;
                Some(Err(format!("standard input cannot be read any further: {error}")))
            }
        }
    })
}

/// The next one of those that nobody will ask. Those of options all come; a line of standard input only if it was read already.
pub(super) async fn rest(
    prompts: &mut mpsc::Receiver<Result<String, String>>,
    of_options: bool,
) -> Option<Result<String, String>> {
    if of_options { prompts.recv().await } else { prompts.try_recv().ok() }
}
