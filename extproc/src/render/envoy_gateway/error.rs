//! Why there are no manifests: what Envoy Gateway or Kubernetes would refuse, said before anything is applied.

use std::num::NonZeroU32;
use std::path::PathBuf;

/// One reason; there may be several.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GatewayError {
    /// Envoy Gateway takes sockets for ext_proc alone.
    #[error(
        "backend {cluster}: Envoy Gateway routes requests to no Unix socket ({path}); give the model server a port and write \
         `ip` or `fqdn`"
    )]
    UnixModelServer {
        /// The Backend, `namespace/name`.
        cluster: String,
        /// The socket.
        path: String,
    },
    /// A rule of the Backend's schema.
    #[error(
        "backend {cluster} has names and IP addresses among its endpoints, which a Backend of Envoy Gateway cannot have; \
         write only one of the two, or split it into two Backends"
    )]
    MixedEndpoints {
        /// The Backend.
        cluster: String,
    },
    /// In a pod, it is the proxy itself.
    #[error(
        "backend {cluster}: Envoy Gateway accepts no loopback address ({address}); in its pod that would be the proxy itself. \
         Write the model server's own address"
    )]
    Loopback {
        /// The Backend.
        cluster: String,
        /// The address.
        address: String,
    },
    /// A rule of Envoy Gateway's.
    #[error(
        "backend {cluster}: Envoy Gateway accepts no name of one part ({hostname}) and no underscore; write all of it, such as \
         {hostname}.NAMESPACE.svc.cluster.local"
    )]
    BadHostname {
        /// The Backend.
        cluster: String,
        /// The name.
        hostname: String,
    },
    /// A BackendTLSPolicy has one name.
    #[error(
        "backend {cluster}: Envoy Gateway asks all endpoints for one name by TLS, and these have none, or several; write it as \
         `sni` beside `tls`'s authorities, or in a BackendTLSPolicy, or split it into Backends"
    )]
    NoServerName {
        /// The Backend.
        cluster: String,
    },
    /// A rule has at most 16 backendRefs of at most 64 endpoints.
    #[error(
        "backend {cluster} has {count} endpoints; a rule of an HTTPRoute reaches at most {most}. Split it into Backends"
    )]
    TooManyEndpoints {
        /// The Backend.
        cluster: String,
        /// How many it has.
        count: usize,
        /// How many it may have.
        most: usize,
    },
    /// A policy has room for so many HTTPRoutes.
    #[error(
        "{count} clusters and replicas are to be routed to; one Gateway takes at most {most}. Replicas are routed to one by one \
         in placement mode `cluster`: use `endpoint`, or render a second Gateway"
    )]
    TooManyTargets {
        /// How many there are.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// A rule of a BackendTLSPolicy's schema.
    #[error(
        "backend {cluster}: a BackendTLSPolicy has at most {most} subjectAltNames, and this would have {count}; take some away, or \
         split it into Backends"
    )]
    TooManySubjects {
        /// The Backend.
        cluster: String,
        /// How many it has.
        count: usize,
        /// How many it may have.
        most: usize,
    },
    /// A rule of an HTTPRoute's schema.
    #[error(
        "--hostname is here {count} times, and an HTTPRoute has at most {most} host names; write a wildcard such as \
         *.example.com, or leave them out where the Gateway's listeners have them"
    )]
    TooManyHostnames {
        /// How many there are.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// etcd takes 1.5 MiB, of which what Kubernetes notes of an object's fields needs a part.
    #[error("{kind} {name} would have {bytes} bytes, and at most {most} are sure to be taken; {way_out}")]
    ObjectTooLarge {
        /// Its kind.
        kind: String,
        /// `namespace/name`.
        name: String,
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        most: usize,
        /// What to do.
        way_out: &'static str,
    },
    /// A window of HTTP/2 has 31 bits.
    #[error("--max-body: {bytes} bytes are more than Envoy can buffer; at most {most}")]
    BodyTooLarge {
        /// What was asked for.
        bytes: u64,
        /// The most there can be.
        most: u64,
    },
    /// Kubernetes takes no larger one.
    #[error(
        "the documents have {bytes} bytes, and a ConfigMap holds {most}; mount them otherwise, and pass fewer of them here \
         (what is rendered depends on Backends, AIServiceBackends, CacheAffinityPolicies and timeouts alone)"
    )]
    ConfigMapTooLarge {
        /// All keys and values together.
        bytes: usize,
        /// The most.
        most: usize,
    },
    /// A Secret cannot be taken out of it without rewriting it.
    #[error(
        "{}: a Secret stands in a `List`; write it as a document of its own, so that it can be left out of the ConfigMap",
        path.display()
    )]
    SecretInList {
        /// The file.
        path: PathBuf,
    },
    /// A pod has one Secret of a name.
    #[error(
        "Secrets {} are to be mounted, and a pod mounts Secrets of its own namespace alone, where only one can be called \
         {name}: both upstreams would get the same key. Rename one, with the policy that names it, and apply both in the pod's \
         namespace",
        namespaces.iter().map(|namespace| format!("{namespace}/{name}")).collect::<Vec<_>>().join(" and ")
    )]
    SecretsOfOneName {
        /// What they are all called.
        name: String,
        /// Where each of them is.
        namespaces: Vec<String>,
    },
    /// What a manifest would show to everybody who may read Deployments.
    #[error(
        "--redis has a password in it, and manifests are no place for one: write it into a Secret under the key `password`, name \
         that with --redis-secret, and leave it out of the URL"
    )]
    RedisPassword,
    /// A limit would hold once for each of them.
    #[error(
        "--sidecar deployment has {replicas} sidecars, and without --redis each has a ledger of its own: a limit would hold \
         {replicas} times over, and start anew with every pod; name a Redis with --redis, run one sidecar (--replicas 1), or say \
         --separate-ledgers if that is meant"
    )]
    SeparateLedgers {
        /// How many sidecars.
        replicas: NonZeroU32,
    },
    /// In a pod, it is the pod itself.
    #[error(
        "--redis names {host}, which in the sidecar's pod would be the pod itself; name the host or Service of Redis"
    )]
    RedisLoopback {
        /// The host.
        host: String,
    },
    /// There is no such file in the pod.
    #[error("--redis names a Unix socket, which the sidecar's pod does not have; name a host")]
    RedisSocket,
    /// The filter's configuration could not be written as JSON.
    #[error("the Wasm filter's configuration cannot be written as JSON: {0}")]
    GateConfig(String),
}
