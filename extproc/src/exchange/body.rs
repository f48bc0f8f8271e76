//! A request body as it arrives: its bytes in one piece, and the chunks it came in. What it holds is claimed of the memory that all
//! bodies share.
//!
//! A plain body that comes as one chunk is never copied. An encoded one is decoded when it is complete: until then it takes what was
//! sent, not what that stands for. Where nothing has to be changed, the proxy sends on what it has itself.

use attache_proto::encoding::{Bound, Coding, Codings, DecodeError, Decoder, UnknownCoding};
use attache_proto::splice::Splice;
use attache_proto::{ApiError, Dialect, ErrorKind, Operation};
use bytes::Bytes;

use super::body_memory::{Claim, NoMemory};
use super::chunks::{self, Answers, Chunks};
use super::event::{Headers, LocalResponse};

/// What a request takes besides its headers and its body until it has gone on: its stream, its plan, the hashes of its prompt.
const REQUEST_BYTES: u64 = 16 * 1024;

/// So much of an encoded body is decoded between two looks at what that takes.
const DECODED_AT_ONCE_BYTES: usize = 16 * 1024;

/// Collects a body.
#[derive(Debug)]
pub(super) struct BodyBuffer {
    whole: Held,
    chunks: Chunks,
    received_bytes: u64,
    cap_bytes: u64,
    codings: Codings,
    /// What was claimed before the first byte of it.
    base_bytes: u64,
    claim: Claim,
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
    /// Others hold what it would take.
    NoMemory(NoMemory),
}

impl From<NoMemory> for BodyRefused {
    fn from(error: NoMemory) -> Self {
        Self::NoMemory(error)
    }
}

impl BodyBuffer {
    /// Of a request with these headers, that may have a body of so many bytes. What passes through may be in a coding that nobody
    /// here can read.
    ///
    /// # Errors
    /// [`BodyRefused::Unknown`], [`BodyRefused::NoMemory`].
    pub(super) fn new(
        headers: &Headers,
        operation: Operation,
        cap_bytes: u64,
        mut claim: Claim,
    ) -> Result<Self, BodyRefused> {
        let codings = headers.iter().filter(|(name, _)| *name == "content-encoding").map(|(_, value)| value);
        let codings = match Codings::parse(codings) {
            Err(_) if operation == Operation::PassThrough => Codings::default(),
            codings => codings.map_err(BodyRefused::Unknown)?,
        };
        let of_headers: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        let base_bytes = REQUEST_BYTES.saturating_add(of_headers as u64);
        claim.resize(base_bytes)?;
        let (whole, chunks) = (Held::Nothing, Chunks::default());
        Ok(Self { whole, chunks, received_bytes: 0, cap_bytes, codings, base_bytes, claim })
    }

    /// Claims so many bytes before they come, as they will all at once.
    ///
    /// # Errors
    /// [`BodyRefused::NoMemory`].
    pub(super) fn expect(&mut self, body_bytes: u64) -> Result<(), BodyRefused> {
        Ok(self.claim.resize(self.base_bytes.saturating_add(body_bytes.min(self.cap_bytes)))?)
    }

    /// Adds the next chunk.
    ///
    /// # Errors
    /// As soon as it is clear that the body cannot be taken.
    pub(super) fn push(&mut self, chunk: Bytes) -> Result<(), BodyRefused> {
        self.chunks.push(chunk.len());
        self.received_bytes = self.received_bytes.saturating_add(chunk.len() as u64);
        if self.received_bytes > self.cap_bytes {
            return Err(BodyRefused::TooLarge(self.cap_bytes));
        }
        let most_chunks = chunks::at_most(self.cap_bytes);
        if self.chunks.count() > most_chunks {
            return Err(BodyRefused::TooManyChunks(most_chunks));
        }
        self.whole.push(chunk, self.cap_bytes);
        let taken = self.whole.memory_bytes().saturating_add(self.chunks.memory_bytes());
        Ok(self.claim.resize(self.base_bytes.saturating_add(taken))?)
    }

    /// The body is complete.
    ///
    /// # Errors
    /// Where it is encoded: all that can be wrong with that, and [`BodyRefused::NoMemory`].
    pub(super) fn finish(mut self) -> Result<RequestBody, BodyRefused> {
        let wire = if self.codings.is_identity() {
            Wire::Plain
        } else {
            self.decode()?;
            Wire::Encoded
        };
        let taken = self.whole.memory_bytes().saturating_add(self.chunks.memory_bytes());
        self.claim.resize(self.base_bytes.saturating_add(taken))?;
        Ok(RequestBody { bytes: self.whole.into_bytes(), chunks: self.chunks, wire, claim: self.claim })
    }

    /// Puts what the body stands for in its place.
    fn decode(&mut self) -> Result<(), BodyRefused> {
        let Self { cap_bytes, base_bytes, claim, .. } = self;
        let mut decoder = Decoder::bounded(std::mem::take(&mut self.codings), Bound::bytes(*cap_bytes));
        let encoded = std::mem::take(&mut self.whole).into_bytes();
        let before = base_bytes.saturating_add(encoded.len() as u64).saturating_add(self.chunks.memory_bytes());
        let mut decoded = Held::default();
        for piece in encoded.chunks(DECODED_AT_ONCE_BYTES) {
            // A few bytes may stand for all that the cap allows.
            let mut room: Result<(), NoMemory> = Ok(());
            let fed = decoder.feed(piece, |piece| {
                room = room.and_then(|()| {
                    let needed = decoded.memory_bytes_with(piece.len(), *cap_bytes);
                    claim.resize(before.saturating_add(needed))?;
                    decoded.append(piece, *cap_bytes);
                    Ok(())
                });
            });
            room?;
            fed.map_err(|error| match error {
                DecodeError::TooLong(_) => BodyRefused::TooLarge(*cap_bytes),
                error => BodyRefused::Broken(error),
            })?;
            claim.resize(before.saturating_add(decoded.memory_bytes()).saturating_add(decoder.memory_bytes()))?;
        }
        decoder.finish().map_err(BodyRefused::Broken)?;
        self.whole = decoded;
        Ok(())
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
            joined.reserve_exact(set_aside(needed, cap_bytes) - joined.len());
        }
        joined.extend_from_slice(&first);
        joined.extend_from_slice(bytes);
        *self = Self::Joined(joined);
    }

    fn memory_bytes(&self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::One(bytes) => bytes.len() as u64,
            Self::Joined(bytes) => bytes.capacity() as u64,
        }
    }

    /// The same once so many bytes more were appended.
    fn memory_bytes_with(&self, more: usize, cap_bytes: u64) -> u64 {
        let (len, capacity) = match self {
            Self::Nothing => (0, 0),
            Self::One(bytes) => (bytes.len(), 0),
            Self::Joined(bytes) => (bytes.len(), bytes.capacity()),
        };
        let needed = len.saturating_add(more);
        if needed <= capacity { capacity as u64 } else { set_aside(needed, cap_bytes) as u64 }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Nothing => Bytes::new(),
            Self::One(bytes) => bytes,
            Self::Joined(bytes) => bytes.into(),
        }
    }
}

/// What is set aside where so much is needed.
fn set_aside(needed: usize, cap_bytes: u64) -> usize {
    let most = usize::try_from(cap_bytes).unwrap_or(usize::MAX).max(needed);
    needed.saturating_mul(2).min(most)
}

/// A body that is complete.
#[derive(Debug)]
pub(super) struct RequestBody {
    /// Its bytes, decoded.
    pub(super) bytes: Bytes,
    chunks: Chunks,
    wire: Wire,
    claim: Claim,
}

/// How it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Plain,
    Encoded,
}

impl RequestBody {
    /// The answers to the chunks in which it came, and the claim on what they take.
    ///
    /// An encoded body that is changed goes on unencoded. The first chunk's answer has all of it, as what is decoded knows no
    /// chunks; the others go on empty.
    pub(super) fn answers(self, splice: &Splice) -> (Answers, Claim) {
        let Self { bytes, chunks, wire, mut claim } = self;
        let answers = match wire {
            _ if splice.is_empty() => chunks.unchanged(),
            Wire::Plain => chunks.spliced(&bytes, splice),
            Wire::Encoded => chunks.replaced(splice.apply(&bytes)),
        };
        // They are copies, and what they are copies of goes with the end of this function.
        claim.force(answers.memory_bytes());
        (answers, claim)
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
            Self::NoMemory(error) => error.response(dialect),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::Arc;

    use attache_proto::splice::{Chunk, Edit};

    use super::*;
    use crate::exchange::body_memory::{BodyMemory, Holder};

    const CAP_BYTES: u64 = 1_000;

    fn buffer(codings: &[&str]) -> Result<BodyBuffer, BodyRefused> {
        let header = |value: &&str| ("content-encoding".to_owned(), Bytes::copy_from_slice(value.as_bytes()));
        let claim = Arc::new(BodyMemory::default()).claim(Holder::nobody());
        BodyBuffer::new(&Headers(codings.iter().map(header).collect()), Operation::ChatCompletions, CAP_BYTES, claim)
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
        assert_eq!(body.answers(&splice).0.collect::<Vec<_>>(), answers);
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
        let answers = |edits| body().answers(&Splice::new(edits, 6).unwrap()).0.collect::<Vec<_>>();
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
        // Of one that breaks off as well.
        let bomb = gzip(&[b'x'; 100_000]);
        assert_eq!(collect(&["gzip"], &[&bomb[..bomb.len() - 20]]).unwrap_err(), too_large);
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

    #[test]
    fn a_body_takes_what_was_sent_until_it_is_complete_and_then_what_that_stands_for() {
        const CAP: u64 = 1 << 20;
        let memory = Arc::new(BodyMemory::new(64 << 20));
        let encodings: [(&str, Vec<u8>); 3] = [
            ("gzip", gzip(&vec![b' '; 1 << 20])),
            ("gzip, gzip", gzip(&gzip(&vec![b' '; 1 << 20]))),
            ("zstd", zstd::encode_all(&vec![b' '; 1 << 20][..], 19).unwrap()),
        ];
        for (codings, encoded) in encodings {
            let headers = Headers(vec![("content-encoding".to_owned(), Bytes::from(codings))]);
            let claim = memory.claim(Holder::nobody());
            let mut body = BodyBuffer::new(&headers, Operation::ChatCompletions, CAP, claim).unwrap();
            let before = memory.in_use_bytes();
            assert!((REQUEST_BYTES..REQUEST_BYTES + 100).contains(&before), "{before}");
            let sent = encoded.len() as u64;
            body.push(encoded.into()).unwrap();
            assert!(memory.in_use_bytes() <= before + sent + 64, "{codings}: {}", memory.in_use_bytes());
            let body = body.finish().unwrap();
            assert_eq!(body.bytes.len(), 1 << 20);
            assert!(memory.in_use_bytes() >= before + (1 << 20), "{codings}: {}", memory.in_use_bytes());
            // The proxy has what goes on as it came; of what is changed there is a copy.
            let edit = Edit { span: 3..4, replacement: Bytes::from_static(b"!") };
            let (answers, claim) = body.answers(&Splice::new(vec![edit], 1 << 20).unwrap());
            assert!(((1 << 20)..(1 << 20) + 100).contains(&memory.in_use_bytes()), "{}", memory.in_use_bytes());
            drop((answers, claim));
            assert_eq!(memory.in_use_bytes(), 0);
        }
    }

    #[test]
    fn what_a_body_stands_for_is_refused_where_there_is_no_memory_for_it() {
        let refused = BodyRefused::NoMemory(NoMemory);
        let body = |memory: &Arc<BodyMemory>, codings: &'static str, body: Vec<u8>| {
            let headers = Headers(vec![("content-encoding".to_owned(), Bytes::from(codings))]);
            let claim = memory.claim(Holder::nobody());
            let mut buffer = BodyBuffer::new(&headers, Operation::ChatCompletions, 1 << 20, claim)?;
            buffer.push(body.into())?;
            buffer.finish()
        };
        // A lone holder gets half of it.
        let memory = Arc::new(BodyMemory::new(1 << 20));
        let half = vec![b' '; (1 << 19) - (REQUEST_BYTES as usize) - 100];
        assert!(body(&memory, "identity", half).is_ok());
        assert_eq!(body(&memory, "identity", vec![b' '; 1 << 19]).unwrap_err(), refused);
        assert_eq!(body(&memory, "gzip", gzip(&vec![b' '; 1 << 19])).unwrap_err(), refused);
        assert_eq!(body(&memory, "gzip, gzip", gzip(&gzip(&vec![b' '; 1 << 19]))).unwrap_err(), refused);
        assert_eq!((memory.in_use_bytes(), memory.refused()), (0, 3));
        let tiny = Arc::new(BodyMemory::new(REQUEST_BYTES));
        assert_eq!(body(&tiny, "identity", Vec::new()).unwrap_err(), refused);
        let response = refused.response(Dialect::Anthropic);
        assert_eq!((response.status, response.reason), (503, "body_memory"));
        assert_eq!(response.headers, [("retry-after", "1".to_owned())]);
    }
}
