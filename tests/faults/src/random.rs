//! Chance that can be repeated: everything that varies comes from the seed that is printed.

/// xorshift64*: short, and good enough to choose container lives.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        // Nothing comes out of zero; streams of neighbouring numbers must not look alike.
        let mixed = seed.wrapping_add(stream.wrapping_mul(0x9E37_79B9_7F4A_7C15)) | 1;
        let mut random = Self(mixed);
        for _ in 0..8 {
            random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// From 0 to `end`, without it.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// True `percent` times of a hundred.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let with = usize::try_from(self.below(at as u64 + 1)).unwrap_or_default();
            items.swap(at, with);
        }
    }
}
