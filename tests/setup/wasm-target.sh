#!/usr/bin/env bash
# Makes sure that the compiler can build for wasm32-wasip1.
. "$(dirname "$0")/common.sh"

[ -d "$(rustc --print target-libdir --target wasm32-wasip1)" ] && exit 0
command -v rustup >/dev/null || fail "this Rust has no wasm32-wasip1 target and there is no rustup to add it; see https://rustup.rs"
rustup target add wasm32-wasip1 >&2
