//! What holds for every coding, all data and every way of cutting it.

use proptest::prelude::*;

use super::*;

fn format() -> impl Strategy<Value = Format> {
    prop::sample::select(&Format::ALL[..])
}

/// Data of the kinds that compress well, badly and not at all.
fn data() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..2_000),
        (0..400_usize).prop_map(events),
        (any::<u8>(), 0..200_000_usize).prop_map(|(byte, length)| vec![byte; length]),
    ]
}

fn cut(data: &[u8], mut cuts: Vec<prop::sample::Index>) -> Vec<&[u8]> {
    let mut offsets: Vec<usize> = cuts.drain(..).map(|cut| cut.index(data.len() + 1)).collect();
    offsets.extend([0, data.len()]);
    offsets.sort_unstable();
    offsets.windows(2).map(|pair| &data[pair[0]..pair[1]]).collect()
}

fn cuts() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    prop::collection::vec(any::<prop::sample::Index>(), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_chunking_gives_the_same_bytes_and_each_is_decoded_once(format in format(), data in data(), cuts in cuts()) {
        let encoded = format.encode(&data);
        let mut decoder = Decoder::new(format.coding());
        let chunks = cut(&encoded, cuts);
        let count = chunks.len() as u64;
        prop_assert_eq!(decode(&mut decoder, chunks), (data.clone(), Ok(())));
        let work: Vec<_> = decoder.work().collect();
        prop_assert_eq!((work[0].encoded_bytes, work[0].decoded_bytes), (encoded.len() as u64, data.len() as u64));
        prop_assert_eq!((decoder.encoded_bytes(), decoder.decoded_bytes()), (encoded.len() as u64, data.len() as u64));
        // Two calls for each chunk, of which the second finds nothing left, one for each full piece, and one for each part of the
        // framing.
        let most = 2 * count + data.len() as u64 / (16 << 10) + 4;
        prop_assert!(work[0].calls <= most, "{} calls, at most {most}", work[0].calls);
    }

    #[test]
    fn what_breaks_off_is_incomplete_and_right_so_far(format in format(), data in data(), at in any::<prop::sample::Index>()) {
        let encoded = format.encode(&data);
        let length = at.index(encoded.len());
        let (decoded, end) = decode_whole(format, &encoded[..length]);
        prop_assert!(data.starts_with(&decoded));
        let expected = if length == 0 { Ok(()) } else { Err(DecodeError::Incomplete(format.coding())) };
        prop_assert_eq!(end, expected);
    }

    #[test]
    fn what_was_flushed_comes_out_at_once(
        format in format(),
        parts in prop::collection::vec((1..6_usize).prop_map(events), 1..8),
    ) {
        let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
        let (encoded, flushes) = format.encode_flushed(&parts);
        let mut decoder = Decoder::new(format.coding());
        let mut begin = 0;
        for (part, end) in parts.iter().zip(flushes) {
            let mut decoded = Vec::new();
            decoder.feed(&encoded[begin..end], |piece| decoded.extend_from_slice(piece)).unwrap();
            prop_assert_eq!(&decoded, part);
            begin = end;
        }
        decoder.feed(&encoded[begin..], |_| panic!("nothing is left")).unwrap();
        prop_assert_eq!(decoder.finish(), Ok(()));
    }

    #[test]
    fn no_bytes_lead_beyond_the_bound(
        codings in prop::collection::vec(format(), 1..4),
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        cuts in cuts(),
    ) {
        let codings = codings.iter().map(|format| format.coding().name()).collect::<Vec<_>>().join(",");
        let mut decoder = Decoder::bounded(Codings::parse([codings.as_bytes()]).unwrap(), Bound::bytes(5_000));
        let (decoded, end) = decode(&mut decoder, cut(&bytes, cuts));
        prop_assert!(decoded.len() <= 5_000);
        prop_assert_eq!(decoder.finish(), end);
    }

    #[test]
    fn damaged_data_ends_in_an_error_or_within_the_bound(
        format in format(),
        count in 0..100_usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        cuts in cuts(),
    ) {
        let mut encoded = format.encode(&events(count));
        for (at, byte) in damage {
            let index = at.index(encoded.len());
            encoded[index] = byte;
        }
        let mut decoder = Decoder::bounded(format.coding(), Bound::bytes(20_000));
        let (decoded, _) = decode(&mut decoder, cut(&encoded, cuts));
        prop_assert!(decoded.len() <= 20_000);
    }
}
