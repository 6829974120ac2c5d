//! Names of started tools, gathered for one progress line: each fifth tool, and the end, hand out what was
//! gathered. Pure; `child_io` sends it.

/// Names of one line.
const BATCH: usize = 5;

/// The names that wait.
#[derive(Debug, Default)]
pub(super) struct ToolNames {
    line: String,
    count: usize,
}

impl ToolNames {
    /// Adds a name; the line when it is full.
    pub(super) fn push(&mut self, name: &str) -> Option<String> {
        if self.count > 0 {
            self.line.push_str(", ");
        }
        self.line.push_str(name);
        self.count += 1;
        if self.count < BATCH { None } else { self.flush() }
    }

    /// The line of those that wait, if any do.
    pub(super) fn flush(&mut self) -> Option<String> {
        let Self { line, count } = std::mem::take(self);
        (count > 0).then_some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fifth_name_and_the_end_hand_out_all_in_order() {
        for count in 0..12_usize {
            let mut names = ToolNames::default();
            let mut lines: Vec<_> =
                (0..count).filter_map(|number| names.push(&number.to_string())).collect();
            assert_eq!(lines.len(), count / BATCH);
            lines.extend(names.flush());
            assert_eq!(names.flush(), None);
            let all: Vec<_> = (0..count).map(|number| number.to_string()).collect();
            let told: Vec<_> = lines.iter().flat_map(|line| line.split(", ")).collect();
            assert_eq!(told, all);
        }
    }
}
