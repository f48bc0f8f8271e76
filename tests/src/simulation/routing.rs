//! What the simulation asks of a way to place requests.

use std::time::Duration;

use super::replica::Scrape;
use crate::traces::Request;

/// All sidecars of one run. A sidecar knows what went through it, what it scraped and, where they share, what others told.
pub trait Routing {
    /// Where the request that is the `number`th of the trace shall go: the choice, then what to fall back on.
    fn place(&mut self, sidecar: usize, number: usize, request: &Request, now: Duration) -> Vec<usize>;

    /// The headers of the answer came, of `served`, after `refused` had not taken the connection. Where nobody served, the
    /// request is over.
    fn answered(
        &mut self,
        sidecar: usize,
        number: usize,
        request: &Request,
        served: Option<usize>,
        refused: &[usize],
        now: Duration,
    );

    /// The answer's first token came.
    fn first_byte(&mut self, sidecar: usize, number: usize, now: Duration);

    /// The answer is complete; its usage says how many tokens were cached.
    fn finished(&mut self, sidecar: usize, number: usize, request: &Request, cached_tokens: u64, now: Duration);

    /// The answer broke off.
    fn reset(&mut self, sidecar: usize, number: usize, now: Duration);

    /// A metrics page came, or none did.
    fn scraped(&mut self, sidecar: usize, replica: usize, scrape: Option<Scrape>, now: Duration);

    /// It is time to tell where prefixes went, every 250 ms.
    fn share_news(&mut self, _now: Duration) {}

    /// It is time to tell what is under way, every 200 ms.
    fn share_loads(&mut self, _now: Duration) {}

    /// The sidecar starts again.
    fn restarted(&mut self, sidecar: usize, now: Duration);

    /// There are `replicas` from now on.
    fn members(&mut self, replicas: usize, now: Duration);
}
