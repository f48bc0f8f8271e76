//! The decoders of content codings.

use attache_proto::encoding::{Bound, Coding, DecodeError, Decoder};

use crate::head::Head;

/// As much as is decoded: what repeats itself grows a thousandfold and more.
const BOUND_BYTES: u64 = 1 << 20;

/// The longest piece that a decoder hands on.
const PIECE_BYTES: usize = 16 * 1024;

/// A body decodes to the same, or fails for the same reason, wherever it is cut; within its bound, in short pieces.
pub fn codings(input: &[u8]) {
    let Some((head, body)) = Head::split(input) else { return };
    let Some(coding) = head.one_of(&Coding::ALL) else { return };
    let chunks = head.cuts().chunks(body);
    let (whole, result) = decode(coding, &[body]);
    let (cut, cut_result) = decode(coding, &chunks);
    assert_eq!(cut_result, result, "{coding:?} of {} bytes", body.len());
    match result {
        Ok(()) => assert!(cut == whole, "{coding:?} decodes to something else in chunks"),
        // What was handed on by then is right, but need not be as much.
        Err(_) => assert!(cut.starts_with(&whole) || whole.starts_with(&cut), "{coding:?} differs before its fault"),
    }
}

fn decode(coding: Coding, chunks: &[&[u8]]) -> (Vec<u8>, Result<(), DecodeError>) {
    let mut decoder = Decoder::bounded(coding, Bound::bytes(BOUND_BYTES));
    let mut decoded = Vec::new();
    let mut take = |piece: &[u8]| {
        assert!(piece.len() <= PIECE_BYTES, "a piece of {} bytes", piece.len());
        decoded.extend_from_slice(piece);
    };
    let result = chunks.iter().try_for_each(|chunk| decoder.feed(chunk, &mut take)).and_then(|()| decoder.finish());
    assert!(decoded.len() as u64 <= BOUND_BYTES, "{} bytes", decoded.len());
    (decoded, result)
}
