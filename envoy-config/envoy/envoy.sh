#!/usr/bin/env bash
# Envoy in a container: Envoy's image has bash, and no curl. Envoy itself ends at once when it is told to, and all answers with it.
#
#   envoy.sh serve ARGUMENT...    envoy with these arguments. On SIGTERM it takes no new connection, tells clients to leave, and ends
#                                 when the last request has its answer, or after DRAIN_SECONDS (30)
#   envoy.sh ready                status 0 where it takes requests
#
# Its admin interface has to be at 127.0.0.1:9901.
set -euo pipefail

# ask METHOD PATH: what the admin interface answers.
ask() {
  local admin
  exec {admin}<>/dev/tcp/127.0.0.1/9901 || return 1
  printf '%s %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\nconnection: close\r\n\r\n' "$1" "$2" >&"$admin"
  timeout 2 cat <&"$admin"
  exec {admin}>&-
}

is_ready() { [[ $(ask GET /ready 2>/dev/null) == "HTTP/1.1 200 "* ]]; }

# Whether all listeners are shut and no request is under way.
is_drained() {
  local stats
  stats=$(ask GET '/stats?filter=^(listener_manager.listener_stopped|http.attache.downstream_rq_active)$') || return 1
  [[ $stats =~ listener_stopped:\ [1-9] && $stats =~ downstream_rq_active:\ 0 ]]
}

drain() {
  # Whoever asks twice means now.
  trap 'kill -TERM "$envoy"' TERM INT
  local deadline=$((SECONDS + ${DRAIN_SECONDS:-30}))
  ask POST '/drain_listeners?graceful' >/dev/null || true
  until is_drained || ((SECONDS >= deadline)) || ! kill -0 "$envoy" 2>/dev/null; do sleep 0.2; done
  kill -TERM "$envoy" 2>/dev/null || true
}

serve() {
  # Clients are told at once, and the listeners are shut a second later.
  envoy "$@" --drain-strategy immediate --drain-time-s 1 &
  envoy=$!
  trap drain TERM INT
  local status=0
  # A signal ends `wait`, not Envoy.
  while kill -0 "$envoy" 2>/dev/null; do wait "$envoy" && status=0 || status=$?; done
  exit "$status"
}

case ${1:-} in
  serve) serve "${@:2}" ;;
  ready) is_ready ;;
  *) echo "usage: envoy.sh serve ARGUMENT... | ready" >&2; exit 2 ;;
esac
