//! The first bytes of an input: what the law is to do with the rest.

use attache_proto::Operation;

/// Three bytes, each of which has a meaning whatever it is.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    subject: u8,
    choice: u8,
    cuts: u8,
}

impl Head {
    /// The head of an input and what comes after it; `None` where the input is too short for one.
    pub fn split(input: &[u8]) -> Option<(Self, &[u8])> {
        let ([subject, choice, cuts], rest) = input.split_first_chunk()?;
        Some((Self { subject: *subject, choice: *choice, cuts: *cuts }, rest))
    }

    /// The operation: `0` is the first of [`Operation::ALL`].
    pub fn operation(self) -> Operation {
        self.one_of(&Operation::ALL).unwrap_or(Operation::ChatCompletions)
    }

    /// One of these: `0` is the first. `None` of none.
    pub fn one_of<T: Copy>(self, all: &[T]) -> Option<T> {
        let index = usize::from(self.subject.wrapping_sub(b'0')).checked_rem(all.len())?;
        all.get(index).copied()
    }

    /// Whether the `bit`th choice is taken: none is by `0`, the lowest by `1`.
    pub fn chooses(self, bit: u8) -> bool {
        self.choice.wrapping_sub(b'0') >> (bit % 8) & 1 == 1
    }

    /// Where the rest is cut.
    pub fn cuts(self) -> Cuts {
        let most = [1, 2, 3, 5, 16, 64, 700, 5_000].into_iter().nth(usize::from(self.cuts % 8)).unwrap_or(1);
        Cuts { state: u32::from(self.cuts) + 1, most }
    }
}

/// Cuts bytes into chunks of lengths that the head tells.
#[derive(Debug, Clone, Copy)]
pub struct Cuts {
    state: u32,
    most: usize,
}

impl Cuts {
    /// The chunks of `bytes`: at least one, none of them empty but that of no bytes.
    pub fn chunks(mut self, bytes: &[u8]) -> Vec<&[u8]> {
        let mut chunks = Vec::new();
        let mut rest = bytes;
        loop {
            let (chunk, tail) = rest.split_at(self.next_length().min(rest.len()));
            chunks.push(chunk);
            rest = tail;
            if rest.is_empty() {
                return chunks;
            }
        }
    }

    /// Marsaglia's xorshift.
    fn next_length(&mut self) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 17;
        self.state ^= self.state << 5;
        1 + self.state as usize % self.most
    }
}
