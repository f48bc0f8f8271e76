//! Numbers that look random and are the same on every machine for the same seed.

/// SplitMix64 (Steele, Lea and Flood 2014): enough for workloads, and no dependency whose next version draws others.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Starts at `seed`; `stream` tells apart what shall not depend on each other under one seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed ^ stream.wrapping_mul(0xA076_1D64_78BD_642F));
        random.next_u64();
        random
    }

    /// All 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Evenly from 0 to 1, without 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Evenly from `low` to `high`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// True in `share` of the cases.
    pub fn happens(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// The waiting time between events of a Poisson process, `mean` on average.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Log-normal around `median`, `sigma` the standard deviation of the logarithm: most are small, few very large.
    pub fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        // Box and Muller.
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        median * (sigma * radius * (std::f64::consts::TAU * self.unit()).cos()).exp()
    }
}

/// SplitMix64's finaliser: a bijection that scatters neighbours.
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Zipf's law over a fixed number of ranks: the first is the most frequent.
#[derive(Debug)]
pub struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    /// `ranks` many, each as frequent as the first divided by its rank to the power of `exponent`.
    pub fn new(ranks: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=ranks).map(|rank| (rank as f64).powf(-exponent));
        let cumulative: Vec<f64> = weights
            .map(|weight| {
                sum += weight;
                sum
            })
            .collect();
        Self { cumulative: cumulative.into_iter().map(|weight| weight / sum).collect() }
    }

    /// One of the ranks, from 0.
    pub fn draw(&self, random: &mut Random) -> usize {
        let at = random.unit();
        self.cumulative.partition_point(|share| *share <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_everywhere() {
        let mut random = Random::new(1, 0);
        assert_eq!([random.next_u64(), random.next_u64()], [13_757_245_211_066_428_519, 17_911_839_290_282_890_590]);
    }

    #[test]
    fn distributions_have_the_mean_and_median_that_they_say() {
        let mut random = Random::new(7, 1);
        let mean = (0..50_000).map(|_| random.exponential(3.0)).sum::<f64>() / 50_000.0;
        assert!((2.9..3.1).contains(&mean), "{mean}");
        let below = (0..50_000).filter(|_| random.log_normal(100.0, 1.5) < 100.0).count();
        assert!((24_500..25_500).contains(&below), "{below}");
        let zipf = Zipf::new(60, 1.0);
        let first = (0..50_000).filter(|_| zipf.draw(&mut random) == 0).count();
        // 1 / H(60).
        assert!((10_300..11_000).contains(&first), "{first}");
    }
}
