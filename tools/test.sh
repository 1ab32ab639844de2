#!/usr/bin/env bash
# Sets up the machine if needed, builds everything, and runs every test that needs no GPU.
#
#   tools/test.sh [-L LABEL] [--no-build] [--asan] [--tidy] [--nightly]
#     -L LABEL     only tests with this label: unit, dist, oracle, e2e, cuda
#     --asan       the torch-free tests under AddressSanitizer and UBSan instead
#     --tidy       clang-tidy over the sources instead (slow)
#     --nightly    the larger sweeps too (KEEL_NIGHTLY=1 in the tests' environment)
set -uo pipefail
cd "$(dirname "$0")/.."

build=1
preset=release
label=()
while [ $# -gt 0 ]; do
  case "$1" in
    -L) label=(-L "$2"); shift ;;
    --no-build) build=0 ;;
    --asan) preset=asan ;;
    --nightly) export KEEL_NIGHTLY=1 ;;
    --tidy) tidy=1 ;;
    -h|--help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "test: unknown option $1; see --help" >&2; exit 64 ;;
  esac
  shift
done
begin=$SECONDS

if [ "$build" = 1 ]; then
  tools/bootstrap.sh --tests || exit 1
fi
if [ "$preset" = asan ]; then
  cmake --preset asan >/dev/null && cmake --build build/asan -j "$(nproc)" || exit 1
fi
if [ "${tidy:-0}" = 1 ]; then
  git ls-files '*.cc' | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build/release
  exit
fi

report=build/test-report.txt
ctest --test-dir "build/$preset" -j 2 --output-on-failure "${label[@]}" 2>&1 | tee "$report"
result=${PIPESTATUS[0]}

failed=$(grep -E ' tests failed out of ' "$report" | sed -E 's/.* ([0-9]+) tests failed out of .*/\1/')
total=$(grep -E ' tests failed out of ' "$report" | sed -E 's/.* out of ([0-9]+).*/\1/')
skipped=$(grep -c '\*\*\*Skipped' "$report")
grep '\*\*\*Skipped' "$report" | sed -E 's/.*Test +#[0-9]+: ([^ ]+).*/skipped here: \1/'
printf 'test programs: %s s in all\n' "$((SECONDS - begin))"
printf '%s passed, %s failed, %s skipped\n' "$((${total:-0} - ${failed:-0} - skipped))" "${failed:-0}" "$skipped"
[ "${total:-0}" -gt 0 ] || { echo "no test was run" >&2; exit 1; }
exit "$result"
