#!/usr/bin/env bash
# Make .venv hold what requirements/dev.txt locks, and find the sources. In shell, because it runs before any dependency exists.
# A second run with the same lock does nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf '[setup] %s\n' "$*" >&2; }
fail() { printf '[setup] expected %s\n           found %s\n            next %s\n' "$@" >&2; exit 1; }

lock=$(cat requirements/bootstrap.txt requirements/dev.txt lab/setup/bootstrap.sh | sha256sum | cut -c1-16)
stamp=.venv/.locked-$lock
[[ -e $stamp && -x .venv/bin/python ]] && exit 0

python=${PYTHON:-python3}
command -v "$python" >/dev/null || fail "Python 3.11 or newer" "no $python on PATH" "install it, or set PYTHON=/path/to/python"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' ||
  fail "Python 3.11 to 3.14" "$python is $version" "install one of them, or set PYTHON=/path/to/python"

begun=$SECONDS
if [[ ! -x .venv/bin/python ]]; then
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    { [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; } ||
      fail "Python's venv module" "$python lacks it" "install it (Debian's package: python3-venv)"
    say "Debian package python3-venv"
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q python3-venv; } >/dev/null
  fi
  say "new virtual environment with Python $version"
  "$python" -m venv .venv
fi
say "locked dependencies (several GB the first time) …"
.venv/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
.venv/bin/uv pip sync -q --python .venv/bin/python --require-hashes requirements/bootstrap.txt requirements/dev.txt
printf '%s\n' "$PWD/operator" "$PWD/trainer_image" "$PWD/tools" "$PWD" \
  > "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/genesis-precision.pth"
rm -f .venv/.locked-*
touch "$stamp"
say "done in $((SECONDS - begun)) s"
