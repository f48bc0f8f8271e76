//! Content codings, done and undone by other code than the gateway's: `deflate` with zlib's frame, `raw-deflate` without.

use std::io::{Read as _, Write as _};

use flate2::{
    Compression,
    read::{DeflateDecoder, GzDecoder, ZlibDecoder},
    write::{DeflateEncoder, GzEncoder, ZlibEncoder},
};

/// The data in a coding; `gzip+br` is one within the other.
pub(crate) fn encode(how: &str, data: &[u8]) -> Vec<u8> {
    match how {
        "gzip" => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(data).unwrap();
            encoder.finish().unwrap()
        }
        "deflate" => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(data).unwrap();
            encoder.finish().unwrap()
        }
        "raw-deflate" => {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(data).unwrap();
            encoder.finish().unwrap()
        }
        "br" => {
            let mut encoder = brotli::CompressorWriter::new(Vec::new(), 4096, 4, 22);
            encoder.write_all(data).unwrap();
            encoder.into_inner()
        }
        "zstd" => zstd::encode_all(data, 1).unwrap(),
        "gzip+br" => encode("br", &encode("gzip", data)),
        other => panic!("{other}"),
    }
}

/// The text that was encoded.
pub(crate) fn decode(how: &str, data: &[u8]) -> String {
    let mut text = String::new();
    match how {
        "gzip" => GzDecoder::new(data).read_to_string(&mut text).unwrap(),
        "deflate" => ZlibDecoder::new(data).read_to_string(&mut text).unwrap(),
        "raw-deflate" => DeflateDecoder::new(data).read_to_string(&mut text).unwrap(),
        "br" => brotli::Decompressor::new(data, 4096).read_to_string(&mut text).unwrap(),
        "zstd" => zstd::Decoder::new(data).unwrap().read_to_string(&mut text).unwrap(),
        other => panic!("{other}"),
    };
    text
}
