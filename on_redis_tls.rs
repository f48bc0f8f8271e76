//! A Redis that is reached by TLS, with certificates of the test's own.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

use super::on_redis::{granted_again, tokens};
use super::redis_server::{PATIENCE, RedisServer};
use super::*;

const PATIENT: RedisOptions = RedisOptions { deadline: PATIENCE, settle_deadline: PATIENCE };

/// An authority, and what it has signed.
struct Authority {
    directory: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap();
        let directory = TempDir::new().unwrap();
        fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { directory, issuer }
    }

    fn ca(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// A certificate for a name, and its key.
    fn sign(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        let file = |kind: &str| self.directory.path().join(format!("{name}.{kind}"));
        fs::write(file("pem"), certificate.pem()).unwrap();
        fs::write(file("key"), key.serialize_pem()).unwrap();
        (file("pem"), file("key"))
    }

    /// A Redis with a certificate for that name, which asks for one (`yes`) or does not (`no`).
    async fn redis(&self, name: &str, asks_for_certificates: &str) -> RedisServer {
        let (certificate, key) = self.sign(name);
        let text = |path: &Path| path.display().to_string();
        let arguments = |port: u16, _: &Path| {
            [
                ("--port", "0".to_owned()),
                ("--tls-port", port.to_string()),
                ("--tls-cert-file", text(&certificate)),
                ("--tls-key-file", text(&key)),
                ("--tls-ca-cert-file", text(&self.ca())),
                ("--tls-auth-clients", asks_for_certificates.to_owned()),
            ]
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value])
            .collect()
        };
        RedisServer::start_on_port(arguments).await
    }
}

fn store(server: &RedisServer, files: RedisFiles) -> RedisStore {
    let target: RedisTarget = format!("rediss://127.0.0.1:{}", server.port()).parse().unwrap();
    RedisStore::new(target.with_files(files).unwrap(), PATIENT)
}

async fn unreachable(store: &RedisStore) -> String {
    match store.ping(PATIENCE).await {
        Err(StoreError::Unreachable(reason)) => reason,
        answer => panic!("{answer:?}"),
    }
}

#[tokio::test]
async fn a_redis_is_reached_by_tls_when_its_authority_is_trusted() {
    let authority = Authority::new();
    let server = authority.redis("127.0.0.1", "no").await;
    let store = store(&server, RedisFiles { ca: Some(authority.ca()), ..RedisFiles::default() });
    let limit = tokens("soft", 300, Mode::Soft);
    let request = granted_again(&store, vec![hold(&limit, "caller", 40)]).await;
    store.settle(&settlement(&request, &[30])).await.unwrap();
}

#[tokio::test]
async fn a_redis_that_cannot_prove_to_be_itself_is_not_talked_to() {
    let authority = Authority::new();
    let ca = |authority: &Authority| RedisFiles { ca: Some(authority.ca()), ..RedisFiles::default() };
    let server = authority.redis("127.0.0.1", "no").await;
    let reason = unreachable(&store(&server, ca(&Authority::new()))).await;
    assert!(reason.contains("certificate"), "{reason}");
    let another = authority.redis("another.example", "no").await;
    let reason = unreachable(&store(&another, ca(&authority))).await;
    assert!(reason.contains("certificate"), "{reason}");
}

#[tokio::test]
async fn a_redis_that_asks_for_our_certificate_gets_it() {
    let authority = Authority::new();
    let server = authority.redis("127.0.0.1", "yes").await;
    let without = RedisFiles { ca: Some(authority.ca()), ..RedisFiles::default() };
    assert!(store(&server, without.clone()).ping(PATIENCE).await.is_err());
    let (certificate, key) = authority.sign("sidecar");
    let with = store(&server, RedisFiles { certificate: Some(certificate), key: Some(key), ..without });
    assert_eq!(with.ping(PATIENCE).await, Ok(()));
}
