mod laws;
mod limits;

use std::io::Write as _;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

use super::*;

/// How data is encoded for a coding: `deflate` has two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Gzip,
    Zlib,
    RawDeflate,
    Brotli,
    Zstd,
}

impl Format {
    const ALL: [Self; 5] = [Self::Gzip, Self::Zlib, Self::RawDeflate, Self::Brotli, Self::Zstd];

    fn coding(self) -> Coding {
        match self {
            Self::Gzip => Coding::Gzip,
            Self::Zlib | Self::RawDeflate => Coding::Deflate,
            Self::Brotli => Coding::Brotli,
            Self::Zstd => Coding::Zstd,
        }
    }

    fn encode(self, data: &[u8]) -> Vec<u8> {
        self.encode_flushed(&[data]).0
    }

    /// Encodes the parts and flushes behind each. Returns the offsets behind the flushes as well.
    fn encode_flushed(self, parts: &[&[u8]]) -> (Vec<u8>, Vec<usize>) {
        macro_rules! encode {
            ($encoder:expr, $encoded:ident => $get:expr, $finish:expr) => {{
                let mut encoder = $encoder;
                let mut flushes = Vec::new();
                for part in parts {
                    encoder.write_all(part).unwrap();
                    encoder.flush().unwrap();
                    let $encoded = &encoder;
                    flushes.push($get.len());
                }
                let $encoded = encoder;
                ($finish, flushes)
            }};
        }
        let level = Compression::default();
        match self {
            Self::Gzip => encode!(GzEncoder::new(Vec::new(), level), it => it.get_ref(), it.finish().unwrap()),
            Self::Zlib => encode!(ZlibEncoder::new(Vec::new(), level), it => it.get_ref(), it.finish().unwrap()),
            Self::RawDeflate => {
                encode!(DeflateEncoder::new(Vec::new(), level), it => it.get_ref(), it.finish().unwrap())
            }
            Self::Brotli => {
                encode!(::brotli::CompressorWriter::new(Vec::new(), 4096, 5, 22), it => it.get_ref(), it.into_inner())
            }
            Self::Zstd => {
                encode!(::zstd::Encoder::new(Vec::new(), 3).unwrap(), it => it.get_ref(), it.finish().unwrap())
            }
        }
    }
}

/// Decodes chunk by chunk: what came out, and how it ended.
fn decode<'a>(decoder: &mut Decoder, chunks: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Result<(), DecodeError>) {
    let mut decoded = Vec::new();
    for chunk in chunks {
        let fed = decoder.feed(chunk, |piece| decoded.extend_from_slice(piece));
        if fed.is_err() {
            return (decoded, fed);
        }
    }
    (decoded, decoder.finish())
}

fn decode_whole(format: Format, encoded: &[u8]) -> (Vec<u8>, Result<(), DecodeError>) {
    decode(&mut Decoder::new(format.coding()), [encoded])
}

/// Events of a stream, no two of which are the same.
fn events(count: usize) -> Vec<u8> {
    let event = |index: usize| {
        let text = index.wrapping_mul(0x9e37_79b9) % 1_000_003;
        format!("data: {{\"id\":\"c-1\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" t{text}\"}}}}]}}\n\n")
    };
    (0..count).map(event).collect::<String>().into_bytes()
}

#[test]
fn every_coding_gives_back_what_was_encoded() {
    let data = events(3_000);
    for format in Format::ALL {
        assert_eq!(decode_whole(format, &format.encode(&data)), (data.clone(), Ok(())), "{format:?}");
        assert_eq!(decode_whole(format, &format.encode(b"")), (Vec::new(), Ok(())), "{format:?}");
    }
}

#[test]
fn stacked_codings_are_undone_from_the_last_to_the_first() {
    let data = events(500);
    let codings = Codings::parse([&b"gzip, br, zstd"[..]]).unwrap();
    let encoded = Format::Zstd.encode(&Format::Brotli.encode(&Format::Gzip.encode(&data)));
    assert_eq!(decode(&mut Decoder::new(codings.clone()), [&*encoded]), (data.clone(), Ok(())));
    let (_, end) = decode(&mut Decoder::new(codings), [&encoded[..encoded.len() - 1]]);
    assert_eq!(end, Err(DecodeError::Incomplete(Coding::Zstd)));
}

#[test]
fn without_a_coding_chunks_pass_as_they_are() {
    let mut decoder = Decoder::new(Codings::default());
    assert_eq!(decode(&mut decoder, [&b"ab"[..], b"c"]), (b"abc".to_vec(), Ok(())));
    assert_eq!((decoder.encoded_bytes(), decoder.decoded_bytes(), decoder.work().count()), (3, 3, 0));
}

#[test]
fn a_body_without_a_byte_was_not_encoded() {
    for format in Format::ALL {
        assert_eq!(decode(&mut Decoder::new(format.coding()), []), (Vec::new(), Ok(())));
        assert_eq!(decode_whole(format, b""), (Vec::new(), Ok(())));
    }
}

#[test]
fn all_members_and_frames_are_decoded() {
    for format in [Format::Gzip, Format::Zstd] {
        let joined = [format.encode(b"one "), format.encode(b""), format.encode(b"two")].concat();
        for size in [1, 2, 3, 7, joined.len()] {
            let decoded = decode(&mut Decoder::new(format.coding()), joined.chunks(size));
            assert_eq!(decoded, (b"one two".to_vec(), Ok(())), "{format:?} {size}");
        }
    }
    // A frame to be skipped.
    let skipped = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &Format::Zstd.encode(b"x")].concat();
    assert_eq!(decode_whole(Format::Zstd, &skipped), (b"x".to_vec(), Ok(())));
}

#[test]
fn what_follows_the_end_is_an_error() {
    for format in Format::ALL {
        let encoded = [&format.encode(b"data"), &b"garbage behind it"[..]].concat();
        let (decoded, end) = decode_whole(format, &encoded);
        // A frame of zstd's may follow, and this is none.
        let error = if format == Format::Zstd { DecodeError::Corrupt } else { DecodeError::Trailing };
        assert_eq!((&*decoded, end), (&b"data"[..], Err(error(format.coding()))), "{format:?}");
    }
    let padded = [&Format::Gzip.encode(b"data"), &[0; 512][..]].concat();
    assert_eq!(decode_whole(Format::Gzip, &padded).1, Err(DecodeError::Trailing(Coding::Gzip)));
}

#[test]
fn data_of_another_coding_is_refused() {
    let plain = br#"{"model":"m","messages":[]}"#;
    for format in Format::ALL {
        for other in Format::ALL.into_iter().filter(|other| other.coding() != format.coding()) {
            let end = decode_whole(format, &other.encode(&events(100))).1;
            assert!(end.is_err(), "{other:?} as {format:?}");
        }
        // As deflate without a frame, JSON is a block that breaks off.
        let end = decode_whole(format, plain).1;
        let is_refused = matches!(end, Err(DecodeError::Corrupt(_) | DecodeError::Incomplete(Coding::Deflate)));
        assert!(is_refused, "{format:?}: {end:?}");
    }
}

#[test]
fn an_error_stays() {
    let mut decoder = Decoder::new(Coding::Gzip);
    let error = Err(DecodeError::Corrupt(Coding::Gzip));
    assert_eq!(decoder.feed(b"not gzip", |_| panic!("there is nothing")), error);
    assert_eq!(decoder.feed(&Format::Gzip.encode(b"x"), |_| panic!("it has failed")), error);
    assert_eq!(decoder.finish(), error);
}

#[test]
fn a_gzip_header_may_have_all_its_fields_and_is_checked() {
    let fixed = [0x1f, 0x8b, 8, 2 | 4 | 8 | 16, 1, 2, 3, 4, 0, 3];
    let header = [&fixed[..], &[3, 0, 7, 8, 9], b"name\0", b"comment\0"].concat();
    let mut crc = flate2::Crc::new();
    crc.update(&header);
    let rest = &Format::Gzip.encode(b"data")[10..];
    let encoded = [&header, &crc.sum().to_le_bytes()[..2], rest].concat();
    for size in 1..encoded.len() {
        assert_eq!(decode(&mut Decoder::new(Coding::Gzip), encoded.chunks(size)), (b"data".to_vec(), Ok(())));
    }
    // Each byte of the header but for those of the names' ends is covered by the check sum.
    for index in [5, 12, 15, header.len() - 2, header.len(), header.len() + 1] {
        let mut broken = encoded.clone();
        broken[index] ^= 1;
        assert_eq!(decode_whole(Format::Gzip, &broken).1, Err(DecodeError::Corrupt(Coding::Gzip)), "{index}");
    }
    for (index, value) in [(0, 0), (1, 0), (2, 9), (3, 0x20)] {
        let mut broken = Format::Gzip.encode(b"data");
        broken[index] = value;
        assert_eq!(decode_whole(Format::Gzip, &broken), (Vec::new(), Err(DecodeError::Corrupt(Coding::Gzip))));
    }
}

#[test]
fn check_sums_and_lengths_are_checked() {
    for (format, trailer) in [(Format::Gzip, 8), (Format::Zlib, 4)] {
        let encoded = format.encode(b"some data");
        for index in encoded.len() - trailer..encoded.len() {
            let mut broken = encoded.clone();
            broken[index] ^= 0x10;
            let corrupt = Err(DecodeError::Corrupt(format.coding()));
            assert_eq!(decode_whole(format, &broken).1, corrupt, "{format:?} {index}");
        }
    }
    let mut checked = ::zstd::Encoder::new(Vec::new(), 3).unwrap();
    checked.include_checksum(true).unwrap();
    checked.write_all(b"some data").unwrap();
    let mut checked = checked.finish().unwrap();
    assert_eq!(decode_whole(Format::Zstd, &checked).1, Ok(()));
    *checked.last_mut().unwrap() ^= 1;
    assert_eq!(decode_whole(Format::Zstd, &checked).1, Err(DecodeError::Corrupt(Coding::Zstd)));
}

#[test]
fn errors_say_what_is_wrong_with_which_coding() {
    let messages = [
        (DecodeError::Corrupt(Coding::Gzip), "it is not valid gzip"),
        (DecodeError::Corrupt(Coding::Zstd), "it is not valid zstd with a window of at most 8 MiB"),
        (DecodeError::Trailing(Coding::Brotli), "something follows its br data"),
        (DecodeError::Incomplete(Coding::Deflate), "it ends in the middle of its deflate data"),
        (DecodeError::TooLong(Coding::Gzip), "it is too long once its gzip coding is undone"),
    ];
    for (error, message) in messages {
        assert_eq!(error.to_string(), message);
    }
}
