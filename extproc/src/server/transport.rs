//! The HTTP/2 below the streams: all those of an Envoy worker share one connection.
//!
//! `h2` ends a connection on which too many small frames are unread, since a frame costs more memory than its bytes: each counts
//! 256 bytes less its length, all together half of the connection's window (`data_frame_budget` of `h2` 0.4). A body in frames of
//! one byte makes Envoy send a message of some 15 bytes for each, a hundred thousand at a time, and what it ended would be
//! everybody's requests: with windows of 1 and 16 MiB, three of eight such bodies did. So one stream's window is small, and that
//! of the connection large.

use tonic::transport::Server;

/// Streams of one connection. Envoy must never have to wait for another.
const STREAMS: u32 = 1_000_000;

/// How much of one stream may be unread. Once it is full, Envoy joins what waits, and small frames become large ones. Bodies of
/// 100 KiB and 15 MiB took as long with this as with 1 MiB.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;

/// How much of all streams together: the most that there is (RFC 9113, section 6.9.1). What is unread is bounded by the streams'
/// windows, small frames included, and costs a request less than its body may.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;

/// A server without services, for connections of Envoy's.
pub fn server() -> Server {
    Server::builder()
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hundreds_of_streams_of_the_smallest_messages_do_not_end_their_connection() {
        // A body message of one byte, with gRPC's five before it, and what `h2` counts of its frame.
        const MESSAGE_BYTES: u32 = 5 + 2 + 3;
        let counted = u64::from(STREAM_WINDOW_BYTES / MESSAGE_BYTES) * u64::from(256 - MESSAGE_BYTES);
        let budget = u64::from(CONNECTION_WINDOW_BYTES / 2);
        assert!(budget / counted >= 600, "{}", budget / counted);
    }
}
