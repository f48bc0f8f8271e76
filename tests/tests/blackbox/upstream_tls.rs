//! Model servers behind TLS: reached where their certificates are right, and sent nothing, keys least of all, where they are
//! not.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use attache_model_server::{Config, ModelServer};
use attache_tests::{Stack, tools, tools::Profile, until};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{PrivateKeyDer, pem::PemObject as _},
    },
};

use crate::{
    documents::{backend, route},
    profile, residue,
};

const KEY: &str = "sk-upstream";

/// Somebody who signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = named(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// As the ConfigMap `authority`.
    fn document(&self) -> String {
        authority(&self.0.pem())
    }

    /// A server that is `host` by our word.
    fn server(&self, host: &str) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let certificate = named(host, &[host]).signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap()
    }
}

/// The ConfigMap `authority`.
fn authority(pem: &str) -> String {
    let pem: String = pem.lines().map(|line| format!("    {line}\n")).collect();
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: authority}}\ndata:\n  ca.crt: |\n{pem}---\n")
}

/// Names of their own: by them it is found who signed what.
fn named(name: &str, hosts: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::new(hosts.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// A model server, and TLS before it.
struct TlsServer {
    model: ModelServer,
    address: SocketAddr,
    /// Connections that ended in the handshake.
    refused: Arc<AtomicUsize>,
}

impl TlsServer {
    async fn start(config: ServerConfig) -> Self {
        let model = ModelServer::start(Config::default()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, behind) = (listener.local_addr().unwrap(), model.addr());
        let refused = Arc::new(AtomicUsize::new(0));
        let (acceptor, counter) = (TlsAcceptor::from(Arc::new(config)), Arc::clone(&refused));
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let (acceptor, counter) = (acceptor.clone(), Arc::clone(&counter));
                tokio::spawn(async move {
                    let Ok(mut client) = acceptor.accept(connection).await else {
                        counter.fetch_add(1, Ordering::Relaxed);
                        return;
                    };
                    let mut server = TcpStream::connect(behind).await.unwrap();
                    // Either side may go.
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { model, address, refused }
    }
}

/// A Backend at this endpoint, with these fields in its `spec`, that is sent a key; and a route to it.
fn documents(endpoint: &str, fields: &str) -> String {
    let key = format!(
        "apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: BackendSecurityPolicy\nmetadata: {{name: x}}\n\
         spec: {{targetRefs: [{{kind: AIServiceBackend, name: x}}], type: APIKey, apiKey: {{secretRef: {{name: x}}}}}}\n---\n\
         apiVersion: v1\nkind: Secret\nmetadata: {{name: x}}\nstringData: {{apiKey: {KEY}}}\n---\n"
    );
    let backend = backend("x", &format!("[{{{endpoint}}}]")).replacen("}]}}", &format!("}}]{fields}}}}}"), 1);
    backend + &key + &route("r", "m", "{name: x}")
}

fn policy(hostname: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {{name: x}}\n\
         spec: {{targetRefs: [{{group: gateway.envoyproxy.io, kind: Backend, name: x}}], validation: {{hostname: {hostname}, \
         caCertificateRefs: [{{group: '', kind: ConfigMap, name: authority}}]}}}}\n---\n"
    )
}

const BY_AUTHORITY: &str = ", tls: {caCertificateRefs: [{group: '', kind: ConfigMap, name: authority}]}";

/// The status of a request, after which nothing is left of it.
async fn asked(documents: String) -> u16 {
    let stack = Stack::builder(documents).without_wasm().start().await.unwrap();
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5});
    let answer = stack.client().chat(&chat).await.unwrap();
    residue::none(&stack).await;
    answer.status
}

#[tokio::test]
async fn a_server_with_the_right_certificate_is_reached_and_gets_its_key() {
    let authority = Authority::new("ours");
    for certified in ["localhost", "127.0.0.1", "models.example"] {
        // A BackendTLSPolicy, which is what Envoy Gateway gets, has to have a name.
        if certified == "127.0.0.1" && !profile::is(Profile::Static) {
            continue;
        }
        let server = TlsServer::start(authority.server(certified)).await;
        let port = server.address.port();
        let ip = format!("ip: {{address: 127.0.0.1, port: {port}}}");
        let documents = match certified {
            "localhost" => documents(&format!("fqdn: {{hostname: localhost, port: {port}}}"), BY_AUTHORITY),
            "127.0.0.1" => documents(&ip, BY_AUTHORITY),
            _ => documents(&ip, "") + &policy(certified),
        };
        assert_eq!(asked(documents + &authority.document()).await, 200, "{certified}");
        let requests = server.model.requests();
        assert_eq!(requests.len(), 1, "{certified}");
        assert_eq!(requests[0].headers.get("authorization"), Some(&format!("Bearer {KEY}")), "{certified}");
    }
}

#[tokio::test]
async fn a_server_with_a_wrong_certificate_is_sent_nothing() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let name = |port| format!("fqdn: {{hostname: localhost, port: {port}}}");
    for (signed_by, certified, hostname) in [
        // By somebody whom we do not trust.
        (&theirs, "localhost", None),
        (&theirs, "models.example", Some("models.example")),
        // For somebody else.
        (&ours, "models.example", None),
        (&ours, "other.example", Some("models.example")),
    ] {
        let server = TlsServer::start(signed_by.server(certified)).await;
        let fields = if hostname.is_none() { BY_AUTHORITY } else { "" };
        let documents = documents(&name(server.address.port()), fields) + &hostname.map(policy).unwrap_or_default();
        assert_eq!(asked(documents + &ours.document()).await, 503, "{certified} {hostname:?}");
        until("the handshake had ended", async || server.refused.load(Ordering::Relaxed) > 0).await.unwrap();
        assert_eq!(server.model.requests_total(), 0, "{certified} {hostname:?}");
    }
}

#[tokio::test]
async fn a_certificate_is_not_looked_at_where_the_operator_says_so() {
    let server = TlsServer::start(Authority::new("theirs").server("elsewhere.example")).await;
    let endpoint = format!("ip: {{address: 127.0.0.1, port: {}}}", server.address.port());
    assert_eq!(asked(documents(&endpoint, ", tls: {insecureSkipVerify: true}")).await, 200);
    assert_eq!(server.model.requests_total(), 1);
}

/// A model server behind the TLS of OpenSSL, of one version, with the certificate of this name: its port, and its process.
async fn openssl_server(certificate: &str, version: &str) -> (u16, Child) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let file = |name: String| directory.join("certificates").join(name);
    let mut server = Command::new(tools::python().unwrap())
        .arg("-B")
        .arg(directory.join("python/tls_server.py"))
        .args([file(format!("{certificate}.crt")), file(format!("{certificate}.key"))])
        .arg(version)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).await.unwrap();
    (port.trim().parse().unwrap(), server)
}

#[tokio::test]
async fn servers_are_reached_whichever_curve_of_nist_their_certificates_key_is_on() {
    for certificate in ["p256", "p384", "p521"] {
        let pem = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/certificates/{certificate}.crt"));
        let trusted = authority(&fs::read_to_string(pem).unwrap());
        for version in ["1.2", "1.3"] {
            let (port, _server) = openssl_server(certificate, version).await;
            let name = format!("fqdn: {{hostname: localhost, port: {port}}}");
            assert_eq!(asked(documents(&name, BY_AUTHORITY) + &trusted).await, 200, "{certificate} TLS {version}");
        }
    }
}

#[tokio::test]
async fn why_tls_failed_is_told_in_the_log_on_the_affinity_page_and_by_doctor() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let untrusted = TlsServer::start(theirs.server("localhost")).await;
    let plain = ModelServer::start(Config::default()).await.unwrap();
    for (port, words) in [
        (untrusted.address.port(), "its certificate is not trusted, or is not for this name"),
        (plain.addr().port(), "what answers there is not TLS"),
    ] {
        let documents =
            documents(&format!("fqdn: {{hostname: localhost, port: {port}}}"), BY_AUTHORITY) + &ours.document();
        let stack = Stack::builder(documents).without_wasm().start().await.unwrap();
        let chat = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5});
        for _ in 0..3 {
            assert_eq!(stack.client().chat(&chat).await.unwrap().status, 503);
        }
        let sidecar = &stack.gateway.sidecar;
        let page: Value = serde_json::from_str(&sidecar.page("/affinity").await.unwrap()).unwrap();
        let failure = page["pools"][0]["endpoints"][0]["failure"].as_str().unwrap_or_default().to_owned();
        assert!(failure.starts_with(words), "{page}");
        let said = sidecar.log().matches(words).count();
        assert_eq!(said, 1, "{}", sidecar.log());
        let admin = stack.gateway.envoy.admin_url();
        let doctor = Command::from(tools::attache().unwrap())
            .args(["doctor", "--json", "--admin", admin.trim_start_matches("http://")])
            .output()
            .await
            .unwrap();
        let found = String::from_utf8(doctor.stdout).unwrap();
        assert!(found.contains("model-tls-failed"), "{found}");
    }
}
