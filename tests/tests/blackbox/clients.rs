//! The official clients read from the gateway what they read from the model server itself: the same tests over two scripts.

use attache_tests::Stack;

use crate::{
    documents::{key, limits, pool, route},
    python, residue,
};

/// A client library.
struct Library {
    /// The script that uses it.
    script: &'static str,
    /// The parts of the script that go through the gateway, besides those that all scripts have.
    parts: &'static str,
    /// Its routes, each with a key of its name and these limits. A route's model has the route's name.
    routes: &'static [(&'static str, &'static str)],
}

const OPENAI: Library = Library {
    script: "openai_client.py",
    parts: "core,broken,gateway,errors",
    routes: &[
        (
            "assistant",
            "{name: n, per: [key], limit: 1000, window: 300d, cost: requests}, \
             {name: tokens, per: [key], limit: 100000000, window: 300d}",
        ),
        ("poor", "{name: n, per: [key], limit: 1, window: 300d, cost: requests}"),
        ("short", "{name: t, per: [key], limit: 200, window: 300d, mode: strict, cap: true}"),
    ],
};

const ANTHROPIC: Library = Library {
    script: "anthropic_client.py",
    parts: "core,broken,errors",
    routes: &[
        ("assistant", "{name: tokens, per: [key], limit: 100000000, window: 300d}"),
        ("poor", "{name: n, per: [key], limit: 1, window: 300d, cost: requests}"),
    ],
};

impl Library {
    async fn stack(&self) -> Stack {
        let mut documents = pool();
        for (name, of_limits) in self.routes {
            let key_name = if *name == "assistant" { "a" } else { name };
            documents += &route(name, name, "{name: pool, modelNameOverride: served}");
            documents += &key(key_name, "acme", name);
            documents += &limits(name, of_limits);
        }
        Stack::builder(documents).models(1).start().await.unwrap()
    }

    /// Runs parts of the script through a gateway and beside it, with answers in a coding.
    async fn compare(&self, parts: &str, coding: Option<&str>) {
        let stack = self.stack().await;
        python::compare(self.script, &stack, parts, coding).await;
        residue::none(&stack).await;
    }

    async fn finds_no_difference(&self) {
        self.compare(self.parts, None).await;
    }

    async fn understands_the_model_server(&self) {
        for coding in [None, Some("auto"), Some("raw-deflate")] {
            python::compare_servers(self.script, "core,endpoints,broken", coding).await;
        }
    }

    async fn finds_the_remaining_endpoints_the_same(&self) {
        self.compare("endpoints", None).await;
    }

    async fn reads_every_coding_the_same(&self) {
        for coding in ["auto", "gzip", "br", "zstd", "deflate", "raw-deflate"] {
            self.compare("core,endpoints,broken", Some(coding)).await;
        }
    }
}

/// The tests of a library, in a module of its own.
macro_rules! tests {
    ($name:ident, $library:expr) => {
        mod $name {
            use super::*;

            #[tokio::test]
            async fn the_official_python_client_finds_no_difference_to_the_model_server() {
                $library.finds_no_difference().await;
            }

            #[tokio::test]
            async fn the_model_server_speaks_as_the_official_client_understands_it() {
                $library.understands_the_model_server().await;
            }

            #[tokio::test]
            async fn the_remaining_endpoints_answer_as_the_model_server_does() {
                $library.finds_the_remaining_endpoints_the_same().await;
            }

            #[tokio::test]
            async fn answers_in_every_coding_read_the_same_and_are_counted() {
                $library.reads_every_coding_the_same().await;
            }
        }
    };
}

tests!(openai, OPENAI);
tests!(anthropic, ANTHROPIC);
