# What the set-up scripts share. Each of them prints one path on standard output and talks on standard error.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }

# debian PACKAGE: installs it with apt-get where that can be done without asking, and says what to do where it cannot.
debian() {
  local sudo=""
  command -v apt-get >/dev/null || fail "install $1 with your package manager, then run this again"
  if [ "$(id -u)" != 0 ]; then
    sudo="sudo -n"
    $sudo true 2>/dev/null || fail "run 'sudo apt-get install $1', then this again"
  fi
  say "installing Debian's package $1"
  $sudo env DEBIAN_FRONTEND=noninteractive sh -c "apt-get update -qq && apt-get install -y -qq $1" >&2 ||
    fail "'apt-get install $1' failed; install $1 by hand, then run this again"
}

# venv NAME REQUIREMENT...: a virtual environment under target/ with exactly these; made once.
venv() {
  local dir="$target/$1" stamp
  shift
  stamp=$(printf '%s ' "$@")
  if [ "$(cat "$dir/.installed" 2>/dev/null)" != "$stamp" ]; then
    command -v python3 >/dev/null || debian python3
    say "installing $* into ${dir#"$root"/}"
    rm -rf "$dir"
    if ! python3 -m venv "$dir" >&2; then
      debian python3-venv
      python3 -m venv "$dir" >&2
    fi
    "$dir/bin/pip" install --quiet --disable-pip-version-check "$@" >&2 || fail "pip could not install $*"
    printf '%s' "$stamp" >"$dir/.installed"
  fi
  printf '%s' "$dir"
}
