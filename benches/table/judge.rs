//! What the figures of a table say: medians, minima, and whether a goal is met. Pure; `main` measures, `show` prints.

/// What was measured of one column, in its unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figures {
    pub(crate) rounds: usize,
    /// The upper one of an even number.
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Figures {
    /// Of the values of all rounds, in any order. `None` without one.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        Some(Self { rounds: values.len(), median: values[values.len() / 2], least, most })
    }
}

/// What a goal asks of our figure, which is a cost unless it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    /// At most so many times the other's.
    Times(f64),
    /// The other's is at least so many times ours.
    Faster(f64),
    /// At most so much in every round, whatever others need.
    AtMost(f64),
    /// At least so much in every round.
    AtLeast(f64),
}

impl Bound {
    pub(crate) fn words(self) -> String {
        match self {
            Self::Times(times) => format!("≤ {times} ×"),
            Self::Faster(times) => format!("≥ {times} × as fast"),
            Self::AtMost(most) => format!("≤ {most}"),
            Self::AtLeast(least) => format!("≥ {least}"),
        }
    }
}

/// What became of a goal: the ratio that it is about, or our figure where it compares with nobody.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) met: bool,
    /// Of the medians; of the worst round where nobody is compared with. What is judged.
    pub(crate) found: f64,
    /// Of the minima; the median where nobody is compared with.
    pub(crate) beside: f64,
}

/// Judges `ours` against `other`, which is nothing where the bound compares with nobody. `None` where figures are missing
/// or nothing can be said of them.
pub(crate) fn judge(
    bound: Bound,
    ours: Option<Figures>,
    other: Option<Figures>,
) -> Option<Verdict> {
    let ours = ours?;
    let ratio = |of: fn(&Figures) -> f64, turned: bool| {
        let (ours, other) = (of(&ours), of(&other?));
        let (above, below) = if turned { (other, ours) } else { (ours, other) };
        // Nothing can be told of a cost of nothing.
        (above > 0.0 && below > 0.0).then(|| above / below)
    };
    let both = |turned| {
        Some((ratio(|figures| figures.median, turned)?, ratio(|figures| figures.least, turned)?))
    };
    let (met, (found, beside)) = match bound {
        Bound::Times(bound) => both(false).map(|both| (both.0 <= bound, both))?,
        Bound::Faster(bound) => both(true).map(|both| (both.0 >= bound, both))?,
        Bound::AtMost(bound) => (ours.most <= bound, (ours.most, ours.median)),
        Bound::AtLeast(bound) => (ours.least >= bound, (ours.least, ours.median)),
    };
    Some(Verdict { met, found, beside })
}

/// Two or three digits that say something.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        0.0 => 0,
        _ => 4,
    };
    format!("{value:.digits$}")
}
