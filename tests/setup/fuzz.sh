#!/usr/bin/env bash
# fuzz.sh SECONDS [TARGET...]: runs each fuzz target for so long, and says what came of it. Status 1 where a law was broken.
#
# Without a sanitizer: there is no unsafe code of ours to watch, the stable compiler will do, and it is twice as fast.
. "$(dirname "$0")/common.sh"

duration=$1
shift
pinned=0.13.2
export PATH="$target/tools/bin:$PATH" CARGO_TARGET_DIR="$target/fuzz"
if [ "$(cargo fuzz --version 2>/dev/null)" != "cargo-fuzz $pinned" ]; then
  say "installing cargo-fuzz $pinned into ${target#"$root"/}/tools"
  CARGO_TARGET_DIR="$target/tools/build" cargo install --quiet --locked --root "$target/tools" "cargo-fuzz@$pinned" >&2 ||
    fail "cargo could not install cargo-fuzz"
  rm -rf "$target/tools/build"
fi

cd "$root"
[ $# -gt 0 ] || mapfile -t all < <(cargo fuzz list)
set -- "${@:-${all[@]}}"
say "building the fuzz targets"
cargo fuzz build -s none >&2 || fail "the fuzz targets do not build"
programs="$CARGO_TARGET_DIR/$(rustc -vV | sed -n 's/^host: //p')/release"

dictionary() {
  case $1 in
    fields | json | request | prompt | exhausted) echo json ;;
    response | sse) echo sse ;;
    config) echo yaml ;;
    cost) echo cel ;;
    gate) echo http ;;
    multipart) echo form ;;
    metrics_page) echo metrics ;;
  esac
}

printf '%-14s %12s %12s %10s %8s %8s  %s\n' target runs runs/s coverage corpus peak found
status=0
for name in "$@"; do
  corpus="$CARGO_TARGET_DIR/corpus/$name" artifacts="$CARGO_TARGET_DIR/artifacts/$name/" log="$CARGO_TARGET_DIR/$name.log"
  mkdir -p "$corpus" "$artifacts"
  seeds=("fuzz/seeds/$name")
  [ "$name" != config ] || seeds+=(envoy-config/examples envoy-config/demo)
  words=$(dictionary "$name")
  found=nothing ended=0
  "$programs/$name" "$corpus" "${seeds[@]}" ${words:+"-dict=fuzz/dictionaries/$words.dict"} -max_total_time="$duration" \
    -max_len=20000 -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=256 -use_value_profile=1 -print_final_stats=1 \
    -artifact_prefix="$artifacts" >"$log" 2>&1 || ended=$?
  [ "$ended" = 0 ] || found=$(sed -n '/slow-unit-/d; s/^.*Test unit written to //p' "$log" | tail -1)
  [ -n "$found" ] || found="status $ended, no input"
  statistic() { sed -n "s/^stat::$1: *//p" "$log" | tail -1; }
  last=$(grep -E '^#[0-9]+.*cov: ' "$log" | tail -1 || true)
  printf '%-14s %12s %12s %10s %8s %8s  %s\n' "$name" "$(statistic number_of_executed_units)" "$(statistic average_exec_per_sec)" \
    "$(sed -n 's/.* cov: \([0-9]*\).*/\1/p' <<<"$last")" "$(sed -n 's|.* corp: \([0-9]*\).*|\1|p' <<<"$last")" \
    "$(statistic peak_rss_mb) MB" "$found"
  if [ "$found" != nothing ]; then
    status=1
    if [ -f "$found" ]; then
      sed -n "/panicked at/,+2p; /^==.*ERROR: libFuzzer/p" "$log" | head -6 >&2
      say "run it again: ${programs#"$root"/}/$name $found"
    else
      # 137 is what the kernel does where memory runs out. 139 without a word is a stack that overflowed: libFuzzer says and writes
      # nothing then, as its handler wants room on the same stack.
      say "$name ended with status $ended and wrote no input; the end of $log:"
      tail -n 12 "$log" | cut -c1-300 >&2
    fi
  fi
done
exit $status
