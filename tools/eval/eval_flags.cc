// The flags of keel eval.

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "tools/command.h"
#include "tools/eval/eval_command.h"
#include "tools/inference/device_flag.h"
#include "tools/launch/local_ranks.h"
#include "tools/number_check.h"
#include "tools/torch_module.h"
#include "trainer/config/choices.h"

namespace keel::tools {

namespace {

void AddSampling(CLI::App* eval, EvalArguments& a) {
  rollout::SamplingParams& p = a.sampling;
  p.max_tokens = 512;
  p.temperature = 1;
  eval->add_option("--n", a.n, "Samples a row (1)")->check(AtLeast(1));
  eval->add_option("--k", a.ks, "Of pass@k and maj@k, as 1,4,8 (1 and --n)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(AtLeast(1));
  eval->add_option("--max-new-tokens", p.max_tokens, "Tokens at most (512)")->check(AtLeast(1));
  eval->add_option("--temperature", p.temperature, "0: the likeliest token, with --n 1 alone (1)")
      ->check(AtLeast(0));
  eval->add_option("--top-k", p.top_k, "Draw from the k likeliest; -1: all (-1)");
  eval->add_option("--top-p", p.top_p, "Draw from the likeliest that hold this mass (1)");
  eval->add_option("--min-p", p.min_p, "Drop what is below this share of the likeliest (0)");
  eval->add_option("--repetition-penalty", p.repetition_penalty,
                   "Above 1: ids that occurred become less likely (1)");
  eval->add_option("--stop", p.stop, "End once the text holds this; may be repeated");
  eval->add_option("--seed", p.seed, "Of the draws (0)");
}

void Check(EvalArguments& a) {
  if (a.ks.empty()) a.ks = {1, a.n};
  std::sort(a.ks.begin(), a.ks.end());
  a.ks.erase(std::unique(a.ks.begin(), a.ks.end()), a.ks.end());
  if (a.ks.back() > a.n) {
    throw Error(StatusCode::kUsage,
                fmt::format("--k {} is more than --n {}: pass@k of fewer than k samples is not "
                            "known; raise --n",
                            a.ks.back(), a.n));
  }
  if (a.n > 1 && a.sampling.temperature == 0) {
    throw Error(StatusCode::kUsage,
                fmt::format("--temperature 0 with --n {}: all samples of a row would be the same; "
                            "raise it, or leave --n out",
                            a.n));
  }
  if (const auto problems = a.sampling.Validate(); !problems.empty())
    throw Error(StatusCode::kUsage, fmt::format("{}", fmt::join(problems, "; ")));
}

}  // namespace

void AddEvalCommand(CLI::App& app, CommandContext& context) {
  auto a = std::make_shared<EvalArguments>();
  CLI::App* eval =
      app.add_subcommand("eval", "Score a model's answers: pass@k, maj@k and means by data source");
  eval->add_option("--model", a->model, "A Hugging Face directory, a step of a run, or adapters")
      ->required();
  eval->add_option("--data", a->data,
                   "Rows of prompt and ground truth, as runs of RL read them; may be repeated")
      ->required();
  eval->add_option("--output", a->output,
                   "A folder for samples and summary; one that has a part of them is gone on with")
      ->required();
  eval->add_option("--config", a->config,
                   "A run's YAML: its reward, and how its data's keys are called");
  eval->add_option("overrides", a->overrides,
                   "reward.KEY=VALUE, data.KEY=VALUE: beside --config, or instead of it");
  AddSampling(eval, *a);
  eval->add_option("--rows", a->most_rows, "The first so many rows alone")->check(AtLeast(1));
  eval->add_option("--right-at", a->right_at,
                   "The least score of a right response, where the reward gives no `acc` (1)");
  eval->add_option("--max-num-seqs", a->max_num_seqs, "Samples computed at a time (256)")
      ->check(AtLeast(1));
  eval->add_option("--kv-cache-megabytes", a->cache_megabytes,
                   "Memory for keys and values; 0: as needed, at most 1 GiB (0)")
      ->check(AtLeast(0));
  eval->add_option("--dtype", a->dtype, "float32 or bfloat16 (default: the model's)")
      ->check(CLI::IsMember(AllNames<trainer::WeightDtype>()));
  AddBaseOption(*eval, &a->base);
  AddDeviceOption(*eval, &a->device);
  eval->add_option("--tp", a->tp,
                   "Ranks that share a copy of the model; under a launcher each so many of its "
                   "ranks have a copy, and a share of the rows (1)")
      ->check(AtLeast(1));
  eval->footer(
      "Examples:\n"
      "  keel eval --model exported --data test.jsonl --output eval\n"
      "  keel eval --model runs/quickstart/global_step_120 --data test.jsonl --output eval-8 --n 8 "
      "--k 1,4,8 --temperature 0.8 reward.type=arithmetic\n"
      "  keel launch --nproc-per-node 4 eval --model exported --tp 2 --data test.jsonl --output "
      "eval-copies");
  eval->callback([a, &context] {
    Check(*a);
    const parallel::LaunchEnv env =
        ValueOrThrow(parallel::DetectLaunchEnv(parallel::ProcessEnvironment()));
    const bool alone = env.launcher == parallel::Launcher::kNone;
    a->tp = std::max<int64_t>(1, a->tp);
    LocalRanks ranks = ValueOrThrow(LocalRanks::Start(alone ? a->tp : 0, context.arguments));
    a->env = ranks.env();
    ranks.Run([&] { LoadTorchModule().Evaluate(*a); });
  });
}

}  // namespace keel::tools
