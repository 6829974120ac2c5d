//! How many rows a table may have: the limit of file sizes holds for the memory that guards share, too.

use std::io;
use std::sync::atomic::Ordering;

use super::{HEADER, ROW, ROWS, Table, USED};
use crate::file_size;

/// With fewer rows there are no guards.
pub(super) const FEWEST: usize = 16;

/// As many as there may be here.
pub(super) fn rows() -> io::Result<usize> {
    let rows = rows_within(file_size::limit());
    rows.ok_or_else(|| io::Error::from_raw_os_error(libc::EFBIG))
}

/// Rows of a table in so many bytes. `None` where that is too little for guards.
fn rows_within(limit: Option<u64>) -> Option<usize> {
    let words = limit.and_then(|bytes| usize::try_from(bytes / 8).ok()).unwrap_or(usize::MAX);
    let rows = (words.saturating_sub(HEADER) / ROW).min(ROWS);
    (rows >= FEWEST).then_some(rows)
}

/// Why no guards can be started here, with what to do.
pub(crate) fn is_too_small() -> Option<String> {
    let limit = file_size::limit().filter(|limit| rows_within(Some(*limit)).is_none())?;
    let needed = (HEADER + FEWEST * ROW) * 8;
    Some(format!(
        "files may have {limit} bytes here, shared memory included, and guards need {needed}: raise `ulimit -f`"
    ))
}

impl Table {
    pub(super) fn rows_at_all(&self) -> usize {
        (self.shared.words().len() - HEADER) / ROW
    }

    pub(super) fn used(&self) -> usize {
        usize::try_from(self.shared.words()[USED].load(Ordering::Acquire))
            .unwrap_or(0)
            .min(self.rows_at_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_file_sizes_makes_the_table_shorter_or_is_told() {
        let bytes = |rows: usize| u64::try_from((HEADER + rows * ROW) * 8).ok();
        assert_eq!(rows_within(None), Some(ROWS));
        assert_eq!(rows_within(Some(u64::MAX)), Some(ROWS));
        assert_eq!(rows_within(bytes(ROWS)), Some(ROWS));
        assert_eq!(rows_within(bytes(100).map(|bytes| bytes + 7)), Some(100));
        assert_eq!(rows_within(bytes(FEWEST)), Some(FEWEST));
        for little in [bytes(FEWEST).map(|bytes| bytes - 1), Some(0)] {
            assert_eq!(rows_within(little), None);
        }
    }
}
