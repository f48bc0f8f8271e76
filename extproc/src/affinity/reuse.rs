//! How much of prompts comes from caches at all: what may be expected of an endpoint that nothing is known of.
//!
//! Where conversations go on, their home has most of the next prompt, whoever sent the last one. Where prompts have nothing in
//! common, there is nothing to go home for.

/// How much the last request counts.
const AVERAGE: f64 = 1.0 / 64.0;
/// Before anything is known the best is believed, as if of one prompt of so many bytes.
const FIRST_BYTES: f64 = 16_384.0;

/// Moving averages of bytes of prompts beyond what is hot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reuse {
    known: Share,
    delivered: Share,
}

#[derive(Debug, Clone, Copy)]
struct Share {
    found: f64,
    asked: f64,
}

impl Default for Reuse {
    fn default() -> Self {
        let all = Share { found: FIRST_BYTES, asked: FIRST_BYTES };
        Self { known: all, delivered: Share { found: 0.0, asked: FIRST_BYTES } }
    }
}

impl Reuse {
    /// Of a prompt of `asked` bytes some endpoint was known to hold `found`.
    pub(super) fn known(&mut self, found: u64, asked: u64) {
        self.known.add(found, asked);
    }

    /// Of a prompt of `asked` bytes `found` came from a cache, as its answer said.
    pub(super) fn delivered(&mut self, found: u64, asked: u64) {
        self.delivered.add(found, asked);
    }

    /// The part of a prompt that may be expected, from 0 to 1: what answers say, or what we know ourselves, which is less than
    /// all where there are other sidecars. The root of it, since conversations that go on find far more than the average, of which
    /// those that begin are a part.
    pub(super) fn expected(&self) -> f64 {
        self.known.part().max(self.delivered.part()).sqrt()
    }
}

impl Share {
    fn add(&mut self, found: u64, asked: u64) {
        self.found += AVERAGE * (found.min(asked) as f64 - self.found);
        self.asked += AVERAGE * (asked as f64 - self.asked);
    }

    fn part(&self) -> f64 {
        if self.asked > 0.0 { (self.found / self.asked).clamp(0.0, 1.0) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_believed_until_prompts_show_otherwise() {
        let mut reuse = Reuse::default();
        assert_eq!(reuse.expected(), 1.0);
        (0..500).for_each(|_| reuse.known(100, 10_000));
        assert!((0.1..0.12).contains(&reuse.expected()), "{}", reuse.expected());
    }

    #[test]
    fn what_answers_say_counts_where_it_is_more_than_what_we_know() {
        let mut reuse = Reuse::default();
        (0..500).for_each(|_| {
            reuse.known(2_000, 10_000);
            reuse.delivered(8_000, 10_000);
        });
        assert!((0.88..0.9).contains(&reuse.expected()), "{}", reuse.expected());
        (0..500).for_each(|_| reuse.delivered(0, 10_000));
        assert!((0.44..0.47).contains(&reuse.expected()), "{}", reuse.expected());
    }
}
