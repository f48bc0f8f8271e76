#!/usr/bin/env bash
# Prints the path of a redis-server: $REDIS_SERVER, else the one on PATH, else Debian's package.
. "$(dirname "$0")/common.sh"

if [ -n "${REDIS_SERVER:-}" ]; then
  printf '%s\n' "$REDIS_SERVER"
else
  command -v redis-server >/dev/null || debian redis-server
  command -v redis-server || fail "redis-server is not on PATH after its installation"
fi
