#!/usr/bin/env bash
# Sets up a Debian 12 machine for Keel and builds the `keel` program. Safe to run again: what is there
# is left alone. Details go to build/bootstrap.log.
#
#   tools/bootstrap.sh [--tests] [--kernels] [--no-torch] [--only-setup] [--jobs N]
#     --tests      build the tests and benchmarks too
#     --kernels    install nvcc for Keel's own kernels for GPUs (100 MB); --tests does, too
#     --no-torch   only the torch-free part: no virtual environment, no wheel
#     --only-setup packages and the virtual environment alone: nothing is built
set -euo pipefail
cd "$(dirname "$0")/.."

target=keel
preset=release
jobs=$(nproc)
kernels=0
while [ $# -gt 0 ]; do
  case "$1" in
    --tests) target=all; kernels=1 ;;
    --kernels) kernels=1 ;;
    --no-torch) preset=no-torch ;;
    --only-setup) setup=1 ;;
    --jobs) jobs=$2; shift ;;
    -h|--help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "bootstrap: unknown option $1; see --help" >&2; exit 64 ;;
  esac
  shift
done

packages=(g++ cmake ninja-build ccache pkg-config git python3-venv ca-certificates
  libcli11-dev libyaml-cpp-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libpcre2-dev libonig-dev libutf8proc-dev libsimdjson-dev libxxhash-dev
  libcurl4-openssl-dev libcpp-httplib-dev liburing-dev libdnnl-dev zlib1g-dev libzstd-dev libgtest-dev libgmock-dev python3-dev pybind11-dev perl-doc iproute2 strace)

# What the tests of packages, completion and examples look with; each says what it skips where one is missing.
if [ "$target" = all ]; then packages+=(dpkg-dev shellcheck zsh fish mandoc); fi

mkdir -p build
log=build/bootstrap.log
: > "$log"
begin=$SECONDS
say() { printf 'bootstrap %4ds  %s\n' "$((SECONDS - begin))" "$*"; }
fail() {
  printf 'bootstrap: %s\n' "$*" >&2
  printf 'the last lines of %s:\n' "$log" >&2
  tail -n 15 "$log" >&2
  exit 1
}

# 1. Debian packages.
missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true)
  [[ $state = ii* ]] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || fail "missing packages: ${missing[*]}; this is no Debian machine (no apt-get), install their counterparts"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "missing packages: ${missing[*]}; run as root, or install them with: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing Debian packages: ${missing[*]}"
  "${as_root[@]}" apt-get update >>"$log" 2>&1 || fail "apt-get update failed: is there a network and a package source?"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1 ||
    fail "apt-get install ${missing[*]} failed"
else
  say "Debian packages: all ${#packages[@]} there"
fi

# Unpacking the wheel takes one processor: the others compile what needs none, until `end_meanwhile`.
build_meanwhile() {
  [ "${setup:-0}" = 0 ] && [ "$jobs" -gt 1 ] || return 0
  cmake --preset "$preset" -DKEEL_WITH_TORCH=OFF >build/meanwhile.log 2>&1 || return 0  # section 3 says what is wrong
  ninja -C "build/$preset" -j "$((jobs - 1))" "$target" >>build/meanwhile.log 2>&1 &
  meanwhile=$!
  trap end_meanwhile EXIT
}
end_meanwhile() {
  [ -n "${meanwhile:-}" ] || return 0
  kill "$meanwhile" 2>/dev/null || true
  wait "$meanwhile" || true
  meanwhile=
}

# 2. The virtual environment with the torch wheel. A half-made one is made again.
if [ "$preset" = release ]; then
  stamp=$(sha256sum requirements.txt | cut -c1-16)
  if [ -f .venv/keel-requirements ] && [ "$(cat .venv/keel-requirements)" = "$stamp" ]; then
    say "virtual environment: up to date"
  else
    say "virtual environment: installing requirements.txt (torch takes some minutes and 5 GB)"
    [ -x .venv/bin/pip ] || rm -rf .venv
    [ -d .venv ] || python3 -m venv .venv >>"$log" 2>&1 || fail "python3 -m venv .venv failed"
    build_meanwhile
    .venv/bin/pip install --disable-pip-version-check -r requirements.txt >>"$log" 2>&1 ||
      fail "pip install -r requirements.txt failed: is there a network, and room on the disk ($(df -h --output=avail . | tail -1 | tr -d ' ') free)?"
    echo "$stamp" > .venv/keel-requirements
  fi
  # The compiler of Keel's own kernels, where the wheel is one with CUDA: without it, and without one of the
  # system, PyTorch's operations run in their place.
  if [ "$kernels" = 1 ] && compgen -G '.venv/lib/python3*/site-packages/nvidia/cu13/include/cuda_runtime_api.h' >/dev/null; then
    kernels_stamp=$(sha256sum requirements-cuda.txt | cut -c1-16)
    if ! { [ -f .venv/keel-cuda ] && [ "$(cat .venv/keel-cuda)" = "$kernels_stamp" ]; }; then
      say "virtual environment: installing requirements-cuda.txt (nvcc, 100 MB)"
      if .venv/bin/pip install --disable-pip-version-check --no-deps -r requirements-cuda.txt >>"$log" 2>&1; then
        echo "$kernels_stamp" > .venv/keel-cuda
      else
        say "pip install -r requirements-cuda.txt failed: Keel's own kernels are built only if the system has nvcc of CUDA 13"
      fi
    fi
  fi
  # The documentation site's, which only its test needs: without them that one is skipped.
  docs_stamp=$([ "$target" != all ] || sha256sum requirements-docs.txt | cut -c1-16)
  if [ "$target" = all ] && ! { [ -f .venv/keel-docs ] && [ "$(cat .venv/keel-docs)" = "$docs_stamp" ]; }; then
    say "virtual environment: installing requirements-docs.txt"
    if .venv/bin/pip install --disable-pip-version-check -r requirements-docs.txt >>"$log" 2>&1; then
      echo "$docs_stamp" > .venv/keel-docs
    else
      say "pip install -r requirements-docs.txt failed: the test of the documentation site will be skipped"
    fi
  fi
fi

if [ "${setup:-0}" = 1 ]; then
  say "done: nothing is built"
  exit 0
fi

# 3. Configure and build.
end_meanwhile
say "configuring (preset $preset)"
cmake --preset "$preset" >>"$log" 2>&1 || fail "cmake --preset $preset failed"
say "building $target with $jobs jobs"
cmake --build "build/$preset" --target "$target" -j "$jobs" >>"$log" 2>&1 || fail "the build failed"
say "done: build/$preset/keel"
