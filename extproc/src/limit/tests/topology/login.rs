//! Who we say that we are.

use std::fs;

use super::*;

/// Each of what a URL could stumble over, and what is more than ASCII.
const PASSWORD: &str = "p@:/?#[]&=%,+ä'\"";
const IN_A_URL: &str = "p%40%3A%2F%3F%23%5B%5D%26%3D%25%2C%2B%C3%A4'%22";

async fn set_password(server: &RedisServer, old: Option<&str>, new: &str) {
    let mut connection = match old {
        None => server.connection().await,
        Some(old) => server.connection_with(old).await,
    };
    let mut command = ::redis::cmd("CONFIG");
    let () = command.arg("SET").arg("requirepass").arg(new).query_async(&mut connection).await.unwrap();
    // Whoever is in stays in, and so has to come in anew.
    say(&mut connection, "CLIENT KILL TYPE normal SKIPME yes").await;
}

#[tokio::test]
async fn a_password_of_special_characters_opens_by_port_and_by_socket() {
    let server = RedisServer::start_on_port(|_, _| vec![]).await;
    set_password(&server, None, PASSWORD).await;
    let mut connection = server.connection_with(PASSWORD).await;
    let mut user = ::redis::cmd("ACL");
    user.arg("SETUSER").arg("a:b@c").arg("on").arg(format!(">{PASSWORD}")).arg("allkeys").arg("allcommands");
    let () = user.query_async(&mut connection).await.unwrap();
    let (port, socket) = (server.port(), server.url());
    for url in [
        format!("redis://:{IN_A_URL}@127.0.0.1:{port}"),
        format!("redis://a%3Ab%40c:{IN_A_URL}@localhost:{port}/1"),
        format!("{socket}?pass={IN_A_URL}&db=2"),
        format!("{socket}?user=a%3Ab%40c&pass={IN_A_URL}"),
    ] {
        works(&connect(&url)).await;
    }
    let keys = ask(&mut connection, "INFO keyspace").await.unwrap();
    let keys: String = ::redis::from_redis_value(keys).unwrap();
    assert!(["db0:", "db1:", "db2:"].iter().all(|database| keys.contains(database)), "{keys}");
}

#[tokio::test]
async fn a_user_without_a_password_is_that_user() {
    let server = RedisServer::start().await;
    let mut connection = server.connection().await;
    say(&mut connection, "ACL SETUSER open on nopass allkeys allcommands").await;
    say(&mut connection, "ACL SETUSER closed on >secret allkeys allcommands").await;
    works(&connect(&format!("{}?user=open", server.url()))).await;
    let clients: String = ::redis::from_redis_value(ask(&mut connection, "CLIENT LIST").await.unwrap()).unwrap();
    assert!(clients.contains("user=open"), "{clients}");
    let reason = obstacle(&connect(&format!("{}?user=closed", server.url()))).await;
    assert!(reason.contains("WRONGPASS"), "{reason}");
}

#[tokio::test]
async fn no_message_shows_a_password() {
    let server = RedisServer::start_on_port(|_, _| vec![]).await;
    set_password(&server, None, "right").await;
    let port = server.port();
    for (url, because) in [
        (format!("redis://:hunter2@127.0.0.1:{port}"), "WRONGPASS"),
        (format!("redis://app:hunter2@127.0.0.1:{port}"), "WRONGPASS"),
        (format!("{}?pass=hunter2", server.url()), "WRONGPASS"),
        (format!("redis+cluster://:hunter2@127.0.0.1:{port}"), "WRONGPASS"),
        (format!("redis+sentinel://127.0.0.1:{port}/main?sentinel_password=hunter2"), "WRONGPASS"),
        (format!("redis+sentinel://:hunter2@127.0.0.1:{port}/main"), "NOAUTH"),
        (format!("redis://127.0.0.1:{port}"), "NOAUTH"),
        ("redis://:hunter2@127.0.0.1:1".to_owned(), "refused"),
        ("redis://:hunter2@no-such-host.invalid".to_owned(), "no-such-host.invalid"),
    ] {
        let store = connect(&url);
        let reason = obstacle(&store).await;
        assert!(reason.contains(because) && !reason.contains("hunter2"), "{reason}");
        assert!(!format!("{store:?} {:?}", url.parse::<RedisTarget>()).contains("hunter2"));
    }
}

/// F17.
#[tokio::test]
async fn a_password_in_a_file_is_read_anew_for_each_connection() {
    let server = RedisServer::start_on_port(|_, _| vec![]).await;
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    set_password(&server, None, "first").await;
    fs::write(&password, "first\n").unwrap();
    let files = RedisFiles { password: Some(password.clone()), ..RedisFiles::default() };
    let store = connect_with(&format!("redis://127.0.0.1:{}", server.port()), files);
    works(&store).await;

    set_password(&server, Some("first"), "second").await;
    until(async || obstacle(&store).await.contains("WRONGPASS")).await;
    fs::write(&password, "second\n").unwrap();
    until(async || obstacle(&store).await.is_empty()).await;
    works(&store).await;

    // One that was written only by half, or taken away, is no reason to fall.
    set_password(&server, Some("second"), "third").await;
    fs::write(&password, "").unwrap();
    until(async || obstacle(&store).await.contains("does not begin with a password")).await;
    fs::remove_file(&password).unwrap();
    until(async || obstacle(&store).await.contains("cannot read the password")).await;
    fs::write(&password, "third").unwrap();
    until(async || obstacle(&store).await.is_empty()).await;
    works(&store).await;
}
