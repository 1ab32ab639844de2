#!/usr/bin/env bash
# Runs Keel on a GPU for the ten minutes that one can be had: correct first, then deterministic, then how fast, beside
# its peers. OUT/gpu.json is written anew after each part, so that whatever ends the run leaves what was found.
#
#   tools/gpu_check.sh OUT [--dry-run] [--device cuda|cpu] [--seconds N] [--work FOLDER] [--only PART,...]
#     --dry-run      every part with a tiny model and a few steps: that the script works, no measurement
#     --device cpu   on the host; with --dry-run a test of the script where there is no GPU
#     --seconds N    of all parts together (600)
#     --work FOLDER  where its runs go meanwhile (the temporary one); they take 40 GB at most
#     --only         parts by name: env, tests, agree, determinism, layouts, rl, train, decode, save, offload,
#                    sync, tools
# Exit 0: no part failed; 1: one did. tools/gpu_report.py OUT/gpu.json makes a page of it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

case "${1:-}" in
  ""|-h|--help) sed -n '2,13s/^# \{0,1\}//p' "$0"; [ -n "${1:-}" ] && exit 0 || exit 64 ;;
esac

# 1. Where the programs are: beside this script when it was packed, else in the build tree.
if [ -x "$here/bin/keel" ]; then
  export KEEL_BIN=$here/bin
else
  export KEEL_BIN=${KEEL_BUILD:-$here/../build/release}
fi
[ -x "$KEEL_BIN/keel" ] || { echo "gpu_check: no $KEEL_BIN/keel: build it, or pack it with tools/gpu_pack.sh" >&2; exit 69; }

# 2. A Python that has torch, whose libraries the packed programs need.
if [ -z "${KEEL_PYTHON:-}" ]; then
  KEEL_PYTHON=$here/../.venv/bin/python
  [ -x "$KEEL_PYTHON" ] || KEEL_PYTHON=$(command -v python3)
fi
export KEEL_PYTHON
if [ -x "$here/bin/keel" ]; then
  torch=$("$KEEL_PYTHON" -c 'import os, torch; print(os.path.dirname(torch.__file__))') ||
    { echo "gpu_check: $KEEL_PYTHON has no torch; set KEEL_PYTHON to one that has" >&2; exit 69; }
  nvidia=$(find "$(dirname "$torch")/nvidia" -maxdepth 2 -name lib -type d 2>/dev/null | paste -sd: || true)
  export LD_LIBRARY_PATH=$here/lib:$torch/lib${nvidia:+:$nvidia}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
exec "$KEEL_PYTHON" -B "$here/gpu_check.py" "$@"
