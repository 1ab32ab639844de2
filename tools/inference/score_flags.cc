// The flags of keel score.

#include <memory>

#include "tools/command.h"
#include "tools/inference/device_flag.h"
#include "tools/inference/score_command.h"
#include "tools/launch/local_ranks.h"
#include "tools/number_check.h"
#include "tools/torch_module.h"
#include "trainer/config/choices.h"

namespace keel::tools {

void AddScoreCommand(CLI::App& app, CommandContext& context) {
  auto a = std::make_shared<ScoreArguments>();
  CLI::App* score = app.add_subcommand("score", "Log-probabilities per token under a model");
  score->add_option("--model", a->model, "A Hugging Face directory, a step of a run, or adapters")
      ->required();
  score
      ->add_option("--input", a->input,
                   "JSON Lines with input_ids, messages, text or prompt; -: from standard input")
      ->required();
  score
      ->add_option("--output", a->output,
                   "JSON Lines: log_probs, sum_log_prob, perplexity; -: to standard output")
      ->required();
  score->add_option("--logits", a->logits,
                    "Also all logits, as safetensors logits.<row> [tokens, vocab] fp32");
  score->add_option("--dtype", a->dtype, "float32 or bfloat16 (default: the model's)")
      ->check(CLI::IsMember(AllNames<trainer::WeightDtype>()));
  AddBaseOption(*score, &a->base);
  AddDeviceOption(*score, &a->device);
  score->add_option("--tp", a->tp, "Ranks that share the model, started beside this one (1)")
      ->check(AtLeast(1));
  score->footer(
      "Examples:\n"
      "  keel score --model exported --input rows.jsonl --output scores.jsonl\n"
      "  keel score --model Qwen2.5-0.5B --input ids.jsonl --output scores.jsonl --dtype float32\n"
      "  keel score --model exported --input rows.jsonl --output scores.jsonl --logits "
      "logits.safetensors");
  score->callback([a, &context] {
    LocalRanks ranks = ValueOrThrow(LocalRanks::Start(a->tp, context.arguments));
    a->env = ranks.env();
    ranks.Run([&] { LoadTorchModule().Score(*a); });
  });
}

}  // namespace keel::tools
