# Finds a Docker daemon with Compose and BuildKit, or starts one for this run alone. Sourced by run.sh.

# Compose refuses what it does not know: `required` and `scale` with variables came with it.
compose_needed=2.20

# A daemon that is there already is used as it is: nothing is tagged in it but names of ours, and nothing of its owner's is touched.
# Where there is none, `dockerd` is started with its own data under target/, by root alone, and stopped at the end.
find_daemon() {
  command -v docker >/dev/null || skip "there is no docker on PATH"
  docker info >/dev/null 2>&1 && return
  [ -z "${DOCKER_HOST:-}" ] || skip "no Docker daemon answers at DOCKER_HOST=$DOCKER_HOST"
  command -v dockerd >/dev/null || skip "no Docker daemon answers, and there is no dockerd to start one"
  [ "$(id -u)" = 0 ] || skip "no Docker daemon answers, and only root can start one"
  say "starting a Docker daemon for this run"
  had_bridge=$(ip -brief link show docker0 2>/dev/null || true)
  # The socket stands outside of the data: a path of more than 107 bytes is none.
  daemon_run=$(mktemp -d)
  dockerd --data-root "$work/docker" --exec-root "$daemon_run/exec" --pidfile "$daemon_run/pid" \
    --host "unix://$daemon_run/docker.sock" >"$work/dockerd.log" 2>&1 &
  daemon=$!
  export DOCKER_HOST="unix://$daemon_run/docker.sock"
  local tries=120
  until docker info >/dev/null 2>&1; do
    kill -0 "$daemon" 2>/dev/null || skip "dockerd does not start here: $(tail -n 1 "$work/dockerd.log")"
    [ $((tries -= 1)) -gt 0 ] || fail "dockerd does not answer within a minute: see ${work#"$root"/}/dockerd.log"
    sleep 0.5
  done
}

stop_daemon() {
  [ -n "${daemon:-}" ] || return 0
  kill "$daemon" 2>/dev/null || true
  wait "$daemon" 2>/dev/null || true
  # What it leaves: a mount, and its bridge.
  umount "$daemon_run"/exec/netns/* 2>/dev/null || true
  rm -rf "$daemon_run" || true
  [ -n "$had_bridge" ] || ip link delete docker0 2>/dev/null || true
}

has_compose() {
  local version
  version=$(docker compose version --short 2>/dev/null) && docker buildx version >/dev/null 2>&1 || return 1
  [ "$(printf '%s\n' "$compose_needed" "${version#v}" | sort -V | head -n 1)" = "$compose_needed" ]
}

# Compose and BuildKit's client: those that are installed, else Debian's, unpacked beside everything else and installed nowhere.
find_compose() {
  has_compose && return
  export DOCKER_CONFIG="$work/client"
  has_compose && return
  command -v apt-get >/dev/null || skip "Docker Compose $compose_needed and buildx are not installed"
  debian_root
  say "fetching Docker Compose and buildx from Debian $release"
  mkdir -p "$DOCKER_CONFIG/cli-plugins"
  chroot "$debian" sh -c 'apt-get update -qq && cd /tmp && apt-get download -qq docker-compose docker-buildx' >&2
  local package
  for package in "$debian"/tmp/*.deb; do dpkg -x "$package" "$work/tools"; done
  rm -f "$debian"/tmp/*.deb
  cp "$work"/tools/usr/libexec/docker/cli-plugins/* "$DOCKER_CONFIG/cli-plugins/"
  has_compose || fail "Docker Compose of Debian $release does not run here"
}
