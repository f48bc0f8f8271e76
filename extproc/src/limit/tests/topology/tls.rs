//! Whom we trust, and who trusts us.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use super::*;

/// Somebody who signs certificates.
struct Authority {
    directory: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = named(&ReservationId::random().0, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("ca"), issuer.pem()).unwrap();
        Self { directory, issuer }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn ca(&self) -> PathBuf {
        self.file("ca")
    }

    /// A certificate for `name`, and its key.
    fn certify(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let certificate = named(name, &[name]).signed_by(&key, &self.issuer).unwrap();
        let files = (self.file(&format!("{name}.crt")), self.file(&format!("{name}.key")));
        fs::write(&files.0, certificate.pem()).unwrap();
        fs::write(&files.1, key.serialize_pem()).unwrap();
        files
    }

    /// A Redis that is `name` by our word, and takes whoever `auth_clients` says.
    async fn redis(&self, name: &str, auth_clients: &str) -> RedisServer {
        let (certificate, key) = self.certify(name);
        let file = |path: &Path| path.display().to_string();
        RedisServer::start_on_port(|port, _| {
            let port = port.to_string();
            let files = ["--tls-cert-file", &file(&certificate), "--tls-key-file", &file(&key)];
            [&["--port", "0", "--tls-port", &port, "--tls-auth-clients", auth_clients][..], &files]
                .concat()
                .into_iter()
                .map(str::to_owned)
                .chain(["--tls-ca-cert-file".to_owned(), file(&self.ca())])
                .collect()
        })
        .await
    }

    fn trusted(&self) -> RedisFiles {
        RedisFiles { ca: Some(self.ca()), ..RedisFiles::default() }
    }
}

/// Names of their own: by them it is found who signed what.
fn named(name: &str, hosts: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::new(hosts.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn url(server: &RedisServer) -> String {
    format!("rediss://127.0.0.1:{}", server.port())
}

#[tokio::test]
async fn a_redis_is_trusted_by_the_authority_in_the_file() {
    let authority = Authority::new();
    let server = authority.redis("127.0.0.1", "no").await;
    works(&connect_with(&url(&server), authority.trusted())).await;
}

#[tokio::test]
async fn a_redis_of_another_authority_or_another_name_is_not_talked_to() {
    let (authority, another) = (Authority::new(), Authority::new());
    let server = authority.redis("127.0.0.1", "no").await;
    // The last trusts whom the operating system does.
    for files in [another.trusted(), RedisFiles::default()] {
        let reason = obstacle(&connect_with(&url(&server), files)).await;
        assert!(reason.contains(&server.port().to_string()) && reason.contains("UnknownIssuer"), "{reason}");
    }
    let server = authority.redis("redis.example", "no").await;
    let reason = obstacle(&connect_with(&url(&server), authority.trusted())).await;
    assert!(reason.contains("not valid for name") && reason.contains("redis.example"), "{reason}");
}

#[tokio::test]
async fn a_redis_that_wants_to_know_us_is_shown_our_certificate() {
    let (authority, another) = (Authority::new(), Authority::new());
    let server = authority.redis("127.0.0.1", "yes").await;
    let ours =
        |(certificate, key)| RedisFiles { certificate: Some(certificate), key: Some(key), ..authority.trusted() };
    works(&connect_with(&url(&server), ours(authority.certify("sidecar")))).await;
    // Redis says so after the handshake, and may close before it is heard: the next attempt hears it.
    let unknown = connect_with(&url(&server), authority.trusted());
    until(async || obstacle(&unknown).await.contains("CertificateRequired")).await;
    let stranger = connect_with(&url(&server), ours(another.certify("stranger")));
    until(async || obstacle(&stranger).await.contains("UnknownCA")).await;
}

#[tokio::test]
async fn a_certificate_that_was_renewed_is_trusted_by_the_next_connection() {
    let (authority, next) = (Authority::new(), Authority::new());
    let server = next.redis("127.0.0.1", "no").await;
    let store = connect_with(&url(&server), authority.trusted());
    assert!(obstacle(&store).await.contains("UnknownIssuer"));
    fs::copy(next.ca(), authority.ca()).unwrap();
    until(async || obstacle(&store).await.is_empty()).await;
    works(&store).await;
}

#[tokio::test]
async fn a_redis_without_tls_and_a_client_without_it_do_not_meet() {
    let authority = Authority::new();
    let plain = RedisServer::start_on_port(|_, _| vec![]).await;
    let reason = obstacle(&connect_with(&url(&plain), authority.trusted())).await;
    assert!(reason.contains(&plain.port().to_string()), "{reason}");
    let server = authority.redis("127.0.0.1", "no").await;
    let reason = obstacle(&connect(&format!("redis://127.0.0.1:{}", server.port()))).await;
    assert!(reason.contains(&server.port().to_string()), "{reason}");
}
