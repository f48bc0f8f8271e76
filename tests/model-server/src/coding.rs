//! Content codings: how answers are encoded, and how request bodies are decoded.
//!
//! In a stream every event is flushed, so that a client which decodes as it reads gets each one when it is sent. A request's body is decoded for the
//! model alone: the journal keeps the bytes as they were received.

use std::io::{self, Read as _, Write as _};

use axum::http::{
    HeaderMap, HeaderValue,
    header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderName},
};
use bytes::Bytes;
use flate2::{
    Compression,
    read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder},
    write::{DeflateEncoder, GzEncoder, ZlibEncoder},
};

/// Brotli's window, 2^22 bytes, the usual one; its quality is a fast one.
const BROTLI_WINDOW: u32 = 22;
const BROTLI_QUALITY: u32 = 4;
const BROTLI_BUFFER_BYTES: usize = 4 * 1024;

/// A fast level of zstd's.
const ZSTD_LEVEL: i32 = 1;

/// A content coding (RFC 9110, section 8.4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coding {
    /// As it is.
    #[default]
    Identity,
    /// `gzip`.
    Gzip,
    /// `deflate`: DEFLATE in zlib's format, as the RFC wants it.
    Deflate,
    /// `deflate` without zlib's format, as some servers send it.
    RawDeflate,
    /// `br`.
    Brotli,
    /// `zstd`.
    Zstd,
    /// Says `gzip` and is as it is.
    Lie,
    /// Is gzip and does not say so.
    HiddenGzip,
    /// `gzip`, a member for each piece.
    GzipMembers,
    /// `gzip`, and something that is none behind it.
    GzipTrailing,
    /// `gzip` without its last bytes.
    GzipShort,
}

impl Coding {
    /// The coding of the header `x-sim-encode`: a coding's name, `raw-deflate`, one that lies, or `auto` for the best that the request accepts.
    pub(crate) fn asked_for(text: &str, request: &HeaderMap) -> Option<Self> {
        match text {
            "auto" => Some(Self::accepted(request)),
            "raw-deflate" => Some(Self::RawDeflate),
            "lie" => Some(Self::Lie),
            "hidden-gzip" => Some(Self::HiddenGzip),
            "gzip-members" => Some(Self::GzipMembers),
            "gzip-trailing" => Some(Self::GzipTrailing),
            "gzip-short" => Some(Self::GzipShort),
            name => Self::named(name),
        }
    }

    /// The coding with the greatest weight in `accept-encoding` (RFC 9110, section 12.5.3); among equals the one that compresses best.
    fn accepted(request: &HeaderMap) -> Self {
        let mut best = (Self::Identity, 0.0);
        let values = request.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        let accepted: Vec<(&str, f32)> = values.flat_map(|value| value.split(',')).map(weighted).collect();
        for coding in [Self::Zstd, Self::Brotli, Self::Gzip, Self::Deflate] {
            let weight = accepted.iter().find(|(name, _)| Self::named(name) == Some(coding)).map(|(_, weight)| *weight);
            let weight = weight.unwrap_or_default();
            if weight > best.1 {
                best = (coding, weight);
            }
        }
        best.0
    }

    /// The coding that `content-encoding` calls so.
    fn named(name: &str) -> Option<Self> {
        match name {
            "identity" => Some(Self::Identity),
            "gzip" | "x-gzip" => Some(Self::Gzip),
            "deflate" => Some(Self::Deflate),
            "br" => Some(Self::Brotli),
            "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    /// What `content-encoding` says.
    pub(crate) fn header(self) -> Option<(HeaderName, HeaderValue)> {
        let name = match self {
            Self::Identity | Self::HiddenGzip => return None,
            Self::Gzip | Self::Lie | Self::GzipMembers | Self::GzipTrailing | Self::GzipShort => "gzip",
            Self::Deflate | Self::RawDeflate => "deflate",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        };
        Some((CONTENT_ENCODING, HeaderValue::from_static(name)))
    }
}

/// `gzip;q=0.5` as a name and a weight.
fn weighted(item: &str) -> (&str, f32) {
    match item.split_once(';') {
        Some((name, weight)) => {
            let weight = weight.trim().strip_prefix("q=").and_then(|weight| weight.parse().ok());
            (name.trim(), weight.unwrap_or_default())
        }
        None => (item.trim(), 1.0),
    }
}

/// How gzip ends.
#[derive(Clone, Copy)]
pub(crate) enum Tail {
    Right,
    Trailing,
    Missing,
}

/// What is behind gzip that has something behind it.
const GARBAGE: &[u8] = b"\0\0 none of it";

/// A body's encoder, which gives all of its input at once.
pub(crate) enum Encoder {
    Identity,
    Gzip(GzEncoder<Vec<u8>>, Tail),
    GzipMembers,
    Deflate(ZlibEncoder<Vec<u8>>),
    RawDeflate(DeflateEncoder<Vec<u8>>),
    Brotli(Box<brotli::CompressorWriter<Vec<u8>>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Encoder {
    pub(crate) fn new(coding: Coding) -> io::Result<Self> {
        let fast = Compression::fast();
        Ok(match coding {
            Coding::Identity | Coding::Lie => Self::Identity,
            Coding::Gzip | Coding::HiddenGzip => Self::Gzip(GzEncoder::new(Vec::new(), fast), Tail::Right),
            Coding::GzipTrailing => Self::Gzip(GzEncoder::new(Vec::new(), fast), Tail::Trailing),
            Coding::GzipShort => Self::Gzip(GzEncoder::new(Vec::new(), fast), Tail::Missing),
            Coding::GzipMembers => Self::GzipMembers,
            Coding::Deflate => Self::Deflate(ZlibEncoder::new(Vec::new(), fast)),
            Coding::RawDeflate => Self::RawDeflate(DeflateEncoder::new(Vec::new(), fast)),
            Coding::Brotli => Self::Brotli(Box::new(brotli::CompressorWriter::new(
                Vec::new(),
                BROTLI_BUFFER_BYTES,
                BROTLI_QUALITY,
                BROTLI_WINDOW,
            ))),
            Coding::Zstd => Self::Zstd(zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL)?),
        })
    }

    /// The encoded bytes, flushed: the receiver can decode all of the input from them.
    pub(crate) fn encode(&mut self, bytes: &[u8]) -> io::Result<Bytes> {
        macro_rules! flushed {
            ($encoder:expr) => {{
                $encoder.write_all(bytes)?;
                $encoder.flush()?;
                Ok(std::mem::take($encoder.get_mut()).into())
            }};
        }
        match self {
            Self::Identity => Ok(Bytes::copy_from_slice(bytes)),
            Self::Gzip(encoder, _) => flushed!(encoder),
            Self::GzipMembers => {
                let mut member = GzEncoder::new(Vec::new(), Compression::fast());
                member.write_all(bytes)?;
                Ok(member.finish()?.into())
            }
            Self::Deflate(encoder) => flushed!(encoder),
            Self::RawDeflate(encoder) => flushed!(encoder),
            Self::Brotli(encoder) => flushed!(encoder),
            Self::Zstd(encoder) => flushed!(encoder),
        }
    }

    /// What follows the last bytes.
    pub(crate) fn finish(self) -> io::Result<Bytes> {
        Ok(match self {
            Self::Identity | Self::GzipMembers | Self::Gzip(_, Tail::Missing) => Bytes::new(),
            Self::Gzip(encoder, Tail::Right) => encoder.finish()?.into(),
            Self::Gzip(encoder, Tail::Trailing) => [&encoder.finish()?, GARBAGE].concat().into(),
            Self::Deflate(encoder) => encoder.finish()?.into(),
            Self::RawDeflate(encoder) => encoder.finish()?.into(),
            Self::Brotli(encoder) => encoder.into_inner().into(),
            Self::Zstd(encoder) => encoder.finish()?.into(),
        })
    }
}

/// A request's body that cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("the content coding `{0}` is not supported")]
    Unsupported(String),
    #[error("the request's body is not what its content-encoding says: {0}")]
    Broken(#[from] io::Error),
    #[error("the request's body is larger than {0} bytes when it is decoded")]
    TooLarge(usize),
}

/// Undoes the codings of `content-encoding`, the last one first.
pub(crate) fn decoded(body: Bytes, headers: &HeaderMap, max_bytes: usize) -> Result<Bytes, DecodeError> {
    let values = headers.get_all(CONTENT_ENCODING).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    let names: Vec<String> =
        values.flat_map(|value| value.split(',').map(|name| name.trim().to_lowercase()).collect::<Vec<_>>()).collect();
    let mut body = body;
    for name in names.iter().rev() {
        let coding = Coding::named(name).ok_or_else(|| DecodeError::Unsupported(name.clone()))?;
        body = undone(body, coding, max_bytes)?;
    }
    Ok(body)
}

fn undone(body: Bytes, coding: Coding, max_bytes: usize) -> Result<Bytes, DecodeError> {
    let bytes = body.as_ref();
    let limited = |reader: &mut dyn io::Read| {
        let mut decoded = Vec::new();
        reader.take(max_bytes as u64 + 1).read_to_end(&mut decoded)?;
        if decoded.len() > max_bytes { Err(DecodeError::TooLarge(max_bytes)) } else { Ok(decoded.into()) }
    };
    match coding {
        Coding::Identity | Coding::Lie => Ok(body),
        Coding::Gzip | Coding::HiddenGzip | Coding::GzipMembers | Coding::GzipTrailing | Coding::GzipShort => {
            limited(&mut MultiGzDecoder::new(bytes))
        }
        Coding::Deflate => match limited(&mut ZlibDecoder::new(bytes)) {
            Err(DecodeError::Broken(_)) => limited(&mut DeflateDecoder::new(bytes)),
            outcome => outcome,
        },
        Coding::RawDeflate => limited(&mut DeflateDecoder::new(bytes)),
        Coding::Brotli => limited(&mut brotli::Decompressor::new(bytes, BROTLI_BUFFER_BYTES)),
        Coding::Zstd => limited(&mut zstd::stream::read::Decoder::new(bytes)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Coding; 5] = [Coding::Gzip, Coding::Deflate, Coding::RawDeflate, Coding::Brotli, Coding::Zstd];

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    fn encoded(coding: Coding, bytes: &[u8]) -> Bytes {
        let mut encoder = Encoder::new(coding).unwrap();
        [encoder.encode(bytes).unwrap(), encoder.finish().unwrap()].concat().into()
    }

    #[test]
    fn what_is_encoded_is_decoded_to_the_same() {
        for coding in ALL {
            let text = "Hello! ".repeat(1_000);
            let bytes = encoded(coding, text.as_bytes());
            assert!(bytes.len() < 200, "{coding:?}");
            let headers = HeaderMap::from_iter(coding.header());
            assert_eq!(decoded(bytes, &headers, 10_000).unwrap(), text, "{coding:?}");
        }
    }

    #[test]
    fn every_flush_can_be_read_at_once() {
        for coding in ALL {
            let mut encoder = Encoder::new(coding).unwrap();
            let first = encoder.encode(b"data: 1\n\n").unwrap();
            let mut reader: Box<dyn io::Read> = match coding {
                Coding::Gzip => Box::new(MultiGzDecoder::new(&first[..])),
                Coding::Deflate => Box::new(ZlibDecoder::new(&first[..])),
                Coding::Brotli => Box::new(brotli::Decompressor::new(&first[..], 64)),
                Coding::Zstd => Box::new(zstd::stream::read::Decoder::new(&first[..]).unwrap()),
                _ => Box::new(DeflateDecoder::new(&first[..])),
            };
            let mut text = [0; 9];
            reader.read_exact(&mut text).unwrap();
            assert_eq!(&text, b"data: 1\n\n", "{coding:?}");
        }
    }

    #[test]
    fn auto_takes_what_weighs_most_and_nothing_that_is_not_accepted() {
        for (accepted, coding) in [
            ("gzip, deflate", Coding::Gzip),
            ("gzip, deflate, br, zstd", Coding::Zstd),
            ("br;q=0.5, gzip;q=0.8", Coding::Gzip),
            ("zstd;q=0, br;q=0.0", Coding::Identity),
            ("identity", Coding::Identity),
            ("*", Coding::Identity),
        ] {
            assert_eq!(Coding::asked_for("auto", &headers(ACCEPT_ENCODING, accepted)), Some(coding), "{accepted}");
        }
        assert_eq!(Coding::asked_for("auto", &HeaderMap::new()), Some(Coding::Identity));
        assert_eq!(Coding::asked_for("lzma", &HeaderMap::new()), None);
    }

    #[test]
    fn codings_are_undone_in_reverse_and_what_cannot_be_is_an_error() {
        let twice = encoded(Coding::Zstd, &encoded(Coding::Gzip, b"Hi"));
        assert_eq!(decoded(twice.clone(), &headers(CONTENT_ENCODING, "gzip, ZSTD"), 10_000).unwrap(), "Hi");
        let outcome = |body: &Bytes, name: &str| decoded(body.clone(), &headers(CONTENT_ENCODING, name), 10_000);
        assert!(matches!(outcome(&twice, "gzip"), Err(DecodeError::Broken(_))));
        assert!(matches!(outcome(&twice, "lzma"), Err(DecodeError::Unsupported(name)) if name == "lzma"));
        let bomb = encoded(Coding::Gzip, &[0; 10_001]);
        assert!(matches!(outcome(&bomb, "gzip"), Err(DecodeError::TooLarge(10_000))));
    }
}
