//! The chunks in which a request's body came, and their answers.
//!
//! The proxy wants one answer for each, and a client may send a byte at a time. So of the first chunks the lengths are kept, and of
//! all that follow no more than how many they are; answers are made as they are taken. Envoy keeps some 30 bytes for each as well,
//! and nobody but us can say that they are too many.

use attache_proto::splice::{Chunk, Splice};
use bytes::Bytes;

/// Of how many chunks the lengths are kept. Envoy cuts bodies in pieces of 16 KiB (frames of HTTP/2) or more, so that of the
/// default cap of 32 MiB is a half of it.
const MEASURED: usize = 4_096;

/// How many bytes of a body's cap allow for one chunk more.
const BYTES_FOR_EACH: u64 = 64;

/// In how many chunks a body may come whose cap is so many bytes.
pub(super) fn at_most(cap_bytes: u64) -> u64 {
    MEASURED as u64 + cap_bytes / BYTES_FOR_EACH
}

/// The chunks of one body.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    lengths: Vec<usize>,
    further: Further,
}

/// Chunks that are known together alone.
#[derive(Debug, Default)]
struct Further {
    count: u64,
    bytes: usize,
}

impl Chunks {
    /// Adds one of so many bytes.
    pub(super) fn push(&mut self, bytes: usize) {
        if self.lengths.len() < MEASURED {
            self.lengths.push(bytes);
        } else {
            self.further.count += 1;
            self.further.bytes += bytes;
        }
    }

    /// An answer for each, of which a splice makes this of the body that they were. Where it changes something of those that are
    /// known together alone, the first of them has all of it, and the others go on empty.
    pub(super) fn spliced(mut self, body: &Bytes, splice: &Splice) -> Answers {
        if self.further.count > 0 {
            self.lengths.push(self.further.bytes);
        }
        let answers = splice.chunks(body, &self.lengths);
        let then = match answers.last() {
            Some(Chunk::Replaced(_)) if self.further.count > 0 => Chunk::Replaced(Bytes::new()),
            _ => Chunk::Unchanged,
        };
        // The first of them has its answer.
        Answers { first: answers.into_iter(), then, left: self.further.count.saturating_sub(1) }
    }

    /// An answer for each: the first has all of `body`, the others nothing.
    pub(super) fn replaced(&self, body: Bytes) -> Answers {
        let first = if self.count() == 0 { Vec::new() } else { vec![Chunk::Replaced(body)] };
        let left = self.count().saturating_sub(1);
        Answers { first: first.into_iter(), then: Chunk::Replaced(Bytes::new()), left }
    }

    /// An answer for each: they go on as they came.
    pub(super) fn unchanged(&self) -> Answers {
        Answers { first: Vec::new().into_iter(), then: Chunk::Unchanged, left: self.count() }
    }

    /// What they take, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.lengths.capacity() as u64).saturating_mul(size_of::<usize>() as u64)
    }

    /// How many they are.
    pub(super) fn count(&self) -> u64 {
        self.further.count.saturating_add(self.lengths.len() as u64)
    }
}

/// An answer for each chunk, in order.
#[derive(Debug)]
pub(super) struct Answers {
    first: std::vec::IntoIter<Chunk>,
    /// Each further one.
    then: Chunk,
    left: u64,
}

impl Answers {
    /// Of no chunk.
    pub(super) fn none() -> Self {
        Chunks::default().unchanged()
    }

    /// What they take, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let bytes = |chunk: &Chunk| match chunk {
            Chunk::Unchanged => 0,
            Chunk::Replaced(bytes) => bytes.len() as u64,
        };
        let answers = self.first.as_slice();
        answers.iter().map(bytes).sum::<u64>().saturating_add(size_of_val(answers) as u64)
    }
}

impl Iterator for Answers {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        self.first.next().or_else(|| {
            self.left = self.left.checked_sub(1)?;
            Some(self.then.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use attache_proto::splice::Edit;

    use super::*;

    fn splice(edits: &[(std::ops::Range<usize>, &'static str)], body: &Bytes) -> Splice {
        let edit = |(span, replacement): &(std::ops::Range<usize>, &'static str)| Edit {
            span: span.clone(),
            replacement: Bytes::from_static(replacement.as_bytes()),
        };
        Splice::new(edits.iter().map(edit).collect(), body.len()).unwrap()
    }

    /// What goes on of a body in chunks of these lengths, and the number of answers.
    fn sent(body: &Bytes, lengths: &[usize], splice: &Splice) -> (Vec<u8>, usize) {
        let mut chunks = Chunks::default();
        lengths.iter().for_each(|length| chunks.push(*length));
        let (mut sent, mut at, mut answers) = (Vec::new(), 0, 0);
        for (answer, length) in chunks.spliced(body, splice).zip(lengths) {
            match answer {
                Chunk::Unchanged => sent.extend_from_slice(&body[at..at + length]),
                Chunk::Replaced(bytes) => sent.extend_from_slice(&bytes),
            }
            at += length;
            answers += 1;
        }
        (sent, answers)
    }

    #[test]
    fn however_many_chunks_there_are_their_answers_are_the_spliced_body() {
        let body = Bytes::from((0..6_000_u32).map(|n| b'a' + (n % 26) as u8).collect::<Vec<_>>());
        let (edge, end) = (MEASURED, body.len());
        let splices: [&[(std::ops::Range<usize>, &str)]; 8] = [
            &[],
            &[(3..9, "!")],
            &[(edge - 2..edge + 2, "over the edge")],
            &[(edge..edge, "at the edge")],
            &[(end - 1..end, "")],
            &[(end..end, "at the end")],
            &[(0..end, "all")],
            &[(1..2, "x"), (5_000..5_500, ""), (5_700..5_700, "y")],
        ];
        let ones = vec![1; body.len()];
        let with_empty: Vec<_> = ones.iter().flat_map(|one| [0, *one, 0]).collect();
        let two = vec![edge, end - edge];
        let many_and_one = [vec![1; edge], vec![end - edge]].concat();
        let many_and_none = [vec![1; edge - 1], vec![end - edge + 1], vec![0]].concat();
        for edits in splices {
            let splice = splice(edits, &body);
            for lengths in [&ones, &with_empty, &two, &many_and_one, &many_and_none] {
                assert_eq!(sent(&body, lengths, &splice), (splice.apply(&body).to_vec(), lengths.len()), "{edits:?}");
            }
        }
    }

    #[test]
    fn of_a_body_in_very_many_chunks_no_more_is_kept_than_of_one_in_some_thousands() {
        let mut chunks = Chunks::default();
        for _ in 0..16 << 20 {
            chunks.push(1);
        }
        assert_eq!((chunks.lengths.capacity(), chunks.further.bytes), (MEASURED, (16 << 20) - MEASURED));
        assert_eq!(chunks.unchanged().count(), 16 << 20);
        assert_eq!(
            chunks
                .replaced(Bytes::from_static(b"all"))
                .filter(|answer| *answer != Chunk::Replaced(Bytes::new()))
                .count(),
            1
        );
        assert_eq!((Answers::none().count(), Chunks::default().replaced(Bytes::from_static(b"all")).count()), (0, 0));
    }
}
