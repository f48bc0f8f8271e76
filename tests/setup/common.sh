# What the set-up scripts share. Each of them prints one path on standard output and talks on standard error.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }

# debian PACKAGE: installs it with apt-get where that can be done without asking, and says what to do where it cannot.
debian() {
  command -v apt-get >/dev/null || fail "install $1 with your package manager, then run this again"
  as_root true 2>/dev/null || fail "run 'sudo apt-get install $1', then this again"
  say "installing Debian's package $1"
  as_root env DEBIAN_FRONTEND=noninteractive sh -c "apt-get update -qq && apt-get install -y -qq $1" >&2 ||
    fail "'apt-get install $1' failed; install $1 by hand, then run this again"
}

# as_root COMMAND...: without asking for a password.
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

# unpacked PACKAGE: a directory under target/ with the files of Debian's package, which is not installed: what it would start or
# change on this machine it does not. apt holds it to the checksum that its repository signs.
unpacked() {
  local dir="$target/debian/$1" download=(apt-get download -qq -o APT::Sandbox::User=root "$1")
  if [ ! -e "$dir/.unpacked" ]; then
    command -v apt-get >/dev/null || fail "install $1 with your package manager, then run this again"
    say "unpacking Debian's package $1 into ${dir#"$root"/}"
    rm -rf "$dir"
    mkdir -p "$dir"
    (
      cd "$dir"
      # A machine that has never asked has no list of packages.
      "${download[@]}" || { as_root apt-get update -qq && "${download[@]}"; }
      dpkg -x "$1"_*.deb . && rm "$1"_*.deb
    ) >&2 || fail "'apt-get download $1' failed; install $1 by hand, then run this again"
    touch "$dir/.unpacked"
  fi
  printf '%s' "$dir"
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
