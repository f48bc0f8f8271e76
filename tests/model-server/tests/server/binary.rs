//! The binary: its one line, and its end.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Command, Stdio},
};

use reqwest::Client;

use crate::client::json_of;

#[tokio::test]
async fn it_says_where_it_listens_and_ends_cleanly_when_terminated() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_attache-model-server"))
        .args(["--listen", "127.0.0.1:0", "--model", "a", "--model", "b", "--time-per-output-token-ms", "0.5"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let url = line.trim_end().strip_prefix("listening on ").unwrap();
    let models = json_of(Client::new().get(format!("{url}/v1/models"))).await;
    assert_eq!(models["data"][1]["id"], "b");

    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert!(child.wait().unwrap().success());
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}
