use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::thread;

use super::*;

const BOUNDS: Bounds = Bounds { patience: Duration::from_secs(10), longest_bytes: 8 };

fn serve(mut stream: impl io::Read + io::Write, answer: &[u8]) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).unwrap() == 0 {
            break;
        }
        request.push(byte[0]);
    }
    // Who has read enough may have gone.
    let _ = stream.write_all(answer);
    String::from_utf8(request).unwrap()
}

/// What is made of this answer, and the request that it was the answer to.
fn answering(answer: &'static [u8]) -> (Result<Answer, Fault>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        let request = serve(listener.accept().unwrap().0, answer);
        listener.set_nonblocking(true).unwrap();
        request
    });
    let answer = ask(Method::POST, &address, None, "/limits/reset?key=a", b"", BOUNDS);
    (answer, server.join().unwrap().replace(&address, "ADDRESS"))
}

#[test]
fn a_whole_answer_is_read_in_one_piece_and_in_chunks() {
    let (answer, request) = answering(b"HTTP/1.1 404 Not Found\r\nServer: envoy\r\nContent-Length: 3\r\n\r\n{}\n");
    let expected = Answer { status: 404, server: "envoy".to_owned(), body: b"{}\n".to_vec() };
    assert_eq!(answer.unwrap(), expected);
    assert!(request.starts_with("POST /limits/reset?key=a HTTP/1.1\r\nhost: ADDRESS\r\n"), "{request}");

    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
    assert_eq!(answering(chunked).0.unwrap().body, b"abcde");
    assert_eq!(answering(b"HTTP/1.0 200 OK\r\n\r\n{}").0.unwrap().body, b"{}", "to the connection's end");
}

#[test]
fn what_is_cut_or_no_http_is_a_fault() {
    for text in [
        "",
        "HTTP/1.1 200 OK\r\n",
        "SSH-2.0-x\r\n\r\n",
        "HTTP/1.1 x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabc",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\nabc\r\n0\r\n\r\n",
    ] {
        let fault = answering(text.as_bytes()).0.unwrap_err();
        assert!(matches!(fault, Fault::Cut), "{text:?}: {fault}");
    }
    let long = b"HTTP/1.1 200 OK\r\n\r\n123456789";
    assert!(matches!(answering(long).0, Err(Fault::TooLong(8))));
}

#[test]
fn where_nobody_listens_the_error_says_what_to_do() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let error = ask_sidecar(Method::GET, &free, None, "/limits", b"").unwrap_err();
    assert!(error.contains(&free) && error.ends_with("say where it is with --admin HOST:PORT"), "{error}");
    assert!(ask_sidecar(Method::GET, "nonsense", None, "/limits", b"").is_err());
    assert!(ask_sidecar(Method::GET, "unix:/nowhere", None, "/limits", b"").is_err());
}

#[test]
fn an_address_may_be_written_as_a_url_wherever_one_is_given() {
    for (written, meant) in [
        ("127.0.0.1:19000", "127.0.0.1:19000"),
        ("http://127.0.0.1:19000", "127.0.0.1:19000"),
        ("http://envoy.example:9901/", "envoy.example:9901"),
        ("HTTP://[::1]:9901/", "[::1]:9901"),
        ("localhost:9901/", "localhost:9901"),
        ("unix:/run/admin.sock", "unix:/run/admin.sock"),
    ] {
        assert_eq!(authority(written).unwrap(), meant);
    }
    for (written, reason) in [
        ("https://127.0.0.1:19000", "HTTP without TLS: say HOST:PORT or http://HOST:PORT, not https://"),
        ("ftp://127.0.0.1:21", "not ftp://"),
        ("http://127.0.0.1:19000/config_dump", "without a path"),
        ("http://me@127.0.0.1:19000", "without a path or a user"),
    ] {
        let error = ask_sidecar(Method::GET, written, None, "/limits", b"").unwrap_err();
        assert!(error.contains(reason), "{written}: {error}");
    }

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    let server =
        thread::spawn(move || serve(listener.accept().unwrap().0, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"));
    assert_eq!(ask_sidecar(Method::GET, &address, None, "/limits", b"").unwrap().body, b"{}");
    let request = server.join().unwrap();
    assert!(request.contains(&format!("host: {}\r\n", &address[7..address.len() - 1])), "{request}");
}

#[test]
fn a_server_that_says_nothing_is_not_waited_for_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let bounds = Bounds { patience: Duration::from_millis(50), longest_bytes: 8 };
    let fault = ask(Method::GET, &address, None, "/", b"", bounds).unwrap_err();
    assert!(matches!(fault, Fault::Silent(_)), "{fault}");
}

#[test]
fn a_grpc_port_is_told_from_other_things_that_are_no_http() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut first = [0; 14];
            stream.read_exact(&mut first).unwrap();
            // As h2 does: its settings, whoever it is; then it goes, unless it was greeted.
            stream.write_all(b"\0\0\0\x04\0\0\0\0\0").unwrap();
            if &first == b"PRI * HTTP/2.0" {
                let _ = stream.read(&mut [0; 64]);
            }
        }
    });
    let fault = ask(Method::GET, &address, None, "/config_dump", b"", BOUNDS).unwrap_err();
    assert!(matches!(fault, Fault::Grpc), "{fault}");
    server.join().unwrap();
}

#[test]
fn a_socket_of_the_file_system_is_asked_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admin.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server =
        thread::spawn(move || serve(listener.accept().unwrap().0, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"));
    let answer = ask(Method::GET, &format!("unix:{}", path.display()), None, "/", b"", BOUNDS).unwrap();
    assert_eq!((answer.status, answer.body), (200, b"{}".to_vec()));
    assert!(server.join().unwrap().contains("host: localhost\r\n"));
}
