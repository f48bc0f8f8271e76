#!/usr/bin/env bash
# Prints the path of a Python that has the official client libraries, in a venv under target/.
. "$(dirname "$0")/common.sh"

dir=$(venv client-venv openai==3.57.0 anthropic==2.14.0 brotli==1.2.1 zstandard==0.25.0)
printf '%s\n' "$dir/bin/python"
