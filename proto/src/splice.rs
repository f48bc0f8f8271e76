//! Edits of a body that leave every other byte alone.
//!
//! A body arrives in chunks, and the proxy wants one answer for each of them; a chunk without an edit is answered without
//! a copy.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

/// One edit: what stands at `span` gives way to `replacement`. An empty span inserts, an empty replacement removes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// A byte range of the body.
    pub span: Range<usize>,
    /// What takes its place.
    pub replacement: Bytes,
}

/// Edits of one body: in order, within its bounds, none over another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Splice {
    edits: Vec<Edit>,
    body_len: usize,
}

/// Why edits do not make a splice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpliceError {
    /// An edit's span is reversed or ends after the body.
    #[error("an edit of bytes {span:?} does not fit a body of {body_len} bytes")]
    OutOfBounds {
        /// The edit's span.
        span: Range<usize>,
        /// The body's length in bytes.
        body_len: usize,
    },
    /// Two edits share bytes.
    #[error("the edits of bytes {first:?} and {second:?} overlap")]
    Overlap {
        /// The span of the one that begins first.
        first: Range<usize>,
        /// The span of the other.
        second: Range<usize>,
    },
}

/// The answer to one received chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    /// The chunk goes on as it came.
    Unchanged,
    /// These bytes go on in its place; there may be none.
    Replaced(Bytes),
}

impl Splice {
    /// Puts `edits` of a body of `body_len` bytes in order and checks them. Insertions at one place keep their order.
    pub fn new(mut edits: Vec<Edit>, body_len: usize) -> Result<Self, SpliceError> {
        edits.sort_by_key(|edit| (edit.span.start, edit.span.end));
        let mut previous = 0..0;
        for Edit { span, .. } in &edits {
            if span.start > span.end || span.end > body_len {
                return Err(SpliceError::OutOfBounds { span: span.clone(), body_len });
            }
            if span.start < previous.end {
                return Err(SpliceError::Overlap { first: previous, second: span.clone() });
            }
            previous = span.clone();
        }
        Ok(Self { edits, body_len })
    }

    /// These edits and more of the same body.
    ///
    /// # Errors
    /// As for [`Splice::new`].
    pub fn and(mut self, edits: Vec<Edit>) -> Result<Self, SpliceError> {
        self.edits.extend(edits);
        Self::new(self.edits, self.body_len)
    }

    /// This splice, and then `edits` of the body that it leaves.
    ///
    /// # Errors
    /// As for [`Splice::new`], of the spliced body.
    pub fn then(&self, edits: Vec<Edit>) -> Result<Self, SpliceError> {
        let Self { edits: later, body_len: spliced_len } = Self::new(edits, self.spliced_len())?;
        if self.is_empty() {
            return Ok(Self { edits: later, body_len: self.body_len });
        }
        let mut before = Pieces::of(self);
        let mut after = Vec::new();
        let mut at = 0;
        for Edit { span, replacement } in later {
            after.extend(before.take(span.start - at));
            before.take(span.len());
            after.push(Piece::New(replacement));
            at = span.end;
        }
        after.extend(before.take(spliced_len - at));
        Ok(Self { edits: edits_between(after, self.body_len), body_len: self.body_len })
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// The length of the spliced body in bytes: what `content-length` must say.
    pub fn spliced_len(&self) -> usize {
        let removed: usize = self.edits.iter().map(|edit| edit.span.len()).sum();
        let added: usize = self.edits.iter().map(|edit| edit.replacement.len()).sum();
        self.body_len - removed + added
    }

    /// The spliced body; without edits the body itself, not a copy.
    pub fn apply(&self, body: &Bytes) -> Bytes {
        match self.edits.as_slice() {
            [] => body.clone(),
            edits => splice(body, 0..body.len(), edits, Place::Last),
        }
    }

    /// The answers to the chunks in which `body` arrived, given their lengths, which must add up to that of `body`.
    ///
    /// There is one answer for each chunk, and put together they are what [`Splice::apply`] gives. The replacement goes
    /// where its span begins, in the first chunk that has bytes at or after that place; at the very end, in the last chunk.
    pub fn chunks(&self, body: &Bytes, chunk_lengths: &[usize]) -> Vec<Chunk> {
        let mut edits = self.edits.as_slice();
        let mut end = 0;
        let mut answers = Vec::with_capacity(chunk_lengths.len());
        for (index, length) in chunk_lengths.iter().enumerate() {
            let chunk = end..end + length;
            end = chunk.end;
            let place = if index + 1 == chunk_lengths.len() { Place::Last } else { Place::Within };
            let touching = edits.iter().take_while(|edit| place.holds_start(&chunk, edit)).count();
            let (here, after) = edits.split_at(touching);
            answers.push(match here {
                [] => Chunk::Unchanged,
                here => Chunk::Replaced(splice(body, chunk.clone(), here, place)),
            });
            // The last edit may go on into the next chunks.
            edits = match here.last() {
                Some(last) if last.span.end > chunk.end => edits.get(touching - 1..).unwrap_or_default(),
                _ => after,
            };
        }
        answers
    }
}

/// Whether a range of the body is its last: what is inserted at its end belongs to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Within,
    Last,
}

impl Place {
    fn holds_start(self, range: &Range<usize>, edit: &Edit) -> bool {
        match self {
            Self::Within => edit.span.start < range.end,
            Self::Last => edit.span.start <= range.end,
        }
    }
}

/// The bytes that take the place of one range of the body, given the edits that begin in it or reach into it.
fn splice(body: &[u8], range: Range<usize>, edits: &[Edit], place: Place) -> Bytes {
    let added: usize = edits.iter().map(|edit| edit.replacement.len()).sum();
    let mut spliced = BytesMut::with_capacity(range.len() + added);
    let mut kept = range.start;
    for edit in edits {
        spliced.extend_from_slice(body.get(kept..edit.span.start).unwrap_or_default());
        if edit.span.start >= range.start && place.holds_start(&range, edit) {
            spliced.extend_from_slice(&edit.replacement);
        }
        kept = edit.span.end;
    }
    spliced.extend_from_slice(body.get(kept..range.end).unwrap_or_default());
    spliced.freeze()
}

/// A stretch of a spliced body.
#[derive(Debug)]
enum Piece {
    /// Bytes of the body.
    Kept(Range<usize>),
    /// Bytes of a replacement.
    New(Bytes),
}

/// A spliced body, piece by piece.
struct Pieces(VecDeque<Piece>);

impl Pieces {
    fn of(splice: &Splice) -> Self {
        let mut pieces = VecDeque::with_capacity(2 * splice.edits.len() + 1);
        let mut kept = 0;
        for Edit { span, replacement } in &splice.edits {
            pieces.push_back(Piece::Kept(kept..span.start));
            pieces.push_back(Piece::New(replacement.clone()));
            kept = span.end;
        }
        pieces.push_back(Piece::Kept(kept..splice.body_len));
        Self(pieces)
    }

    /// The next so many bytes. Empty pieces go with what is before them.
    fn take(&mut self, mut bytes: usize) -> Vec<Piece> {
        let mut taken = Vec::new();
        while let Some(piece) = self.0.pop_front() {
            let len = piece.len();
            if len > bytes {
                let (first, rest) = piece.split_at(bytes);
                taken.push(first);
                self.0.push_front(rest);
                break;
            }
            taken.push(piece);
            bytes -= len;
        }
        taken
    }
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Kept(range) => range.len(),
            Self::New(bytes) => bytes.len(),
        }
    }

    /// Two pieces of which the first has `bytes` bytes, which are not more than there are.
    fn split_at(self, bytes: usize) -> (Self, Self) {
        match self {
            Self::Kept(range) => {
                let middle = range.start + bytes;
                (Self::Kept(range.start..middle), Self::Kept(middle..range.end))
            }
            Self::New(mut first) => {
                let rest = first.split_off(bytes);
                (Self::New(first), Self::New(rest))
            }
        }
    }
}

/// What stands between kept pieces, as edits.
fn edits_between(pieces: Vec<Piece>, body_len: usize) -> Vec<Edit> {
    let mut edits = Vec::new();
    let mut added = BytesMut::new();
    let mut at = 0;
    // The end of the body is a piece that is kept.
    for piece in pieces.into_iter().chain([Piece::Kept(body_len..body_len)]) {
        match piece {
            Piece::New(bytes) => added.extend_from_slice(&bytes),
            Piece::Kept(range) if range.is_empty() && range.start < body_len => {}
            Piece::Kept(range) => {
                if !added.is_empty() || range.start > at {
                    edits.push(Edit { span: at..range.start, replacement: std::mem::take(&mut added).freeze() });
                }
                at = range.end;
            }
        }
    }
    edits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn edit(span: Range<usize>, replacement: &'static str) -> Edit {
        Edit { span, replacement: Bytes::from_static(replacement.as_bytes()) }
    }

    fn replaced(bytes: &'static str) -> Chunk {
        Chunk::Replaced(Bytes::from_static(bytes.as_bytes()))
    }

    #[test]
    fn only_chunks_with_an_edit_are_replaced() {
        let splice = Splice::new(vec![edit(8..9, "!"), edit(2..4, "xyz")], 10).unwrap();
        let body = Bytes::from_static(b"0123456789");
        assert_eq!(splice.apply(&body), "01xyz4567!9");
        assert_eq!(splice.spliced_len(), 11);
        assert_eq!(
            splice.chunks(&body, &[2, 2, 4, 2]),
            [Chunk::Unchanged, replaced("xyz"), Chunk::Unchanged, replaced("!9")]
        );
    }

    #[test]
    fn an_edit_over_several_chunks_goes_into_the_first() {
        let splice = Splice::new(vec![edit(1..7, "x")], 10).unwrap();
        let body = Bytes::from_static(b"0123456789");
        assert_eq!(
            splice.chunks(&body, &[2, 0, 4, 2, 2]),
            [replaced("0x"), replaced(""), replaced(""), replaced("7"), Chunk::Unchanged]
        );
    }

    #[test]
    fn an_insertion_at_the_very_end_goes_into_the_last_chunk_even_if_it_is_empty() {
        let splice = Splice::new(vec![edit(4..4, "x"), edit(4..4, "y")], 4).unwrap();
        let body = Bytes::from_static(b"0123");
        assert_eq!(splice.chunks(&body, &[4, 0]), [Chunk::Unchanged, replaced("xy")]);
        assert_eq!(splice.chunks(&body, &[1, 3]), [Chunk::Unchanged, replaced("123xy")]);
        assert_eq!(splice.chunks(&body, &[4, 0, 0]), [Chunk::Unchanged, Chunk::Unchanged, replaced("xy")]);
    }

    #[test]
    fn an_insertion_at_a_boundary_goes_into_the_chunk_that_begins_there() {
        let splice = Splice::new(vec![edit(2..2, "x")], 4).unwrap();
        let body = Bytes::from_static(b"0123");
        assert_eq!(splice.chunks(&body, &[2, 0, 2]), [Chunk::Unchanged, Chunk::Unchanged, replaced("x23")]);
    }

    #[test]
    fn a_body_without_edits_is_not_copied() {
        let splice = Splice::new(Vec::new(), 4).unwrap();
        let body = Bytes::from_static(b"0123");
        assert_eq!(splice.apply(&body).as_ptr(), body.as_ptr());
        assert_eq!(splice.chunks(&body, &[0, 4]), [Chunk::Unchanged, Chunk::Unchanged]);
    }

    #[test]
    fn edits_that_overlap_or_do_not_fit_are_refused() {
        let overlap = Splice::new(vec![edit(3..5, ""), edit(1..4, "")], 10);
        assert_eq!(overlap, Err(SpliceError::Overlap { first: 1..4, second: 3..5 }));
        let beyond = Splice::new(vec![edit(3..11, "")], 10);
        assert_eq!(beyond, Err(SpliceError::OutOfBounds { span: 3..11, body_len: 10 }));
        #[expect(clippy::reversed_empty_ranges, reason = "a reversed range is what is refused")]
        let reversed = Splice::new(vec![edit(5..3, "")], 10);
        assert!(matches!(reversed, Err(SpliceError::OutOfBounds { .. })));
    }

    /// A body, edits of it that do not overlap, and a chunking of it.
    fn spliced_body() -> impl Strategy<Value = (Vec<u8>, Vec<Edit>, Vec<usize>)> {
        prop::collection::vec(any::<u8>(), 0..40).prop_flat_map(|body| {
            let len = body.len();
            let cuts = || prop::collection::vec(0..=len, 0..8);
            let replacement = prop::sample::select(vec!["", "x", "longer than what was there"]);
            (Just(body), cuts(), prop::collection::vec(replacement, 4), cuts()).prop_map(
                move |(body, mut bounds, replacements, mut cuts)| {
                    bounds.sort_unstable();
                    let spans = bounds.chunks_exact(2).map(|pair| pair[0]..pair[1]);
                    let edits = spans.zip(replacements).map(|(span, replacement)| edit(span, replacement)).collect();
                    cuts.push(len);
                    cuts.sort_unstable();
                    let starts = std::iter::once(0).chain(cuts.clone());
                    let lengths = cuts.iter().zip(starts).map(|(end, start)| end - start).collect();
                    (body, edits, lengths)
                },
            )
        })
    }

    #[test]
    fn a_later_edit_may_lie_in_what_an_earlier_one_put_there() {
        let body = Bytes::from_static(b"0123456789");
        let first = Splice::new(vec![edit(2..4, "xyz"), edit(8..8, "!")], 10).unwrap();
        assert_eq!(first.apply(&body), "01xyz4567!89");
        let both = first.then(vec![edit(3..4, "Y"), edit(5..7, ""), edit(12..12, "$")]).unwrap();
        assert_eq!(both.apply(&body), "01xYz67!89$");
        assert_eq!(first.then(Vec::new()).unwrap().apply(&body), first.apply(&body));
        assert!(first.then(vec![edit(12..13, "")]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        #[test]
        fn one_splice_after_another_is_one_splice(
            (body, edits, lengths) in spliced_body(),
            cuts in prop::collection::vec(0..100_usize, 0..6),
        ) {
            let body = Bytes::from(body);
            let first = Splice::new(edits, body.len()).unwrap();
            let between = first.apply(&body);
            let mut bounds: Vec<_> = cuts.into_iter().map(|cut| cut % (between.len() + 1)).collect();
            bounds.sort_unstable();
            let later: Vec<_> = bounds.chunks_exact(2).map(|pair| edit(pair[0]..pair[1], "later")).collect();
            let expected = Splice::new(later.clone(), between.len()).unwrap().apply(&between);

            let both = first.then(later).unwrap();
            prop_assert_eq!(both.apply(&body), expected.clone());
            prop_assert_eq!(both.spliced_len(), expected.len());
            prop_assert_eq!(Splice::new(both.edits.clone(), body.len()).unwrap(), both.clone());
            let mut joined = Vec::new();
            let mut offset = 0;
            for (answer, length) in both.chunks(&body, &lengths).iter().zip(&lengths) {
                match answer {
                    Chunk::Unchanged => joined.extend_from_slice(&body[offset..offset + length]),
                    Chunk::Replaced(bytes) => joined.extend_from_slice(bytes),
                }
                offset += length;
            }
            prop_assert_eq!(joined, expected);
        }

        #[test]
        fn the_chunks_put_together_are_the_spliced_body((body, edits, lengths) in spliced_body()) {
            let splice = Splice::new(edits.clone(), body.len()).unwrap();
            let body = Bytes::from(body);

            let mut naive = body.to_vec();
            for edit in edits.into_iter().rev() {
                naive.splice(edit.span, edit.replacement);
            }
            prop_assert_eq!(splice.apply(&body), naive.clone());
            prop_assert_eq!(splice.spliced_len(), naive.len());

            let answers = splice.chunks(&body, &lengths);
            prop_assert_eq!(answers.len(), lengths.len());
            let mut offset = 0;
            let mut joined = Vec::new();
            for (answer, length) in answers.iter().zip(&lengths) {
                match answer {
                    Chunk::Unchanged => joined.extend_from_slice(&body[offset..offset + length]),
                    Chunk::Replaced(bytes) => joined.extend_from_slice(bytes),
                }
                offset += length;
            }
            prop_assert_eq!(joined, naive);
        }
    }
}
