#!/usr/bin/env bash
# Write the lock files again from pyproject.toml: one for all work here, and from it what each image installs.
set -euo pipefail
cd "$(dirname "$0")/../.."

compile() {
  .venv/bin/uv pip compile -q --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
    --custom-compile-command "make lock" "$@"
}
compile requirements/bootstrap.in -o requirements/bootstrap.txt
compile requirements/go.in -o requirements/go.txt
compile --all-extras pyproject.toml -o requirements/dev.txt
compile -c requirements/dev.txt --extra operator pyproject.toml -o requirements/operator.txt
compile -c requirements/dev.txt --extra plugin pyproject.toml -o requirements/plugin.txt
compile -c requirements/dev.txt --extra trainer pyproject.toml -o requirements/trainer.txt
