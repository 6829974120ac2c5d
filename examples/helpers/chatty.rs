//! Helper: talks more than anybody wants to hear.
//!
//! `chatty MODE [COUNT] [stdout|stderr]`, then exit 0:
//!
//! | mode | writes |
//! |---|---|
//! | `lines` | COUNT numbered lines (default 1000) |
//! | `bytes` | COUNT bytes in lines of 64 (default 1 MiB) |
//! | `endless-line` | COUNT bytes without a newline (default 1 GB) |
//! | `invalid` | COUNT lines that are not UTF-8 (default 3): stray bytes, half a character, a NUL |
//! | `both` | COUNT numbered lines, by turns on stdout and stderr (default 1000) |

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

/// One write; the pipe's own size, so that a slow reader is felt at once.
const BLOCK: usize = 64 * 1024;

fn main() -> io::Result<ExitCode> {
    let args: Vec<String> = std::env::args().collect();
    let mode = args.get(1).map_or("lines", String::as_str);
    let count = args.get(2).and_then(|text| text.parse::<u64>().ok());
    let mut out: Box<dyn Write> = match args.get(3).map(String::as_str) {
        Some("stderr") => Box::new(io::stderr()),
        _ => Box::new(io::stdout()),
    };
    match mode {
        "lines" => lines(&mut BufWriter::new(out), count.unwrap_or(1000))?,
        "bytes" => bytes(&mut out, count.unwrap_or(1 << 20), b'\n')?,
        "endless-line" => bytes(&mut out, count.unwrap_or(1_000_000_000), b'x')?,
        "invalid" => invalid(&mut out, count.unwrap_or(3))?,
        "both" => both(count.unwrap_or(1000))?,
        _ => return Ok(ExitCode::from(2)),
    }
    Ok(ExitCode::SUCCESS)
}

fn lines(out: &mut dyn Write, count: u64) -> io::Result<()> {
    for number in 0..count {
        writeln!(out, "line {number}")?;
    }
    out.flush()
}

/// `count` bytes: `x`, and at each 64th place `end`.
fn bytes(out: &mut dyn Write, count: u64, end: u8) -> io::Result<()> {
    let mut line = [b'x'; 64];
    line[63] = end;
    let block = line.repeat(BLOCK / 64);
    let mut left = count;
    while left > 0 {
        let now = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
        out.write_all(&block[..now])?;
        left -= now as u64;
    }
    out.flush()
}

fn invalid(out: &mut dyn Write, count: u64) -> io::Result<()> {
    for _ in 0..count {
        out.write_all(b"good \xff\xfe bad \xc3( half \xe2\x82 nul \0 end\n")?;
    }
    out.flush()
}

fn both(count: u64) -> io::Result<()> {
    for number in 0..count {
        if number % 2 == 0 {
            writeln!(io::stdout(), "line {number}")?;
        } else {
            writeln!(io::stderr(), "line {number}")?;
        }
    }
    Ok(())
}
