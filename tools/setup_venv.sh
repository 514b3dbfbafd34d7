#!/usr/bin/env bash
# Build the virtual environment from the lock file, then install the project itself into it, editable.
# Called by the Makefile: setup_venv.sh VENV LOCK. `PYTHON=/path/to/python3` picks the interpreter.
set -euo pipefail
venv=$1
lock=$2
stamp=$venv/.ready

fail() {
  echo "$1" >&2
  exit 1
}

is_new_enough() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if is_new_enough "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  fail "DocGrid needs Python 3.11 or newer and found none: install one, or name it: make PYTHON=/path/to/python3"
}

# pip says "Collecting X" for every package: one line that is rewritten on a terminal, every tenth line elsewhere.
show_progress() {
  awk -v total="$1" -v terminal="$([[ -t 1 ]] && echo 1 || echo 0)" '
    /^Collecting/ {
      n++
      if (terminal) printf "\r\033[K  %d of %d: %s", n, total, $2
      else if (n % 10 == 0) printf "  %d of %d packages\n", n, total
      fflush()
    }
    /^Installing collected/ {
      if (terminal) printf "\r\033[K"
      print "  all fetched, unpacking them"
      fflush()
    }'
}

install_packages() {
  local total
  total=$(grep -cE '^[a-zA-Z0-9]' "$lock")
  echo "Installing the packages of $lock (about 250 MB to fetch, 600 MB on disk; half a minute to a few minutes)"
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-compile --require-hashes \
    --requirement "$lock" | show_progress "$total"
}

install_project() {
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --quiet --no-deps --no-build-isolation \
    --editable .
}

# 1. An environment that can not be used is made anew: its Python is gone, or it was copied from another folder.
if [[ -e $venv ]] && ! { is_new_enough "$venv/bin/python" && [[ $(cat "$stamp" 2>/dev/null || pwd) == "$(pwd)" ]]; }; then
  echo "$venv can not be used here: making it anew"
  rm -rf "$venv"
fi
rm -f "$stamp"

# 2. The environment.
if [[ ! -e $venv ]]; then
  python=$(find_python)
  echo "Making $venv with $("$python" --version)"
  if ! output=$("$python" -m venv "$venv" 2>&1); then
    rm -rf "$venv"
    fail "$python can not make a virtual environment (Debian, Ubuntu: apt-get install python3-venv): ${output##*$'\n'}"
  fi
fi

# 3. Every package as pinned, then the project. The stamp comes last: whatever fails before is done again.
install_packages
install_project
pwd >"$stamp"
echo "$venv is ready"
