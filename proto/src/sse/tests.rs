use proptest::prelude::*;

use super::*;

/// An event as a client sees it: its name and its data; `None` for fields without data.
type Event = Option<(Vec<u8>, Vec<u8>)>;

/// The events of a stream that arrives in these chunks.
fn events<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<Event> {
    let mut scanner = EventScanner::new();
    let mut events = Vec::new();
    let mut data = Vec::new();
    for mut rest in chunks {
        while let Some(piece) = scanner.next(&mut rest) {
            match piece {
                Piece::Begin => data.clear(),
                Piece::Data(bytes) => data.extend_from_slice(bytes),
                Piece::Dispatch => events.push(Some((scanner.name().to_vec(), std::mem::take(&mut data)))),
                Piece::Discard => events.push(None),
            }
        }
        assert_eq!(rest, b"");
    }
    events
}

fn event(name: &str, data: &str) -> Event {
    Some((name.into(), data.into()))
}

/// The standard's algorithm, word by word, over a whole stream.
fn reference(stream: &[u8]) -> Vec<Event> {
    let stream = stream.strip_prefix(&BYTE_ORDER_MARK).unwrap_or(stream);
    let mut lines = Vec::new();
    let mut line = Vec::new();
    let mut bytes = stream.iter().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\r' => {
                bytes.next_if_eq(&&b'\n');
                lines.push(std::mem::take(&mut line));
            }
            b'\n' => lines.push(std::mem::take(&mut line)),
            byte => line.push(*byte),
        }
    }
    let mut events = Vec::new();
    let (mut data, mut name, mut fields) = (Vec::new(), Vec::new(), 0);
    for line in lines {
        if line.is_empty() {
            if data.pop().is_some() {
                events.push(Some((std::mem::take(&mut name), std::mem::take(&mut data))));
            } else if fields > 0 {
                events.push(None);
            }
            (data, name, fields) = (Vec::new(), Vec::new(), 0);
            continue;
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(0) => continue,
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (&line[..], &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        fields += 1;
        match field {
            b"data" => {
                data.extend_from_slice(value);
                data.push(b'\n');
            }
            b"event" => name = value.to_vec(),
            _ => {}
        }
    }
    events
}

#[test]
fn a_space_after_the_colon_is_no_part_of_the_value_but_a_second_one_is() {
    assert_eq!(events([&b"data:a\n\ndata: b\n\ndata:  c\n\n"[..]]), [event("", "a"), event("", "b"), event("", " c")]);
}

#[test]
fn every_line_end_is_one() {
    let stream = b"data: a\r\n\r\ndata: b\r\rdata: c\n\ndata: d\r\n\ndata: e\n\r\ndata: f\n\r";
    let expected = ["a", "b", "c", "d", "e", "f"].map(|data| event("", data));
    assert_eq!(events([&stream[..]]), expected);
}

#[test]
fn lines_of_data_are_joined_by_line_feeds() {
    assert_eq!(events([&b"data: a\ndata\ndata:b\n\n"[..]]), [event("", "a\n\nb")]);
    assert_eq!(events([&b"data\n\n"[..]]), [event("", "")]);
    assert_eq!(events([&b"data\ndata\n\n"[..]]), [event("", "\n")]);
}

#[test]
fn comments_and_unknown_fields_carry_nothing() {
    let stream = b": ping\n\n:\nid: 1\nretry: 5\ndatax: no\nDATA: no\n data: no\ndata: yes\n: amid\ndata: too\n\n";
    assert_eq!(events([&stream[..]]), [event("", "yes\ntoo")]);
    assert_eq!(events([&b"id: 1\n\n"[..]]), [None]);
    assert_eq!(events([&b"\n\r\n\r: x\n\n"[..]]), []);
}

#[test]
fn an_events_name_is_its_own_and_the_last_one_counts() {
    let stream = b"event: a\nevent: error\ndata: 1\n\ndata: 2\n\nevent: x\n\ndata: 3\n\n";
    assert_eq!(events([&stream[..]]), [event("error", "1"), event("", "2"), None, event("", "3")]);
    let long = [b"event: ", &[b'x'; 1000][..], b"\ndata: 1\n\n"].concat();
    assert_eq!(events([&long[..]]), [event(&"x".repeat(MAX_NAME_BYTES), "1")]);
}

#[test]
fn a_byte_order_mark_is_skipped_at_the_start_only() {
    assert_eq!(events([&b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n"[..]]), [event("", "a"), None]);
    assert_eq!(events([&b"\xef\xbbdata: a\ndata: b\n\n"[..]]), [event("", "b")]);
}

#[test]
fn nul_and_broken_utf_8_are_bytes_like_others() {
    let stream = b"id: a\0b\nevent: e\0\ndata: \0\xff\xe6\xbc\n\n";
    assert_eq!(events([&stream[..]]), [Some((b"e\0".to_vec(), b"\0\xff\xe6\xbc".to_vec()))]);
}

#[test]
fn an_event_without_its_empty_line_is_not_dispatched() {
    assert_eq!(events([&b"data: a\n\ndata: b\n"[..]]), [event("", "a")]);
}

#[test]
fn the_pieces_of_an_event_within_a_chunk_are_slices_of_it() {
    let mut rest = &b": c\ndata: abc\r\n\r\nx"[..];
    let mut scanner = EventScanner::new();
    assert_eq!(scanner.next(&mut rest), Some(Piece::Begin));
    assert_eq!(rest, b"data: abc\r\n\r\nx");
    assert_eq!(scanner.next(&mut rest), Some(Piece::Data(b"abc")));
    assert!(scanner.is_within_event());
    assert_eq!(scanner.next(&mut rest), Some(Piece::Dispatch));
    assert_eq!(rest, b"x");
    assert!(!scanner.is_within_event());
}

#[test]
fn a_stream_means_the_same_wherever_it_is_cut() {
    let stream =
        "\u{feff}: hi\r\n\r\nevent: añ\r\ndata: é漢😀\r\ndata:\r\n\r\ndata: [DONE]\r\rid\n\ndata\n\n".as_bytes();
    let expected = reference(stream);
    assert_eq!(expected.len(), 4);
    for first in 0..=stream.len() {
        for second in first..=stream.len() {
            let chunks = [&stream[..first], &stream[first..second], &stream[second..]];
            assert_eq!(events(chunks), expected, "cut at {first} and {second}");
        }
    }
    assert_eq!(events(stream.chunks(1)), expected);
}

/// Streams made of what matters to the grammar.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        &b"data"[..],
        b"data:",
        b"data: ",
        b"event:",
        b"event",
        b"event: ",
        b"id:",
        b"id: \0",
        b"retry: 1",
        b":",
        b" ",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\r\n\r\n",
        b"x",
        b"\xe6\xbc\xa2",
        b"\xef",
        b"\xbb",
        b"\xbf",
        b"\0",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16_384))]

    #[test]
    fn the_scanner_does_what_the_standard_says(
        stream in stream(), size in 1..8_usize, place in any::<prop::sample::Index>(),
    ) {
        let expected = reference(&stream);
        prop_assert_eq!(events([&stream[..]]), expected.clone());
        prop_assert_eq!(events(stream.chunks(size)), expected.clone());
        let (left, right) = stream.split_at(place.index(stream.len() + 1));
        prop_assert_eq!(events([left, right]), expected);
    }
}
