//! A request body as it arrives: the bytes in one piece, and the lengths of the chunks it came in.
//!
//! The proxy wants one answer for each chunk, so their lengths are kept; a body that comes as one chunk is never copied.

use bytes::{Bytes, BytesMut};

/// Collects a body.
#[derive(Debug, Default)]
pub(super) struct BodyBuffer {
    whole: Held,
    chunk_lengths: Vec<usize>,
}

#[derive(Debug, Default)]
enum Held {
    #[default]
    Nothing,
    One(Bytes),
    Joined(BytesMut),
}

impl BodyBuffer {
    /// Adds the next chunk.
    pub(super) fn push(&mut self, chunk: Bytes) {
        self.chunk_lengths.push(chunk.len());
        if chunk.is_empty() {
            return;
        }
        self.whole = match std::mem::take(&mut self.whole) {
            Held::Nothing => Held::One(chunk),
            Held::One(first) => {
                let mut joined = BytesMut::with_capacity((first.len() + chunk.len()).saturating_mul(2));
                joined.extend_from_slice(&first);
                joined.extend_from_slice(&chunk);
                Held::Joined(joined)
            }
            Held::Joined(mut joined) => {
                joined.extend_from_slice(&chunk);
                Held::Joined(joined)
            }
        };
    }

    /// Bytes held.
    pub(super) fn len(&self) -> u64 {
        match &self.whole {
            Held::Nothing => 0,
            Held::One(bytes) => bytes.len() as u64,
            Held::Joined(bytes) => bytes.len() as u64,
        }
    }

    /// The whole body and the lengths of its chunks.
    pub(super) fn finish(self) -> (Bytes, Vec<usize>) {
        let whole = match self.whole {
            Held::Nothing => Bytes::new(),
            Held::One(bytes) => bytes,
            Held::Joined(bytes) => bytes.freeze(),
        };
        (whole, self.chunk_lengths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_join_in_order_and_their_lengths_stay() {
        let mut body = BodyBuffer::default();
        for chunk in ["ab", "", "cde", "f", ""] {
            body.push(Bytes::from_static(chunk.as_bytes()));
        }
        assert_eq!(body.len(), 6);
        assert_eq!(body.finish(), (Bytes::from_static(b"abcdef"), vec![2, 0, 3, 1, 0]));
    }

    #[test]
    fn a_single_chunk_is_not_copied() {
        let chunk = Bytes::from(vec![7; 64]);
        let mut body = BodyBuffer::default();
        body.push(chunk.clone());
        body.push(Bytes::new());
        assert_eq!(body.finish().0.as_ptr(), chunk.as_ptr());
    }
}
