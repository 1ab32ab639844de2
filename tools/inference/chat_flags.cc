// The flags of keel chat.

#include <memory>

#include "tools/command.h"
#include "tools/inference/chat_command.h"
#include "tools/inference/device_flag.h"
#include "tools/launch/local_ranks.h"
#include "tools/number_check.h"
#include "tools/torch_module.h"
#include "trainer/config/choices.h"

namespace keel::tools {

void AddChatCommand(CLI::App& app, CommandContext& context) {
  auto a = std::make_shared<ChatArguments>();
  CLI::App* chat = app.add_subcommand(
      "chat",
      "Talk with a model: a line in, an answer out; /reset forgets, /exit or the end of the "
      "input ends");
  chat->add_option("MODEL", a->model, "A Hugging Face directory, a step of a run, or adapters")
      ->required();
  chat->add_option("--system", a->system, "What stands before the conversation");
  rollout::SamplingParams& p = a->sampling;
  p.max_tokens = 512;
  p.temperature = 0;
  chat->add_option("--max-new-tokens", p.max_tokens, "Tokens of an answer at most (512)")
      ->check(AtLeast(1));
  chat->add_option("--temperature", p.temperature, "0: the likeliest token (0)")->check(AtLeast(0));
  chat->add_option("--top-k", p.top_k, "Draw from the k likeliest; -1: all (-1)");
  chat->add_option("--top-p", p.top_p, "Draw from the likeliest that hold this mass (1)");
  chat->add_option("--min-p", p.min_p, "Drop what is below this share of the likeliest (0)");
  chat->add_option("--repetition-penalty", p.repetition_penalty,
                   "Above 1: ids that occurred become less likely (1)");
  chat->add_option("--stop", p.stop, "End an answer once it holds this; may be repeated");
  chat->add_option("--seed", p.seed, "Of the draws (0)");
  chat->add_option("--dtype", a->dtype, "float32 or bfloat16 (default: the model's)")
      ->check(CLI::IsMember(AllNames<trainer::WeightDtype>()));
  AddBaseOption(*chat, &a->base);
  AddDeviceOption(*chat, &a->device);
  chat->add_option("--tp", a->tp, "Ranks that share the model, started beside this one (1)")
      ->check(AtLeast(1));
  chat->footer(
      "Examples:\n"
      "  keel chat exported\n"
      "  keel chat exported --system 'Answer in one word.' --temperature 0.7 --seed 1\n"
      "  keel chat runs/quickstart/global_step_120 --tp 2");
  chat->callback([a, &context] {
    LocalRanks ranks = ValueOrThrow(LocalRanks::Start(a->tp, context.arguments));
    a->env = ranks.env();
    ranks.Run([&] { LoadTorchModule().Chat(*a); });
  });
}

}  // namespace keel::tools
