// The flags of keel generate.

#include <memory>

#include "tools/command.h"
#include "tools/inference/device_flag.h"
#include "tools/inference/generate_command.h"
#include "tools/launch/local_ranks.h"
#include "tools/number_check.h"
#include "tools/torch_module.h"
#include "trainer/config/choices.h"

namespace keel::tools {

void AddGenerateCommand(CLI::App& app, CommandContext& context) {
  auto a = std::make_shared<GenerateArguments>();
  CLI::App* generate =
      app.add_subcommand("generate", "Continue texts and conversations with a model");
  generate
      ->add_option("--model", a->model, "A Hugging Face directory, a step of a run, or adapters")
      ->required();
  generate
      ->add_option("--input", a->input,
                   "JSON Lines with input_ids, messages, text or prompt; -: from standard input")
      ->required();
  generate
      ->add_option("--output", a->output,
                   "JSON Lines: the row, output_ids, output, finish_reason; -: to standard output")
      ->required();
  rollout::SamplingParams& p = a->sampling;
  p.max_tokens = 64;
  p.temperature = 0;
  generate->add_option("--max-new-tokens", p.max_tokens, "Tokens at most (64)")->check(AtLeast(1));
  generate->add_option("--temperature", p.temperature, "0: the likeliest token (0)")
      ->check(AtLeast(0));
  generate->add_option("--top-k", p.top_k, "Draw from the k likeliest; -1: all (-1)");
  generate->add_option("--top-p", p.top_p, "Draw from the likeliest that hold this mass (1)");
  generate->add_option("--min-p", p.min_p, "Drop what is below this share of the likeliest (0)");
  generate->add_option("--repetition-penalty", p.repetition_penalty,
                       "Above 1: ids that occurred become less likely (1)");
  generate->add_option("--stop", p.stop, "End once the text holds this; may be repeated");
  generate->add_option("--n", a->samples, "Samples a row, a line each with its number (1)")
      ->check(AtLeast(1));
  generate->add_option("--seed", p.seed, "Of the draws (0)");
  generate->add_flag("--log-probs", a->log_probs,
                     "Also output_log_probs: log-softmax of the model's logits at each token");
  generate->add_option("--max-num-seqs", a->max_num_seqs, "Rows computed at a time (256)")
      ->check(AtLeast(1));
  generate
      ->add_option("--kv-cache-megabytes", a->cache_megabytes,
                   "Memory for keys and values; 0: as needed, at most 1 GiB (0)")
      ->check(AtLeast(0));
  generate->add_flag(
      "--enforce-eager", a->enforce_eager,
      "Give a GPU each step operation by operation, instead of replaying a recorded one");
  generate->add_option("--dtype", a->dtype, "float32 or bfloat16 (default: the model's)")
      ->check(CLI::IsMember(AllNames<trainer::WeightDtype>()));
  AddBaseOption(*generate, &a->base);
  AddDeviceOption(*generate, &a->device);
  generate->add_option("--tp", a->tp, "Ranks that share the model, started beside this one (1)")
      ->check(AtLeast(1));
  generate->footer(
      "Examples:\n"
      "  keel generate --model exported --input prompts.jsonl --output out.jsonl\n"
      "  keel generate --model exported --input prompts.jsonl --output out.jsonl --max-new-tokens "
      "200 --temperature 0.8\n"
      "  keel generate --model runs/quickstart/global_step_120 --tp 2 --input prompts.jsonl "
      "--output "
      "out.jsonl");
  generate->callback([a, &context] {
    LocalRanks ranks = ValueOrThrow(LocalRanks::Start(a->tp, context.arguments));
    a->env = ranks.env();
    ranks.Run([&] { LoadTorchModule().Generate(*a); });
  });
}

}  // namespace keel::tools
