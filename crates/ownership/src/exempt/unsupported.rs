//! Systems without ownership: everything compiles, and asking is a clear error. Stands where the Linux
//! modules of [`super`] stand.

use std::process::ExitCode;

pub(super) mod look {
    //! Nobody can be looked at.
    use std::path::Path;

    use crate::exempt::Status;
    use crate::exempt::record::Record;

    pub(in crate::exempt) fn status(_dir: &Path, _id: &str) -> Status {
        Status::Unknown { why: "exempt jobs are not supported on this system".into() }
    }

    pub(in crate::exempt) fn may_run(_dir: &Path, _id: &str) -> bool {
        true
    }

    pub(in crate::exempt) fn complete(record: Record) -> Record {
        record
    }
}

pub(super) mod start {
    //! Nothing is started.
    use std::path::{Path, PathBuf};

    use crate::exempt::Exemption;
    use crate::exempt::record::Record;
    use crate::program::Program;
    use crate::spawn::{Phase, Spawn, SpawnError};

    pub(in crate::exempt) fn start(
        _shim: &Program,
        _spawn: Spawn,
        _exemption: Exemption,
        _dir: &Path,
        _gateway: Option<&str>,
    ) -> Result<(PathBuf, Record), SpawnError> {
        Err(SpawnError {
            phase: Phase::Supervisor,
            errno: None,
            path: None,
            detail: "exempt jobs are not supported on this system".into(),
        })
    }
}

pub(super) mod stop {
    //! Nobody is signalled.
    use std::io;
    use std::path::Path;
    use std::time::Duration;

    use crate::exempt::Stopped;

    pub(in crate::exempt) fn stop(_dir: &Path, _id: &str, _grace: Duration) -> io::Result<Stopped> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

pub(super) mod shim {
    //! There is no shim.
    pub(crate) fn run() -> super::ExitCode {
        super::ExitCode::from(2)
    }
}
