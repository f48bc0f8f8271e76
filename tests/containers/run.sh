#!/usr/bin/env bash
# run.sh [TEST...]: builds the images and plays docker-compose.yml on a Docker daemon: the body of `make test-compose`.
#
#   DOCKER_HOST    a running daemon; without one, root starts a dockerd of its own for this run
#   PREBUILT       a folder with attache, attache-model-server and attache_wasm_filter.wasm for the stand-in of the compiler; what
#                  `cargo build --release` makes, without
#   COMPILE=1      the stack's images are compiled in the container: a quarter of an hour on two cores
#
# Status 0 and a line that begins with `skipped:` where there is no Docker. Nothing is left running; images and the data of our
# own daemon stay under target/containers, so that the next run has them.
. "$(dirname "$0")/../setup/common.sh"
here="$root/tests/containers"
work="$target/containers"
mkdir -p "$work"

skip() { say "skipped: $*"; exit 0; }

. "$here/daemon.sh"
. "$here/images.sh"
. "$here/toolchain.sh"

trap stop_daemon EXIT
find_daemon
find_compose

overrides=()
if ! has_registry; then
  say "no registry answers: stand-ins of Debian's packages take the place of its images"
  debian_stand_in
  export BASE_IMAGE="$stand_in/debian"
  for service in "${services[@]}"; do
    "${service}_stand_in"
    overrides+=("$service=$stand_in/$service")
  done
fi
if [ -n "${COMPILE:-}" ]; then
  [ ${#overrides[@]} = 0 ] || { compiler_stand_in; export RUST_IMAGE="$stand_in/rust"; }
else
  toolchain_stand_in
  export RUST_IMAGE="$stand_in/toolchain"
fi

export ATTACHE_STAND_INS="${overrides[*]}"
export PYTHONDONTWRITEBYTECODE=1
cd "$here"
# What is built twice is proved with the stand-in alone: to compile it would take hours.
if [ $# = 0 ]; then
  [ -n "${COMPILE:-}" ] || set -- test_build
  set -- "$@" test_stack
fi
python3 -m unittest --verbose --failfast "$@"
