#!/usr/bin/env bash
# Prints the path of a Python that has Helm's own engine, in a venv under target/: the chart is rendered by it, with no cluster.
. "$(dirname "$0")/common.sh"

dir=$(venv helm-venv "helm-python-sdk==0.2.2")
printf '%s\n' "$dir/bin/python"
