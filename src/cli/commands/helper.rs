//! `delegate helper NAME`: stands for a shared helper in the configuration of a program that a child runs. Carries
//! standard input and output to the helper that the delegating program runs once for all
//! ([`delegate_child::helper`]).

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;

use clap::Args;
use delegate_child::helper::{self, VARIABLE};
use delegate_core::config::Diagnostic;

use crate::cli::exit::Exit;
use crate::cli::fault::Fault;

/// Bytes of one read.
const BLOCK: usize = 64 * 1024;

/// `delegate helper`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  # delegate.yaml
  delegation:
    shared_helpers:
      docs: [npx, -y, some-mcp-server]

  # where a child's own program lists its MCP servers
  {\"mcpServers\": {\"docs\": {\"command\": \"delegate\", \"args\": [\"helper\", \"docs\"]}}}

Ends with its standard input, or with the program that delegates. See docs/helpers.md.")]
pub(crate) struct HelperArgs {
    /// A name of shared_helpers
    #[arg(value_name = "NAME")]
    name: String,
    /// Where it is reached; the variable DELEGATE_HELPERS of a child has it
    #[arg(long, value_name = "SOCKET")]
    address: Option<PathBuf>,
}

/// Carries bytes until either side ends.
///
/// # Errors
/// Not in a child, or no such helper.
pub(crate) fn run(args: &HelperArgs) -> Result<Exit, Fault> {
    let address = args.address.clone().or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from));
    let Some(address) = address else {
        return Err(Fault::from(Diagnostic {
            code: "no_helpers",
            message: format!("{VARIABLE} is not set, so this is no child that shares helpers"),
            hint: Some("set `shared_helpers` in the configuration of the batch".to_owned()),
            ..Diagnostic::default()
        }));
    };
    let stream = helper::connect(&address, &args.name).map_err(|error| {
        Fault::from(Diagnostic {
            code: "no_helper",
            message: format!("the shared helper `{}` cannot be reached: {error}", args.name),
            hint: Some("it lives as long as the program that delegates".to_owned()),
            ..Diagnostic::default()
        })
    })?;
    let to_it = stream.try_clone().map_err(|error| Fault::System("its connection", error))?;
    // Reading standard input cannot be interrupted, so nobody waits for this thread.
    thread::Builder::new()
        .spawn(move || {
            if carry(&mut io::stdin().lock(), &mut &to_it).is_ok() {
                // Its end tells the other side, which ends the connection.
                drop(to_it.shutdown(Shutdown::Write));
            }
        })
        .map_err(|error| Fault::System("a thread", error))?;
    copy_out(&stream).map_err(Fault::Output)?;
    Ok(Exit::Done)
}

fn copy_out(mut stream: &UnixStream) -> io::Result<()> {
    carry(&mut stream, &mut io::stdout().lock())
}

/// Copies as it comes: no line waits for the next one.
fn carry(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut block = vec![0; BLOCK];
    loop {
        match from.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                to.write_all(&block[..count])?;
                to.flush()?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
