//! Bodies that are larger than they look.

use super::*;

const MEBIBYTE: usize = 1 << 20;

#[test]
fn a_bomb_is_stopped_at_the_bound_whatever_its_coding() {
    let zeros = vec![0; 8 * MEBIBYTE];
    for format in Format::ALL {
        let bomb = format.encode(&zeros);
        let mut decoder = Decoder::bounded(format.coding(), Bound::bytes(MEBIBYTE as u64));
        let (decoded, end) = decode(&mut decoder, bomb.chunks(1_000));
        assert_eq!(end, Err(DecodeError::TooLong(format.coding())), "{format:?}");
        assert!(decoded.len() <= MEBIBYTE, "{format:?}: {}", decoded.len());
        // It is not decoded further than by a piece.
        let work: Vec<_> = decoder.work().collect();
        assert!(work[0].decoded_bytes <= (MEBIBYTE + 16 * 1024) as u64, "{format:?}: {work:?}");
    }
}

#[test]
fn a_body_of_just_the_bound_is_not_too_long() {
    let data = vec![7; 100_000];
    for format in Format::ALL {
        let encoded = format.encode(&data);
        let decode = |bound| decode(&mut Decoder::bounded(format.coding(), Bound::bytes(bound)), [&*encoded]).1;
        assert_eq!(decode(100_000), Ok(()), "{format:?}");
        assert_eq!(decode(99_999), Err(DecodeError::TooLong(format.coding())), "{format:?}");
    }
}

#[test]
fn a_bomb_that_leaves_nothing_of_itself_is_stopped_too() {
    // Between the codings it is the name of a gzip file, without end.
    let header = [0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 0, 3];
    let name = [&header[..], &vec![b'x'; 4 * MEBIBYTE]].concat();
    let codings = Codings::parse([&b"gzip, br"[..]]).unwrap();
    let mut decoder = Decoder::bounded(codings, Bound::bytes(MEBIBYTE as u64));
    let (decoded, end) = decode(&mut decoder, [&*Format::Brotli.encode(&name)]);
    assert_eq!((decoded.len(), end), (0, Err(DecodeError::TooLong(Coding::Brotli))));
}

#[test]
fn what_passes_may_be_long_but_not_out_of_proportion() {
    let bound = Bound { base_bytes: 1_000, ratio: 10 };
    assert!(bound.allows(1_000, 0) && !bound.allows(1_001, 0));
    assert!(bound.allows(2_000, 100) && !bound.allows(2_001, 100));
    assert!(Bound { base_bytes: u64::MAX, ratio: u64::MAX }.allows(u64::MAX, u64::MAX));

    // A model that says the same for ever, in the way that compresses best.
    let event: &[u8] =
        b"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\
                         \"choices\":[{\"index\":0,\"delta\":{\"content\":\" the\"},\"finish_reason\":null}]}\n\n";
    let stuck = event.repeat(100_000);
    for format in Format::ALL {
        assert_eq!(decode_whole(format, &format.encode(&stuck)), (stuck.clone(), Ok(())), "{format:?}");
    }
}

#[test]
fn a_frame_that_asks_for_a_larger_window_than_http_allows_is_refused() {
    let encode = |window_log| {
        let mut encoder = ::zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(window_log).unwrap();
        encoder.write_all(b"data").unwrap();
        // The window is written where the length is not known.
        encoder.finish().unwrap()
    };
    assert_eq!(decode_whole(Format::Zstd, &encode(23)), (b"data".to_vec(), Ok(())));
    assert_eq!(decode_whole(Format::Zstd, &encode(24)), (Vec::new(), Err(DecodeError::Corrupt(Coding::Zstd))));

    let parameters = |large_window, lgwin| {
        let mut parameters = ::brotli::enc::BrotliEncoderParams { lgwin, large_window, ..Default::default() };
        parameters.quality = 5;
        let mut encoded = Vec::new();
        ::brotli::BrotliCompress(&mut &b"data"[..], &mut encoded, &parameters).unwrap();
        encoded
    };
    assert_eq!(decode_whole(Format::Brotli, &parameters(false, 24)), (b"data".to_vec(), Ok(())));
    let (decoded, end) = decode_whole(Format::Brotli, &parameters(true, 26));
    assert_eq!((decoded, end), (Vec::new(), Err(DecodeError::Corrupt(Coding::Brotli))));
}

#[test]
fn twice_the_bytes_are_twice_the_calls_and_nothing_is_decoded_again() {
    let calls = |format: Format, count: usize| {
        let data = events(count);
        let encoded = format.encode(&data);
        let mut decoder = Decoder::new(format.coding());
        let (decoded, end) = decode(&mut decoder, encoded.chunks(16 * 1024));
        assert_eq!((decoded.len(), end), (data.len(), Ok(())));
        let work: Vec<_> = decoder.work().collect();
        assert_eq!((work[0].encoded_bytes, work[0].decoded_bytes), (encoded.len() as u64, data.len() as u64));
        work[0].calls
    };
    for format in Format::ALL {
        let (once, twice) = (calls(format, 25_000), calls(format, 50_000));
        assert!(twice <= 2 * once + 2, "{format:?}: {once} calls, then {twice}");
    }
}
