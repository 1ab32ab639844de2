#!/usr/bin/env bash
# From a bare Debian 12 machine to a trained model: sets up what is missing, builds, then trains a small
# Llama on the Perl manuals with 4 ranks (TP=2 x PP=2, CPU, gloo), is stopped in the middle, goes on
# from its checkpoint, and shows what it wrote. Safe to run again.
#
#   tools/quickstart.sh [FOLDER]     FOLDER: where the run goes (default runs/quickstart); made anew
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in -h|--help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
run=${1:-runs/quickstart}
say() { printf '\n== %s\n' "$*"; }

say "1. Set up and build"
tools/bootstrap.sh
keel=build/release/keel

say "2. Text to train on: the Perl manuals of the package perl-doc"
# A folder that holds something other than an earlier quickstart is not ours to remove.
if [ -e "$run" ] && [ ! -e "$run/run_id" ] && [ -n "$(ls -A "$run" 2>/dev/null)" ]; then
  echo "quickstart: $run exists and is no run of Keel; name another folder" >&2
  exit 73
fi
rm -rf "$run"
mkdir -p "$run"
pods=$(find /usr/share/perl/ -name 'perl*.pod' | sort | head -n 40)
[ -n "$pods" ] || { echo "quickstart: no perl*.pod under /usr/share/perl; is perl-doc installed?" >&2; exit 66; }
# shellcheck disable=SC2086
cat $pods | head -c 4000000 > "$run/manuals.txt"
run=$(cd "$run" && pwd)
echo "$(echo "$pods" | wc -l) manuals, $(stat -c %s "$run/manuals.txt") bytes -> $run/manuals.txt"

# Run in a subshell: it becomes the launcher, so that a signal to it reaches the launcher.
train() {
  exec "$keel" launch --nproc-per-node 4 --log-dir "$run/logs" --rdzv-id "$1" train configs/quickstart.yaml \
    "data.train_files=[$run/manuals.txt]" "trainer.default_local_dir=$run"
}

say "3. Train with 4 ranks, TP=2 x PP=2; it is stopped (SIGTERM) after its second checkpoint"
(train first) &
launcher=$!
while kill -0 "$launcher" 2>/dev/null && [ ! -d "$run/global_step_40" ]; do sleep 0.2; done
# The signal goes to the launcher alone, which passes it on.
kill -TERM "$launcher" 2>/dev/null || true
code=0
wait "$launcher" || code=$?
[ "$code" = 75 ] || { echo "quickstart: expected exit code 75 (stopped, state saved), got $code" >&2; exit 1; }
echo "stopped with exit code 75: the state is saved"
"$keel" ckpt ls "$run"

say "4. Start again: it goes on where it stopped"
(train second)

say "5. What there is now"
"$keel" ckpt ls "$run"
newest=$run/global_step_$(cat "$run/latest_checkpointed_iteration.txt")
"$keel" ckpt verify "$newest"
rm -rf "$run/export"
"$keel" ckpt export-hf "$newest" "$run/export"
printf '{"text": "=head1 NAME"}\n{"text": "The function "}\n' > "$run/prompts.jsonl"
"$keel" generate --model "$run/export" --input "$run/prompts.jsonl" --output "$run/generated.jsonl" --max-new-tokens 120 --temperature 0.7
cat "$run/generated.jsonl"

say "Where everything lies"
cat <<EOF
  metrics          $run/metrics.jsonl
  checkpoints      $run/global_step_*/   (records of saves and loads: $run/checkpoints.jsonl)
  configuration    $run/config.yaml
  logs per rank    $run/logs/
  exported model   $run/export/          (loads in transformers)
  generated text   $run/generated.jsonl
Next: change configs/quickstart.yaml, read docs/tour.md, or run  $keel --help
EOF
