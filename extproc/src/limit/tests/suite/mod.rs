//! What a store must do, proved on each of them.

macro_rules! on_all_stores {
    ($($sentence:ident)*) => {
        mod in_memory {
            $(#[tokio::test]
            async fn $sentence() {
                super::$sentence(super::Bed::memory()).await;
            })*
        }
        mod in_redis {
            $(#[tokio::test]
            async fn $sentence() {
                super::$sentence(super::Bed::redis().await).await;
            })*
        }
        mod in_a_cluster {
            /// At once: a node takes its time before it serves anybody.
            #[tokio::test]
            async fn all_of_it_holds() {
                tokio::join!($(async { super::$sentence(super::Bed::cluster().await).await }),*);
            }
        }
    };
}

mod admission;
mod growth;
mod leases;
mod windows;

use tokio::task::JoinSet;

use super::bed::{Bed, ERA};
use super::*;

fn tokens(id: &str, amount: u64, mode: Mode) -> Arc<Limit> {
    Arc::new(Limit { window: Window::Fixed(ERA), ..limit(id, amount, mode) })
}
