//! Sidecars that share a real Redis. Each has a fleet and a task of its own; only the process is the same.

mod outages;
mod script;
mod strangers;
mod talks;

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tokio::task::AbortHandle;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Sharing;
use crate::affinity::blocks::{Chunker, MAX_BLOCKS};
use crate::affinity::{Answered, Ask, Fleet, Pool, PrefixChain, Standing, Ticket};
use crate::config::model::{Config, Settings};
use crate::config::{self, Documents};
use crate::testing::log::Log;
use crate::testing::redis_server::{PATIENCE, RedisServer, free_port, say, until};

const REPLICA: &str = "10.0.0.1:80";
const LOG: &str = "attache:affinity:{078103a0ccb523d0}:log";
const LOADS: &str = "attache:affinity:{078103a0ccb523d0}:loads";

/// A configuration with these Backends of two replicas each.
fn config(backends: &[&str]) -> Config {
    let document = |name: &&str| {
        format!(
            "{{apiVersion: gateway.envoyproxy.io/v1alpha1, kind: Backend, metadata: {{name: {name}}}, spec: {{endpoints: \
             [{{ip: {{address: 10.0.0.1, port: 80}}}}, {{ip: {{address: 10.0.0.2, port: 80}}}}]}}}}\n---\n\
             {{apiVersion: aigateway.envoyproxy.io/v1beta1, kind: AIServiceBackend, metadata: {{name: {name}}}, spec: \
             {{schema: {{name: OpenAI}}, backendRef: {{name: {name}, kind: Backend, group: gateway.envoyproxy.io}}}}}}\n---\n"
        )
    };
    let documents: String = backends.iter().map(document).collect();
    config::compile(Documents::from_text("test.yaml", &documents), Settings::default(), 1, None).unwrap().config
}

struct Sidecar {
    fleet: Arc<Fleet>,
    task: AbortHandle,
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sidecar {
    fn start(url: &str) -> Self {
        Self::start_with(url, 0)
    }

    fn start_with(url: &str, secret: u64) -> Self {
        let fleet = Arc::new(Fleet::default());
        fleet.adopt(&config(&["pool"]), Instant::now());
        let sharing = Sharing::new(url.parse().unwrap(), Arc::clone(&fleet), secret);
        Self { fleet, task: tokio::spawn(sharing.run()).abort_handle() }
    }

    async fn several(count: usize, url: &str) -> Vec<Self> {
        let sidecars: Vec<_> = (0..count).map(|_| Self::start(url)).collect();
        for sidecar in &sidecars {
            sidecar.shares().await;
        }
        sidecars
    }

    fn pool(&self) -> Arc<Pool> {
        self.fleet.pools().into_iter().find(|pool| &**pool.id() == "default/pool").unwrap()
    }

    fn hears_peers(&self) -> bool {
        self.pool().hears_peers(Instant::now())
    }

    async fn shares(&self) {
        until(async || self.hears_peers()).await;
    }

    async fn goes_by_what_it_knows_itself(&self) {
        until(async || !self.hears_peers()).await;
    }

    /// Sends a prompt to the first replica.
    fn send(&self, prompt: &Ask) -> Ticket {
        let now = Instant::now();
        let placement = self.pool().place(prompt, |endpoint| &*endpoint.id == REPLICA, now);
        self.pool().dispatch(&placement).unwrap()
    }

    /// Sends it, and it is answered.
    fn serve(&self, prompt: &Ask) {
        let mut ticket = self.send(prompt);
        ticket.answered(Answered::Well, None, Instant::now());
    }

    /// How the first replica stands for a prompt.
    fn standing(&self, prompt: &Ask) -> Standing {
        let standings = self.pool().standings(prompt, Instant::now());
        standings.into_iter().find(|standing| &*standing.endpoint == REPLICA).unwrap()
    }

    /// Bytes of the prompt that the first replica is believed to hold.
    fn predicted(&self, prompt: &Ask) -> u64 {
        self.standing(prompt).matched_bytes
    }

    async fn predicts(&self, prompt: &Ask) {
        until(async || self.predicted(prompt) == prompt.prompt.as_ref().unwrap().bytes).await;
    }

    fn pending(&self) -> f64 {
        self.standing(&prompt(0, 0)).pending_tokens
    }
}

/// A prompt of its own with so many full blocks of 256 bytes.
fn prompt(subject: u64, blocks: usize) -> Ask {
    let mut chunker = Chunker::new(subject, MAX_BLOCKS);
    chunker.push(&vec![b'x'; blocks * 256]);
    ask_with(chunker.finish())
}

/// One of which only the hashes are there.
fn long_prompt(subject: u64, blocks: u64) -> Ask {
    let blocks: Vec<u64> = (0..blocks).map(|at| xxh3_64_with_seed(&at.to_le_bytes(), subject)).collect();
    let bytes = blocks.len() as u64 * 256;
    ask_with(PrefixChain { seed: subject, blocks, tail: 0, bytes })
}

fn ask_with(chain: PrefixChain) -> Ask {
    Ask { scope: 7, prompt: Some(Arc::new(chain)), session: None, entropy: 0 }
}
