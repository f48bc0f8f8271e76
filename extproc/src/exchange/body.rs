//! A request body as it arrives: its bytes in one piece, without its content codings, and the chunks it came in.
//!
//! A plain body that comes as one chunk is never copied.
//! Of an encoded one only what is decoded is kept: where nothing has to be changed, the proxy sends on what it has itself.

use attache_proto::encoding::{Bound, Coding, Codings, DecodeError, Decoder, UnknownCoding};
use attache_proto::splice::Splice;
use attache_proto::{ApiError, Dialect, ErrorKind, Operation};
use bytes::Bytes;

use super::chunks::{self, Answers, Chunks};
use super::event::{Headers, LocalResponse};

/// Collects a body.
#[derive(Debug)]
pub(super) struct BodyBuffer {
    whole: Held,
    chunks: Chunks,
    received_bytes: u64,
    cap_bytes: u64,
    decoder: Option<Decoder>,
}

#[derive(Debug, Default)]
enum Held {
    #[default]
    Nothing,
    One(Bytes),
    Joined(Vec<u8>),
}

/// Why a body is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BodyRefused {
    /// It is above the cap, as it came or decoded.
    TooLarge(u64),
    /// It comes in more chunks than so many.
    TooManyChunks(u64),
    /// Its coding lies.
    Broken(DecodeError),
    /// Nobody here can read its coding.
    Unknown(UnknownCoding),
}

impl BodyBuffer {
    /// Of a request with these headers, that may have a body of so many bytes. What passes through may be in a coding that nobody
    /// here can read.
    ///
    /// # Errors
    /// [`BodyRefused::Unknown`].
    pub(super) fn new(headers: &Headers, operation: Operation, cap_bytes: u64) -> Result<Self, BodyRefused> {
        let codings = headers.iter().filter(|(name, _)| *name == "content-encoding").map(|(_, value)| value);
        let codings = match Codings::parse(codings) {
            Err(_) if operation == Operation::PassThrough => Codings::default(),
            codings => codings.map_err(BodyRefused::Unknown)?,
        };
        let decoder = (!codings.is_identity()).then(|| Decoder::bounded(codings, Bound::bytes(cap_bytes)));
        Ok(Self { whole: Held::Nothing, chunks: Chunks::default(), received_bytes: 0, cap_bytes, decoder })
    }

    /// Adds the next chunk.
    ///
    /// # Errors
    /// As soon as it is clear that the body cannot be taken.
    pub(super) fn push(&mut self, chunk: Bytes) -> Result<(), BodyRefused> {
        let Self { whole, cap_bytes, .. } = self;
        self.chunks.push(chunk.len());
        self.received_bytes = self.received_bytes.saturating_add(chunk.len() as u64);
        if self.received_bytes > *cap_bytes {
            return Err(BodyRefused::TooLarge(*cap_bytes));
        }
        let most_chunks = chunks::at_most(*cap_bytes);
        if self.chunks.count() > most_chunks {
            return Err(BodyRefused::TooManyChunks(most_chunks));
        }
        match &mut self.decoder {
            Some(decoder) => {
                decoder.feed(&chunk, |piece| whole.append(piece, *cap_bytes)).map_err(|error| match error {
                    DecodeError::TooLong(_) => BodyRefused::TooLarge(*cap_bytes),
                    error => BodyRefused::Broken(error),
                })
            }
            None => {
                whole.push(chunk, *cap_bytes);
                Ok(())
            }
        }
    }

    /// The body is complete.
    ///
    /// # Errors
    /// [`BodyRefused::Broken`] if its encoded data is not.
    pub(super) fn finish(self) -> Result<RequestBody, BodyRefused> {
        let wire = match self.decoder {
            Some(decoder) => {
                decoder.finish().map_err(BodyRefused::Broken)?;
                Wire::Encoded
            }
            None => Wire::Plain,
        };
        let bytes = match self.whole {
            Held::Nothing => Bytes::new(),
            Held::One(bytes) => bytes,
            Held::Joined(bytes) => bytes.into(),
        };
        Ok(RequestBody { bytes, chunks: self.chunks, wire })
    }
}

impl Held {
    /// Adds a chunk, which is not copied if it is the first.
    fn push(&mut self, chunk: Bytes, cap_bytes: u64) {
        match self {
            _ if chunk.is_empty() => {}
            Self::Nothing => *self = Self::One(chunk),
            Self::One(_) | Self::Joined(_) => self.append(&chunk, cap_bytes),
        }
    }

    /// Adds bytes. What is set aside doubles each time, but not beyond the cap.
    fn append(&mut self, bytes: &[u8], cap_bytes: u64) {
        let (mut joined, first) = match std::mem::take(self) {
            Self::Nothing => (Vec::new(), Bytes::new()),
            Self::One(first) => (Vec::new(), first),
            Self::Joined(joined) => (joined, Bytes::new()),
        };
        let needed = joined.len() + first.len() + bytes.len();
        if joined.capacity() < needed {
            let most = usize::try_from(cap_bytes).unwrap_or(usize::MAX).max(needed);
            joined.reserve_exact(needed.saturating_mul(2).min(most) - joined.len());
        }
        joined.extend_from_slice(&first);
        joined.extend_from_slice(bytes);
        *self = Self::Joined(joined);
    }
}

/// A body that is complete.
#[derive(Debug)]
pub(super) struct RequestBody {
    /// Its bytes, decoded.
    pub(super) bytes: Bytes,
    chunks: Chunks,
    wire: Wire,
}

/// How it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Plain,
    Encoded,
}

impl RequestBody {
    /// The answers to the chunks in which it came.
    ///
    /// An encoded body that is changed goes on unencoded. The first chunk's answer has all of it, as what is decoded knows no
    /// chunks; the others go on empty.
    pub(super) fn answers(self, splice: &Splice) -> Answers {
        match self.wire {
            _ if splice.is_empty() => self.chunks.unchanged(),
            Wire::Plain => self.chunks.spliced(&self.bytes, splice),
            Wire::Encoded => self.chunks.replaced(splice.apply(&self.bytes)),
        }
    }
}

impl BodyRefused {
    /// What the client is told.
    pub(super) fn response(&self, dialect: Dialect) -> LocalResponse {
        let invalid = |message| ApiError::new(ErrorKind::InvalidRequest, message);
        match self {
            Self::TooLarge(cap_bytes) => {
                let message = format!("the request body is larger than {cap_bytes} bytes");
                let error = ApiError::new(ErrorKind::RequestTooLarge, message);
                LocalResponse::error(&error, dialect, "body_too_large")
            }
            Self::TooManyChunks(most) => {
                let message = format!("the request body comes in more than {most} pieces; send it in larger ones");
                let error = ApiError::new(ErrorKind::RequestTooLarge, message);
                LocalResponse::error(&error, dialect, "body_too_large")
            }
            Self::Broken(error) => {
                let error = invalid(format!("the request body is not what its content-encoding says: {error}"));
                LocalResponse::error(&error, dialect, "encoded_body")
            }
            Self::Unknown(unknown) => {
                let error = invalid(format!("{unknown}; send the body as {}, or unencoded", Coding::NAMES));
                // RFC 9110, section 15.5.16: so that the client can tell which part of the request it was, and try again.
                let headers = vec![("accept-encoding", Coding::NAMES.to_owned())];
                LocalResponse { status: 415, headers, ..LocalResponse::error(&error, dialect, "encoded_body") }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use attache_proto::splice::{Chunk, Edit};

    use super::*;

    const CAP_BYTES: u64 = 1_000;

    fn buffer(codings: &[&str]) -> Result<BodyBuffer, BodyRefused> {
        let header = |value: &&str| ("content-encoding".to_owned(), Bytes::copy_from_slice(value.as_bytes()));
        BodyBuffer::new(&Headers(codings.iter().map(header).collect()), Operation::ChatCompletions, CAP_BYTES)
    }

    fn collect(codings: &[&str], chunks: &[&[u8]]) -> Result<RequestBody, BodyRefused> {
        let mut body = buffer(codings)?;
        chunks.iter().try_for_each(|chunk| body.push(Bytes::copy_from_slice(chunk)))?;
        body.finish()
    }

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn replaced(bytes: &'static [u8]) -> Chunk {
        Chunk::Replaced(Bytes::from_static(bytes))
    }

    #[test]
    fn chunks_join_in_order_and_each_has_an_answer() {
        let body = collect(&[], &[b"ab", b"", b"cde", b"f", b""]).unwrap();
        assert_eq!(body.bytes, "abcdef");
        let splice = Splice::new(vec![Edit { span: 3..4, replacement: Bytes::from_static(b"!") }], 6).unwrap();
        let answers = [Chunk::Unchanged, Chunk::Unchanged, replaced(b"c!e"), Chunk::Unchanged, Chunk::Unchanged];
        assert_eq!(body.answers(&splice).collect::<Vec<_>>(), answers);
    }

    #[test]
    fn a_single_chunk_is_not_copied() {
        let chunk = Bytes::from(vec![7; 64]);
        let mut body = buffer(&["identity"]).unwrap();
        body.push(chunk.clone()).unwrap();
        body.push(Bytes::new()).unwrap();
        assert_eq!(body.finish().unwrap().bytes.as_ptr(), chunk.as_ptr());
    }

    #[test]
    fn an_encoded_body_goes_on_as_it_came_or_all_of_it_unencoded() {
        let encoded = gzip(b"abcdef");
        let (first, rest) = encoded.split_at(9);
        let body = || collect(&["GZip"], &[first, rest, b""]).unwrap();
        assert_eq!(body().bytes, "abcdef");
        let answers = |edits| body().answers(&Splice::new(edits, 6).unwrap()).collect::<Vec<_>>();
        assert_eq!(answers(vec![]), [const { Chunk::Unchanged }; 3]);
        let edit = Edit { span: 3..4, replacement: Bytes::from_static(b"!") };
        assert_eq!(answers(vec![edit]), [replaced(b"abc!ef"), replaced(b""), replaced(b"")]);
    }

    #[test]
    fn a_body_is_refused_above_the_cap_as_it_came_or_decoded() {
        let too_large = BodyRefused::TooLarge(CAP_BYTES);
        assert_eq!(collect(&[], &[&[b'x'; 1_000]]).unwrap().bytes.len(), 1_000);
        assert_eq!(collect(&[], &[&[b'x'; 900], &[b'x'; 101]]).unwrap_err(), too_large);
        assert_eq!(collect(&["gzip"], &[&gzip(&[b'x'; 1_000])]).unwrap().bytes.len(), 1_000);
        // In the middle of it.
        let mut body = buffer(&["gzip"]).unwrap();
        let bomb = gzip(&[b'x'; 100_000]);
        assert_eq!(body.push(Bytes::copy_from_slice(&bomb[..bomb.len() - 20])), Err(too_large.clone()));
        // 2,000 bytes that stand for none.
        let empty = gzip(b"").repeat(100);
        assert_eq!(collect(&["gzip"], &[&empty]).unwrap_err(), too_large);
    }

    #[test]
    fn a_body_is_refused_that_comes_in_very_many_chunks() {
        let most = chunks::at_most(CAP_BYTES);
        let mut body = buffer(&[]).unwrap();
        for number in 0..most {
            body.push(Bytes::from_static(if number < CAP_BYTES { b"x" } else { b"" })).unwrap();
        }
        let refused = body.push(Bytes::new()).unwrap_err();
        assert_eq!((most, &refused), (4_111, &BodyRefused::TooManyChunks(most)));
        let response = refused.response(Dialect::OpenAi);
        assert_eq!((response.status, response.reason), (413, "body_too_large"));
        assert!(response.body.contains("more than 4111 pieces; send it in larger ones"), "{}", response.body);
    }

    #[test]
    fn no_more_is_set_aside_than_the_cap() {
        let mut held = Held::default();
        for _ in 0..100 {
            held.append(&[7; 10], CAP_BYTES);
        }
        let Held::Joined(joined) = held else { panic!("it was joined") };
        assert_eq!((joined.len(), joined.capacity()), (1_000, 1_000));
    }

    #[test]
    fn what_lies_or_is_unknown_is_refused_with_a_way_out() {
        let broken = collect(&["gzip"], &[b"{}"]).unwrap_err().response(Dialect::OpenAi);
        assert_eq!((broken.status, broken.reason, broken.headers.len()), (400, "encoded_body", 0));
        assert!(broken.body.contains("not what its content-encoding says: it is not valid gzip"), "{}", broken.body);
        let encoded = gzip(b"{}");
        let cut = collect(&["gzip"], &[&encoded[..encoded.len() - 1]]).unwrap_err().response(Dialect::Anthropic);
        assert!(cut.body.contains("it ends in the middle of its gzip data"), "{}", cut.body);

        let unknown = collect(&["gzip", "lzma"], &[]).unwrap_err().response(Dialect::OpenAi);
        assert_eq!((unknown.status, unknown.reason), (415, "encoded_body"));
        assert_eq!(unknown.headers, [("accept-encoding", "gzip, br, zstd, deflate".to_owned())]);
        assert!(unknown.body.contains("`lzma` is not understood here; send the body as gzip, br"), "{}", unknown.body);
    }
}
