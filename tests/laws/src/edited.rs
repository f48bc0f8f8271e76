//! A body and edits of it, put together as the proxy does: chunk by chunk.

use attache_proto::splice::{Chunk, Edit, Splice};
use bytes::Bytes;

use crate::head::Cuts;

/// The edited body. It comes to the same in chunks, and a chunk that nothing is done to is answered as such.
pub(crate) fn edited(edits: Vec<Edit>, body: &[u8], cuts: Cuts) -> Bytes {
    let splice = Splice::new(edits, body.len());
    assert_eq!(splice.as_ref().err(), None, "the edits of a scan are a splice");
    let Ok(splice) = splice else { return Bytes::new() };
    let body = Bytes::copy_from_slice(body);
    let whole = splice.apply(&body);
    assert_eq!(whole.len(), splice.spliced_len());
    let chunks = cuts.chunks(&body);
    let lengths: Vec<_> = chunks.iter().map(|chunk| chunk.len()).collect();
    let answers = splice.chunks(&body, &lengths);
    let pieces: Vec<_> = chunks
        .iter()
        .zip(&answers)
        .map(|(chunk, answer)| match answer {
            Chunk::Unchanged => chunk,
            Chunk::Replaced(bytes) => bytes.as_ref(),
        })
        .collect();
    assert_eq!(answers.len(), chunks.len());
    assert_eq!(pieces.concat(), whole, "the chunks put together are the body");
    if splice.is_empty() {
        assert!(answers.iter().all(|answer| *answer == Chunk::Unchanged), "there is nothing to do");
    }
    whole
}
