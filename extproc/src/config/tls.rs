//! TLS to a model server: by whom it is trusted, what it is called, and for whom its certificate has to be.

use std::net::IpAddr;
use std::sync::Arc;

/// How connections to the endpoints of a Backend are made safe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamTls {
    /// Who vouches for the server.
    pub trust: Trust,
    /// The name that the server is asked for (SNI).
    pub server_name: ServerName,
    /// For whom its certificate may be. Empty where that is the name it is asked for by, or nobody looks.
    pub subjects: Vec<Subject>,
}

/// Who vouches for a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// The authorities of the operating system that the proxy runs on.
    System,
    /// These: certificates in PEM, one at least.
    Authorities(Arc<str>),
    /// Nobody: any certificate will do.
    Anyone,
}

/// What a server is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerName {
    /// This name, at every endpoint.
    Fixed(Arc<str>),
    /// Each endpoint by its own host name.
    OfEndpoint,
    /// Nothing: an address has no name.
    Unsaid,
}

/// What one of the alternative names of a certificate has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A host name; a wildcard of the certificate may cover it.
    Dns(Arc<str>),
    /// A URI, such as a SPIFFE ID.
    Uri(Arc<str>),
    /// An address.
    Ip(IpAddr),
}
