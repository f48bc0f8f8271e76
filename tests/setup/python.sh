#!/usr/bin/env bash
# Prints the path of a Python that has the official client libraries, in a venv under target/.
. "$(dirname "$0")/common.sh"

# httpx's brotli and zstd are extras; Python 3.14 has zstd itself.
dir=$(venv client-venv openai==3.57.0 anthropic==2.14.0 brotli==1.2.1 "backports.zstd==1.8.0; python_version < '3.14'")
printf '%s\n' "$dir/bin/python"
