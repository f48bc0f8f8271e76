//! TLS to model servers, as Envoy has it.

use serde_json::{Map, Value, json};

use crate::config::tls::{ServerName, Subject, Trust, UpstreamTls};

/// Where Debian and its like, and Envoy's own images, have the authorities that the system trusts. Envoy Gateway reads the same.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Envoy's own are the first two. In TLS 1.2 they are as well those that a server's certificate may have its key on (RFC 8422, 5.1.1).
pub(super) const ECDH_CURVES: [&str; 4] = ["X25519", "P-256", "P-384", "P-521"];

/// Envoy's own, and that of keys on P-521, by which a server of TLS 1.3 with such a certificate signs.
pub(super) const SIGNATURE_ALGORITHMS: [&str; 10] = [
    "ecdsa_secp256r1_sha256",
    "rsa_pss_rsae_sha256",
    "rsa_pkcs1_sha256",
    "ecdsa_secp384r1_sha384",
    "rsa_pss_rsae_sha384",
    "rsa_pkcs1_sha384",
    "ecdsa_secp521r1_sha512",
    "rsa_pss_rsae_sha512",
    "rsa_pkcs1_sha512",
    "rsa_pkcs1_sha1",
];

/// The `transport_socket` of a cluster.
pub(super) fn transport_socket(tls: &UpstreamTls) -> Value {
    let mut common = Map::new();
    common.insert(
        "tls_params".to_owned(),
        json!({
            // Without this, Envoy offers TLS 1.2 at most to a server.
            "tls_maximum_protocol_version": "TLSv1_3",
            "ecdh_curves": ECDH_CURVES,
            "signature_algorithms": SIGNATURE_ALGORITHMS,
        }),
    );
    common.insert("alpn_protocols".to_owned(), json!(["http/1.1"]));
    if let Some(validation) = validation(tls) {
        common.insert("validation_context".to_owned(), validation);
    }
    let mut context = Map::new();
    context.insert(
        "@type".to_owned(),
        json!("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"),
    );
    match &tls.server_name {
        ServerName::Fixed(name) => {
            context.insert("sni".to_owned(), json!(&**name));
        }
        ServerName::OfEndpoint => {
            context.insert("auto_host_sni".to_owned(), json!(true));
            if tls.trust != Trust::Anyone && tls.subjects.is_empty() {
                context.insert("auto_sni_san_validation".to_owned(), json!(true));
            }
        }
        ServerName::Unsaid => {}
    }
    context.insert("common_tls_context".to_owned(), Value::Object(common));
    json!({"name": "envoy.transport_sockets.tls", "typed_config": context})
}

/// `None` where anybody is trusted: Envoy looks at no certificate then.
fn validation(tls: &UpstreamTls) -> Option<Value> {
    let authorities = match &tls.trust {
        Trust::System => json!({"filename": SYSTEM_AUTHORITIES}),
        Trust::Authorities(certificates) => json!({"inline_string": &**certificates}),
        Trust::Anyone => return None,
    };
    let mut validation = Map::new();
    validation.insert("trusted_ca".to_owned(), authorities);
    if !tls.subjects.is_empty() {
        let names: Vec<Value> = tls.subjects.iter().map(subject).collect();
        validation.insert("match_typed_subject_alt_names".to_owned(), json!(names));
    }
    Some(Value::Object(validation))
}

fn subject(subject: &Subject) -> Value {
    let (kind, name) = match subject {
        Subject::Dns(name) => ("DNS", name.to_string()),
        Subject::Uri(uri) => ("URI", uri.to_string()),
        Subject::Ip(ip) => ("IP_ADDRESS", ip.to_string()),
    };
    json!({"san_type": kind, "matcher": {"exact": name}})
}
