#!/usr/bin/env bash
# Prints the path of a promtool: $PROMTOOL, else the one on PATH, else that of Debian's prometheus. That is not installed, as it
# would start a Prometheus. Prints nothing where there is none to be had: then no alert is evaluated.
. "$(dirname "$0")/common.sh"

if [ -n "${PROMTOOL:-}" ]; then
  printf '%s\n' "$PROMTOOL"
elif ! command -v promtool; then
  dir=$(unpacked prometheus) || { say "skipped: what promtool makes of the alerts, as there is none"; exit 0; }
  printf '%s\n' "$dir/usr/bin/promtool"
fi
