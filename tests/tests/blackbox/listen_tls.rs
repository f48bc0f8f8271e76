//! `attache render static` with a certificate: TLS 1.2 at least, HTTP/2 for who can, and a certificate that is replaced is used
//! without a restart.

use std::{fs, net::SocketAddr, path::Path, sync::Arc};

use attache_tests::{Envoy, EnvoyOptions, Stack, tools, until};
use rcgen::{CertificateParams, CertifiedKey, KeyPair};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion,
        pki_types::{CertificateDer, ServerName},
        version::{TLS12, TLS13},
    },
};

use crate::documents::{pool, route};

fn certificate(name: &str) -> CertifiedKey<KeyPair> {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).map(|mut params| {
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params
    });
    CertifiedKey { cert: params.unwrap().self_signed(&key).unwrap(), signing_key: key }
}

/// Writes both files beside, then moves them, the key first.
fn install(directory: &Path, certificate: &CertifiedKey<KeyPair>) {
    for (name, pem) in [("tls.key", certificate.signing_key.serialize_pem()), ("tls.crt", certificate.cert.pem())] {
        let draft = directory.parent().unwrap().join(format!("{name}.draft"));
        fs::write(&draft, pem).unwrap();
        fs::rename(&draft, directory.join(name)).unwrap();
    }
}

async fn connect(
    envoy: &Envoy,
    trusted: &CertificateDer<'static>,
    versions: &[&'static SupportedProtocolVersion],
    alpn: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let mut config =
        ClientConfig::builder_with_protocol_versions(versions).with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    let address: SocketAddr = envoy.url().trim_start_matches("http://").parse().unwrap();
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

#[tokio::test]
async fn clients_come_by_tls_and_a_certificate_that_is_replaced_is_used_at_once() {
    let stack = Stack::builder(pool() + &route("r", "m", "{name: pool}")).models(1).start().await.unwrap();
    let directory = stack.directory().join("tls");
    fs::create_dir(&directory).unwrap();
    let first = certificate("first");
    install(&directory, &first);
    let file = |name: &str| directory.join(name).display().to_string();
    let options = EnvoyOptions {
        config: vec![stack.directory().join("config/attache.yaml")],
        extproc: stack.gateway.sidecar.listen().to_owned(),
        environment: vec![
            ("ATTACHE_TLS_CERT".to_owned(), file("tls.crt")),
            ("ATTACHE_TLS_KEY".to_owned(), file("tls.key")),
        ],
        ..EnvoyOptions::default()
    };
    let envoy = Envoy::start("envoy-tls", &options, stack.directory()).await.unwrap();

    for (version, expected) in [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)] {
        let mut stream = connect(&envoy, first.cert.der(), &[version], &[b"http/1.1"]).await.unwrap();
        assert_eq!(stream.get_ref().1.protocol_version(), Some(expected));
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).to_string();
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    assert_eq!(stack.models[0].requests()[0].headers["x-forwarded-proto"], "https");
    let stream = connect(&envoy, first.cert.der(), &[&TLS13], &[b"h2", b"http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    // What is clear text gets no answer, and no sidecar hears of it.
    assert!(envoy.client().unwrap().get("/v1/models").await.is_err());

    let second = certificate("second");
    install(&directory, &second);
    until("the second certificate is used", async || {
        connect(&envoy, second.cert.der(), &[&TLS13], &[b"h2"]).await.is_ok()
    })
    .await
    .unwrap();
    assert!(connect(&envoy, first.cert.der(), &[&TLS13], &[b"h2"]).await.is_err());
    // What is no certificate changes nothing.
    fs::write(stack.directory().join("tls.crt.draft"), "garbage").unwrap();
    fs::rename(stack.directory().join("tls.crt.draft"), directory.join("tls.crt")).unwrap();
    assert!(connect(&envoy, second.cert.der(), &[&TLS13], &[b"h2"]).await.is_ok());
}

#[test]
fn half_of_a_certificate_is_an_error_that_says_which_half_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("attache.yaml");
    fs::write(
        &file,
        pool().replace("${MODELS}", "[{ip: {address: 10.0.0.1, port: 1}}]") + &route("r", "m", "{name: pool}"),
    )
    .unwrap();
    let render = |arguments: &[&str]| {
        let output = tools::attache().unwrap().args(["render", "static"]).arg(&file).args(arguments).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    for (arguments, missing) in [
        (&["--tls-cert", "/tls/a.crt"][..], "--tls-key"),
        (&["--tls-key", "/tls/a.key"], "--tls-cert"),
        (&["--tls-sds", "/tls/a.yaml"], "--tls-cert"),
        (&["--tls-cert", "/nowhere/a.crt", "--tls-key", "/nowhere/a.key"], "--tls-sds"),
    ] {
        let (success, said) = render(arguments);
        assert!(!success && said.contains(missing), "{arguments:?}: {said}");
    }
    let sds = directory.path().join("sds.yaml");
    let (success, said) =
        render(&["--tls-cert", "/nowhere/a.crt", "--tls-key", "/nowhere/a.key", "--tls-sds", sds.to_str().unwrap()]);
    assert!(success, "{said}");
    assert!(fs::read_to_string(&sds).unwrap().contains("/nowhere/a.key"));
}
