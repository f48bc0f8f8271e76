//! Whom we trust to be Redis, and how we prove to be ourselves.
//!
//! By rustls, with the certificates of the operating system or with those of a file alone. A certificate is always checked:
//! where Redis has one that nobody else trusts, the file names it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

#[derive(Debug, Clone, Default)]
pub(super) struct TlsFiles {
    pub(super) ca: Option<PathBuf>,
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

impl TlsFiles {
    /// As the files are now; it reads them, and so may block.
    pub(super) fn read(&self) -> Result<Arc<ClientConfig>, String> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("cannot speak TLS: {error}"))?
            .with_root_certificates(self.roots()?);
        let config = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let private =
                    PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{}: {error}", key.display()))?;
                config
                    .with_client_auth_cert(certificates(certificate)?, private)
                    .map_err(|error| format!("{} and {}: {error}", certificate.display(), key.display()))?
            }
            _ => config.with_no_client_auth(),
        };
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(path) => {
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
                }
            }
            None => {
                // One that cannot be read must not take the others with it.
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
                if roots.is_empty() {
                    return Err(
                        "this system has no certificates to trust Redis by: install ca-certificates or give --redis-ca"
                            .to_owned(),
                    );
                }
            }
        }
        Ok(roots)
    }
}

/// At least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |error| format!("{}: {error}", path.display());
    let found: Vec<_> = CertificateDer::pem_file_iter(path).map_err(wrong)?.collect::<Result<_, _>>().map_err(wrong)?;
    if found.is_empty() {
        return Err(format!("{}: there is no certificate in it", path.display()));
    }
    Ok(found)
}
