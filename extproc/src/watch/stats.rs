//! What came of scrapes and resolutions, counted for the metrics page.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of all scrapes and resolutions since the start.
#[derive(Debug, Default)]
pub struct WatchStats {
    scrapes: [AtomicU64; Scraped::ALL.len()],
    resolutions: [AtomicU64; Resolution::ALL.len()],
}

/// What came of a scrape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scraped {
    /// The page was read.
    Ok,
    /// There is no such page, or not for us.
    Absent,
    /// Another status than 200.
    Status,
    /// The page did not come in time.
    Timeout,
    /// No connection, or it broke.
    Unreachable,
    /// The page was longer than any.
    TooLarge,
    /// The page was no text.
    NotText,
    /// The page did not have the figures.
    Missing,
    /// The page had figures that cannot be.
    Implausible,
}

/// What came of a resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// The name stands for what it stood for.
    Unchanged,
    /// It stands for other addresses.
    Changed,
    /// There was no answer.
    Failed,
}

impl Scraped {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Ok,
        Self::Absent,
        Self::Status,
        Self::Timeout,
        Self::Unreachable,
        Self::TooLarge,
        Self::NotText,
        Self::Missing,
        Self::Implausible,
    ];

    /// As metrics and logs name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Absent => "absent",
            Self::Status => "status",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::TooLarge => "too_large",
            Self::NotText => "not_text",
            Self::Missing => "missing",
            Self::Implausible => "implausible",
        }
    }
}

impl Resolution {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Unchanged, Self::Changed, Self::Failed];

    /// As metrics name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::Changed => "changed",
            Self::Failed => "failed",
        }
    }
}

impl WatchStats {
    /// Scrapes by what came of them.
    pub fn scrapes(&self) -> impl Iterator<Item = (Scraped, u64)> {
        Scraped::ALL.into_iter().zip(self.scrapes.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Resolutions by what came of them.
    pub fn resolutions(&self) -> impl Iterator<Item = (Resolution, u64)> {
        Resolution::ALL.into_iter().zip(self.resolutions.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    pub(super) fn scraped(&self, outcome: Scraped) {
        if let Some(count) = self.scrapes.get(outcome as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn resolution(&self, outcome: Resolution) {
        if let Some(count) = self.resolutions.get(outcome as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_its_own_counter() {
        let stats = WatchStats::default();
        Scraped::ALL.into_iter().enumerate().for_each(|(at, outcome)| (0..at).for_each(|_| stats.scraped(outcome)));
        Resolution::ALL.into_iter().enumerate().for_each(|(at, one)| (0..at).for_each(|_| stats.resolution(one)));
        assert_eq!(stats.scrapes().map(|(_, count)| count).collect::<Vec<_>>(), (0..9).collect::<Vec<_>>());
        assert_eq!(stats.resolutions().map(|(_, count)| count).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
