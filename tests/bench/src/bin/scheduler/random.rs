//! Numbers that are the same in each run with one seed (splitmix64).

/// A generator.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).expect("usize has 64 bits here");
        usize::try_from(self.next() % end).expect("it is below a usize")
    }

    /// One of these, by weight.
    pub(crate) fn weighted<T: Copy>(&mut self, from: &[(T, usize)]) -> T {
        let mut at = self.below(from.iter().map(|(_, weight)| weight).sum());
        for (one, weight) in from {
            if at < *weight {
                return *one;
            }
            at -= weight;
        }
        from[0].0
    }
}
