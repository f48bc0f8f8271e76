use std::collections::VecDeque;

use envoy_types::pb::envoy::service::ext_proc::v3::HttpBody;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request;
use futures_util::StreamExt;

use super::*;

/// A body that comes in these pieces.
struct Pieces(VecDeque<Bytes>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }
}

fn messages(pieces: impl IntoIterator<Item = Bytes>, max_bytes: usize) -> Messages {
    Messages::new(Body::new(Pieces(pieces.into_iter().collect())), max_bytes)
}

fn request(body: &str) -> ProcessingRequest {
    let body = HttpBody { body: body.as_bytes().to_vec(), ..HttpBody::default() };
    ProcessingRequest { request: Some(Request::ResponseBody(body)), ..ProcessingRequest::default() }
}

fn framed(request: &ProcessingRequest) -> Vec<u8> {
    let message = request.encode_to_vec();
    [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), &message].concat()
}

async fn read(mut messages: Messages) -> (Vec<ProcessingRequest>, Option<Code>) {
    let mut read = Vec::new();
    loop {
        match messages.message().await {
            Ok(Some(message)) => read.push(message),
            Ok(None) => return (read, None),
            Err(status) => return (read, Some(status.code())),
        }
    }
}

#[tokio::test]
async fn messages_are_the_same_wherever_the_stream_is_cut() {
    let sent = [request("a"), ProcessingRequest::default(), request(&"b".repeat(40)), request("")];
    let stream: Bytes = sent.iter().flat_map(framed).collect();
    for size in 1..=stream.len() {
        let pieces = (0..stream.len()).step_by(size).map(|start| stream.slice(start..(start + size).min(stream.len())));
        assert_eq!(read(messages(pieces, 100)).await, (sent.to_vec(), None), "in pieces of {size}");
    }
    for first in 0..stream.len() {
        for second in first..stream.len() {
            let pieces = [stream.slice(..first), stream.slice(first..second), stream.slice(second..)];
            assert_eq!(read(messages(pieces, 100)).await, (sent.to_vec(), None), "cut at {first} and {second}");
        }
    }
}

#[tokio::test]
async fn what_is_no_message_ends_the_stream_with_what_came_before_it() {
    let sound = framed(&request("a"));
    let long = framed(&request(&"a".repeat(100)));
    let cases = [
        (sound[..sound.len() - 1].to_vec(), Code::Internal),
        (sound[..3].to_vec(), Code::Internal),
        ([&[1][..], &sound[1..]].concat(), Code::Unimplemented),
        (long, Code::OutOfRange),
        (vec![0, 0xff, 0xff, 0xff, 0xff], Code::OutOfRange),
        (vec![0, 0, 0, 0, 1, 0xff], Code::Internal),
    ];
    for (wrong, code) in cases {
        let stream = Bytes::from([&sound[..], &wrong].concat());
        for cut in 0..stream.len() {
            let pieces = [stream.slice(..cut), stream.slice(cut..)];
            assert_eq!(read(messages(pieces, 100)).await, (vec![request("a")], Some(code)), "{wrong:?} cut at {cut}");
        }
    }
}

#[tokio::test]
async fn a_message_has_memory_only_until_it_is_read() {
    let stream = framed(&request(&"a".repeat(10_000)));
    let pieces = stream.chunks(1_000).map(Bytes::copy_from_slice).collect::<Vec<_>>();
    let mut messages = messages(pieces, 100_000);
    assert!(messages.message().await.unwrap().is_some());
    assert_eq!((messages.begun.capacity(), messages.unread.len()), (0, 0));
}

async fn written(replies: Vec<Result<ProcessingResponse, Status>>) -> (Vec<usize>, HeaderMap) {
    let mut body = ReplyBody::new(Box::pin(futures_util::stream::iter(replies)));
    let mut sizes = Vec::new();
    loop {
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.unwrap().unwrap();
        match frame.into_data() {
            Ok(data) => sizes.push(data.len()),
            Err(frame) => {
                assert!(body.is_end_stream());
                return (sizes, frame.into_trailers().unwrap());
            }
        }
    }
}

#[tokio::test]
async fn replies_that_are_ready_go_out_together_and_the_status_comes_last() {
    let reply = || Ok(ProcessingResponse::default());
    let (sizes, trailers) = written(vec![reply(), reply(), reply()]).await;
    assert_eq!((sizes, &trailers["grpc-status"]), (vec![3 * PREFIX_BYTES], &HeaderValue::from_static("0")));

    let (sizes, trailers) = written((0..10_000).map(|_| reply()).collect()).await;
    assert_eq!(sizes.iter().sum::<usize>(), 10_000 * PREFIX_BYTES);
    assert!(sizes.iter().all(|size| *size < WRITE_AT_ONCE_BYTES + PREFIX_BYTES), "{sizes:?}");
    assert_eq!(trailers["grpc-status"], "0");

    let (sizes, trailers) = written(vec![reply(), Err(Status::aborted("no more: 50 %")), reply()]).await;
    assert_eq!((sizes, &trailers["grpc-status"]), (vec![PREFIX_BYTES], &HeaderValue::from_static("10")));
    assert_eq!(Status::from_header_map(&trailers).unwrap().message(), "no more: 50 %");
}

#[tokio::test]
async fn nothing_is_written_while_nothing_is_ready() {
    let (sender, receiver) = futures_util::stream::iter([Ok(ProcessingResponse::default())])
        .chain(futures_util::stream::pending())
        .into_future()
        .await;
    assert!(sender.unwrap().is_ok());
    let mut body = ReplyBody::new(Box::pin(receiver));
    let frame = poll_fn(|context| Poll::Ready(Pin::new(&mut body).poll_frame(context).is_pending())).await;
    assert!(frame && !body.is_end_stream());
}
