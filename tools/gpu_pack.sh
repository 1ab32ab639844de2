#!/usr/bin/env bash
# Collects what a machine with a GPU, torch and no network needs to run tools/gpu_check.sh: stripped programs,
# the modules, the Debian libraries that they are linked with, and the scripts. torch is not carried.
#
#   tools/gpu_pack.sh [--archive] [FOLDER]     default: .gpu; it is made anew
#     --archive      FOLDER.tar.gz, too, a third of it, for where little may be sent
#   there: FOLDER/gpu_check.sh OUT
set -euo pipefail
cd "$(dirname "$0")/.."

archive=
if [ "${1:-}" = --archive ]; then archive=1; shift; fi
case "${1:-}" in
  -h|--help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
  -*) echo "gpu_pack: unknown option $1; see --help" >&2; exit 64 ;;
esac
to=${1:-.gpu}
build=${KEEL_BUILD:-build/release}
fail() { echo "gpu_pack: $*" >&2; exit 1; }
[ -x "$build/keel" ] || fail "no $build/keel: run tools/bootstrap.sh --tests first"
[ -e "$build/libkeel_cuda.so" ] || fail "no $build/libkeel_cuda.so: the torch wheel of .venv is one without CUDA"
if [ -e "$to" ] && [ ! -e "$to/gpu_check.sh" ]; then fail "$to is there, and is no folder of this script's"; fi
rm -rf "$to" "$to.tar.gz"
mkdir -p "$to/bin" "$to/lib"

# 1. Programs and modules, without what only a debugger reads. A module's build id stays.
for file in keel libkeel_torch.so libkeel_cuda.so keel_bench libkeel_bench_torch.so cuda_test gpu_bodies_test; do
  [ -e "$build/$file" ] || { echo "gpu_pack: $file is not built, and left out" >&2; continue; }
  strip --strip-unneeded -o "$to/bin/$file" "$build/$file"
done

# 2. The libraries of this system that such a machine may not have. Those of torch are found beside it, and those of
# the compiler and of C must be its own. oneDNN, which is as large as all else, is for products on hosts: without it
# they are PyTorch's.
for file in "$to"/bin/*; do ldd "$file"; done | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  grep -Ev '/site-packages/|/lib(c|m|dl|rt|pthread|resolv|util|stdc\+\+|gcc_s|gomp)\.so' |
  while read -r library; do cp -L "$library" "$to/lib/"; done

# 3. The scripts, and what they were packed from.
cp tools/gpu_check.sh tools/gpu_check.py tools/gpu_peers.py tools/gpu_report.py "$to/"
git rev-parse HEAD > "$to/commit" 2>/dev/null || echo unknown > "$to/commit"
git diff --quiet HEAD 2>/dev/null || echo "with changes that are not committed" >> "$to/commit"
du -sh "$to" | awk '{ print "packed " $1 " in " $2 }'
if [ -n "$archive" ]; then
  tar -C "$(dirname "$to")" -czf "$to.tar.gz" "$(basename "$to")"
  du -sh "$to.tar.gz" | awk '{ print "and " $1 " in " $2 }'
fi
