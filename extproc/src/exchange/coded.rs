//! A body that says it is encoded: what of it can be decoded, and what to make of it where that is not true.
//!
//! A label may be wrong. Its first bytes tell: what begins with so much text is not encoded, and is read as it is. What breaks
//! later is broken, and only what was decoded before is known.

use attache_proto::encoding::{DecodeError, Decoder};
use bytes::{Bytes, BytesMut};

use super::body_memory::{Claim, NoMemory};

/// A body in some codings.
#[derive(Debug)]
pub(super) struct Coded {
    decoder: Decoder,
    head: Head,
    /// All that came, while that is too short to tell what it is.
    opening: Option<BytesMut>,
    /// On what the decoder takes.
    claim: Option<Claim>,
}

/// Why a body cannot be read as its label says.
#[derive(Debug)]
pub(super) enum Undecodable {
    /// It is not encoded; these are its bytes so far, of which none was decoded.
    Plain(Bytes),
    /// It is neither that nor what its label says.
    Broken(DecodeError),
    /// There is no memory for what its decoder takes.
    NoMemory,
}

impl Coded {
    pub(super) fn new(decoder: Decoder) -> Self {
        Self { decoder, head: Head::default(), opening: Some(BytesMut::new()), claim: None }
    }

    /// From now on it takes no more memory than there is for it.
    pub(super) fn hold(&mut self, claim: Claim) -> Result<(), NoMemory> {
        self.claim.insert(claim).resize(self.decoder.memory_bytes())
    }

    /// Decodes a chunk.
    pub(super) fn feed(&mut self, chunk: &[u8], sink: impl FnMut(&[u8])) -> Result<(), Undecodable> {
        let Some(mut opening) = self.opening.take() else {
            return self.decode(chunk, sink);
        };
        self.head.extend(chunk);
        opening.extend_from_slice(chunk);
        match (self.head.is_text(), self.head.is_full()) {
            (true, true) => Err(Undecodable::Plain(opening.freeze())),
            (true, false) => {
                self.opening = Some(opening);
                Ok(())
            }
            (false, _) => self.decode(&opening, sink),
        }
    }

    fn decode(&mut self, bytes: &[u8], sink: impl FnMut(&[u8])) -> Result<(), Undecodable> {
        self.decoder.feed(bytes, sink).map_err(Undecodable::Broken)?;
        match &mut self.claim {
            Some(claim) => claim.resize(self.decoder.memory_bytes()).map_err(|NoMemory| Undecodable::NoMemory),
            None => Ok(()),
        }
    }

    /// The body is over. One that is too short to tell is what it says if it can be decoded.
    pub(super) fn finish(&mut self, mut sink: impl FnMut(&[u8])) -> Result<(), Undecodable> {
        let Some(opening) = self.opening.take() else {
            return self.decoder.finish().map_err(Undecodable::Broken);
        };
        let mut decoded = BytesMut::new();
        let fed = self.decoder.feed(&opening, |piece| decoded.extend_from_slice(piece));
        match fed.and_then(|()| self.decoder.finish()) {
            Ok(()) => {
                sink(&decoded);
                Ok(())
            }
            Err(_) => Err(Undecodable::Plain(opening.freeze())),
        }
    }
}

/// The first bytes of a body: enough to tell text from what is encoded.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Head {
    /// Of bytes that say nothing, four of ten may be text: so many in a row are once in 10^12 bodies.
    bytes: [u8; 32],
    len: usize,
}

impl Head {
    pub(super) fn extend(&mut self, chunk: &[u8]) {
        for (kept, byte) in self.bytes.iter_mut().skip(self.len).zip(chunk) {
            *kept = *byte;
            self.len += 1;
        }
    }

    /// Whether it is UTF-8 without control characters, as JSON and events are. No beginning of gzip's, zlib's and zstd's frames is.
    pub(super) fn is_text(&self) -> bool {
        let bytes = self.bytes.get(..self.len).unwrap_or_default();
        let is_utf8 = std::str::from_utf8(bytes).map_or_else(|error| error.error_len().is_none(), |_| true);
        is_utf8 && bytes.iter().all(|byte| !byte.is_ascii_control() || byte.is_ascii_whitespace())
    }

    fn is_full(&self) -> bool {
        self.len == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use attache_proto::encoding::Codings;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    fn head(bytes: &[u8]) -> Head {
        let mut head = Head::default();
        bytes.chunks(3).for_each(|chunk| head.extend(chunk));
        head
    }

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(data: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn text_is_told_from_what_is_encoded() {
        for text in ["", "data: {}\r\n\r\n", "\t{\"a\":1}", "\u{feff}data: 1", &"é".repeat(40), &"€".repeat(40)] {
            assert!(head(text.as_bytes()).is_text(), "{text}");
        }
        let data = b"data: {\"choices\":[]}\n\n".repeat(20);
        for encoded in [gzip(&data), zlib(&data), zstd::encode_all(&data[..], 1).unwrap(), vec![0x1f]] {
            assert!(!head(&encoded).is_text(), "{encoded:?}");
        }
    }

    /// What is read of a body in chunks of so many bytes: its text, and how it ends.
    fn read(coding: &str, body: &[u8], size: usize) -> (Vec<u8>, Result<(), Undecodable>) {
        let mut coded = Coded::new(Decoder::new(Codings::parse([coding.as_bytes()]).unwrap()));
        let mut decoded = Vec::new();
        for chunk in body.chunks(size) {
            let fed = coded.feed(chunk, |piece| decoded.extend_from_slice(piece));
            if fed.is_err() {
                return (decoded, fed);
            }
        }
        let end = coded.finish(|piece| decoded.extend_from_slice(piece));
        (decoded, end)
    }

    #[test]
    fn text_that_says_it_is_encoded_is_given_back_with_all_its_bytes() {
        let streams: [&[u8]; 6] = [
            b"data: {\"id\":\"c-1\",\"choices\":[{\"delta\":{\"content\":\"Hello\"}}]}\n\n",
            b"event: message_start\ndata: {\"type\":\"message_start\"}\n\n",
            b": a comment\n\ndata: {}\n\n",
            b"{\"id\":\"c-1\",\"choices\":[],\"usage\":{}}",
            b"\n{\"usage\":{}}",
            b"{}",
        ];
        for coding in ["gzip", "zstd", "br", "deflate", "gzip, br", "br, gzip"] {
            for body in streams {
                for size in 1..=body.len() {
                    let (decoded, end) = read(coding, body, size);
                    let Err(Undecodable::Plain(bytes)) = end else { panic!("{coding}, {size}, {body:?}: {end:?}") };
                    assert!(decoded.is_empty() && body.starts_with(&bytes), "{coding}, {size}");
                    assert!(bytes == body || bytes.len() >= 32, "{coding}, {size}");
                }
            }
        }
    }

    #[test]
    fn what_is_encoded_is_never_taken_for_text() {
        // Many short streams: their beginnings are as different as they get.
        for number in 0..2_000_u32 {
            let data =
                format!("data: {{\"id\":\"{number:x}\",\"choices\":[{}]}}\n\n", "1,".repeat(number as usize % 50));
            let mut brotli = brotli::CompressorWriter::new(Vec::new(), 4096, number % 12, 22);
            brotli.write_all(data.as_bytes()).unwrap();
            let mut raw = flate2::write::DeflateEncoder::new(Vec::new(), Compression::new(number % 10));
            raw.write_all(data.as_bytes()).unwrap();
            for (coding, body) in [("br", brotli.into_inner()), ("deflate", raw.finish().unwrap())] {
                let (decoded, end) = read(coding, &body, 1 + number as usize % 40);
                assert!(end.is_ok() && decoded == data.as_bytes(), "{coding}: {data}: {end:?}");
            }
        }
    }

    #[test]
    fn what_breaks_off_or_goes_wrong_later_is_broken() {
        let data = b"data: {\"choices\":[]}\n\n".repeat(20);
        let encoded = gzip(&data);
        for (body, error) in [
            (encoded[..encoded.len() - 1].to_vec(), "it ends in the middle of its gzip data"),
            ([&encoded[..], b"data: more\n\n"].concat(), "something follows its gzip data"),
            (b"\x1f\x8b\x09 no gzip".to_vec(), "it is not valid gzip"),
        ] {
            for size in [1, 7, body.len()] {
                let (_, end) = read("gzip", &body, size);
                let Err(Undecodable::Broken(found)) = end else { panic!("{end:?}") };
                assert_eq!(found.to_string(), error);
            }
        }
        // Members one behind the other are one body.
        let (decoded, end) = read("gzip", &[gzip(b"one "), gzip(b""), gzip(b"two")].concat(), 5);
        assert!(decoded == b"one two" && end.is_ok(), "{end:?}");
    }
}
