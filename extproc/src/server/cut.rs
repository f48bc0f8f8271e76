//! The end of all streams at once, when a drain has no more time for their answers.
//!
//! A stream that is cut ends with an error status: an answer under way goes on without us, a request that was not yet dealt
//! with fails. Its session is dropped, which settles what the model was seen to use; so it has to happen before the ledger is
//! drained.

use std::pin::pin;

use futures_util::{Stream, StreamExt};
use tokio::sync::watch;
use tonic::Status;

/// Cuts all streams of the processors that have a clone of it.
#[derive(Debug, Clone, Default)]
pub struct Cut(watch::Sender<bool>);

impl Cut {
    /// Ends all streams, those too that are yet to come.
    pub fn all(&self) {
        self.0.send_replace(true);
    }

    /// The replies up to the cut.
    pub(super) fn before<T: Send, S: Stream<Item = Result<T, Status>> + Send>(
        &self,
        replies: S,
    ) -> impl Stream<Item = S::Item> + Send + use<T, S> {
        let mut cut = self.0.subscribe();
        async_stream::stream! {
            // One wait for the life of the stream, not one for each message.
            let mut cut = pin!(cut.wait_for(|cut| *cut));
            let mut replies = pin!(replies);
            loop {
                let reply = tokio::select! {
                    biased;
                    _ = &mut cut => Some(Err(Status::unavailable("the sidecar ends"))),
                    reply = replies.next() => reply,
                };
                let Some(reply) = reply else { return };
                let is_last = reply.is_err();
                yield reply;
                if is_last {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cut_ends_streams_under_way_and_later_ones_with_an_error_and_drops_what_they_hold() {
        let cut = Cut::default();
        let (held, holder) = (std::sync::Arc::new(()), std::sync::Arc::new(()));
        let replies = |holder: std::sync::Arc<()>| {
            async_stream::stream! {
                let _holder = holder;
                yield Ok(1);
                std::future::pending::<()>().await;
            }
        };
        let mut under_way = Box::pin(cut.before(replies(held.clone())));
        assert_eq!(under_way.next().await.map(|reply| reply.ok()), Some(Some(1)));
        cut.all();
        for mut stream in [under_way, Box::pin(cut.before(replies(holder)))] {
            let end = stream.next().await.map(|reply| reply.map_err(|status| status.code()));
            assert_eq!(end, Some(Err(tonic::Code::Unavailable)));
            assert!(stream.next().await.is_none());
        }
        assert_eq!(std::sync::Arc::strong_count(&held), 1);
    }
}
