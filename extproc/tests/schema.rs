//! The schema for editors that lies in `envoy-config/schema`: it is the one that `attache schema` prints.
//!
//! ```text
//! UPDATE_EXPECT=1 cargo test -p attache --test schema && git diff envoy-config/schema
//! ```

#![cfg(test)]

use std::path::Path;
use std::process::Command;
use std::{env, fs};

#[test]
fn the_schema_beside_the_examples_is_the_one_that_is_printed() {
    let output = Command::new(env!("CARGO_BIN_EXE_attache")).arg("schema").output().unwrap();
    assert!(output.status.success());
    let printed = String::from_utf8(output.stdout).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy-config/schema/attache.json");
    if env::var_os("UPDATE_EXPECT").is_some_and(|value| !value.is_empty()) {
        fs::write(&path, &printed).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == printed,
        "it is another: UPDATE_EXPECT=1 cargo test -p attache --test schema, and look at what git shows"
    );
}
