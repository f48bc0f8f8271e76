//! TLS for clients: the listener's transport socket, and the file by which Envoy learns of its certificate.
//!
//! Envoy reads a certificate anew when it changes only where it comes by SDS; so there is a file of SDS, which names the
//! certificate's files and never changes itself.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::tls::ECDH_CURVES;
use super::{RenderError, address, yaml};

/// Where the certificate is, as Envoy sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenTls {
    /// The certificate and those that lead to its authority (PEM).
    pub certificate: PathBuf,
    /// Its key (PEM).
    pub key: PathBuf,
    /// The file that [`ListenTls::sds`] is in.
    pub sds: PathBuf,
}

/// The secret's name.
const NAME: &str = "attache";

const HEADER: &str = "\
# Where Envoy's listener has its certificate, written by `attache render static`. Envoy reads both files anew when anything is
# moved into the directory that is watched: replace them by renaming, as Kubernetes and cert-manager do.
";

impl ListenTls {
    /// The content of the file of SDS.
    ///
    /// # Errors
    /// [`RenderError::PathNotUtf8`].
    pub fn sds(&self) -> Result<String, RenderError> {
        let directory = self.certificate.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        let secret = json!({
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            "name": NAME,
            "tls_certificate": {
                "certificate_chain": {"filename": address::path_text(&self.certificate)?},
                "private_key": {"filename": address::path_text(&self.key)?},
                "watched_directory": {"path": address::path_text(directory)?},
            },
        });
        Ok(format!("{HEADER}\n{}", yaml::emit(&json!({"resources": [secret]}))))
    }

    /// The `transport_socket` of the listener.
    pub(super) fn transport_socket(&self) -> Result<Value, RenderError> {
        let source = json!({
            "path_config_source": {"path": address::path_text(&self.sds)?},
            "resource_api_version": "V3",
        });
        Ok(json!({
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                "common_tls_context": {
                    "tls_params": {"tls_minimum_protocol_version": "TLSv1_2", "ecdh_curves": ECDH_CURVES},
                    "alpn_protocols": ["h2", "http/1.1"],
                    "# The file of this path names the certificate's files. Envoy reads those anew when they are replaced.": null,
                    "tls_certificate_sds_secret_configs": [{"name": NAME, "sds_config": source}],
                },
            },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls(certificate: &str) -> ListenTls {
        ListenTls { certificate: certificate.into(), key: "/tls/tls.key".into(), sds: "/etc/envoy/sds.yaml".into() }
    }

    #[test]
    fn the_certificates_directory_is_watched() {
        for (certificate, directory) in
            [("/tls/tls.crt", "/tls"), ("tls.crt", "."), ("a/tls.crt", "a"), ("/tls.crt", "/")]
        {
            let file: Value = serde_saphyr::from_str(&tls(certificate).sds().unwrap()).unwrap();
            let found = &file["resources"][0]["tls_certificate"];
            assert_eq!(found["certificate_chain"]["filename"], certificate);
            assert_eq!(found["watched_directory"]["path"], directory);
        }
    }

    #[test]
    fn the_listener_speaks_tls_1_2_at_least_and_http_2_where_a_client_can() {
        let socket = tls("/tls/tls.crt").transport_socket().unwrap();
        let context = &socket["typed_config"]["common_tls_context"];
        assert_eq!(context["tls_params"]["tls_minimum_protocol_version"], "TLSv1_2");
        assert_eq!(context["alpn_protocols"], json!(["h2", "http/1.1"]));
        let path = context.pointer("/tls_certificate_sds_secret_configs/0/sds_config/path_config_source/path");
        assert_eq!(path, Some(&json!("/etc/envoy/sds.yaml")));
    }
}
