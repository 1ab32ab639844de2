// keel generate: greedy or sampled continuations of many rows at a time.

#include <fmt/format.h>

#include <map>
#include <memory>

#include "rollout/engine.h"
#include "tools/command.h"
#include "tools/hf_inference.h"
#include "tools/number_check.h"
#include "tools/row_output.h"

namespace keel::tools {

namespace {

struct GenerateArguments {
  std::string model, input, output, dtype;
  rollout::SamplingParams sampling;
  int64_t samples = 1;
  bool log_probs = false;
  int64_t max_num_seqs = 256;
  int64_t cache_megabytes = 0;
};

void Generate(const GenerateArguments& a) {
  if (const auto problems = a.sampling.Validate(); !problems.empty())
    throw Error(StatusCode::kUsage, fmt::format("{}", fmt::join(problems, "; ")));
  HfInference model(a.model, a.dtype);
  const std::vector<InputRow> rows = ReadInputRows(a.input, model);
  rollout::EngineOptions options;
  options.scheduler.max_num_seqs = a.max_num_seqs;
  options.kv_cache_bytes = a.cache_megabytes << 20;
  options.logprobs_mode = rollout::LogProbsMode::kRaw;
  rollout::Engine engine = model.MakeEngine(options);
  RowOutput out = ValueOrThrow(RowOutput::Open("--output", a.output));
  for (size_t row = 0; row < rows.size(); ++row) {
    for (int64_t sample = 0; sample < a.samples; ++sample)
      engine.Add({row, static_cast<int>(sample), rows[row].ids, a.sampling});
  }
  // Of the first row, in the order of rows, that failed; the others are written all the same.
  std::map<size_t, Status> failed;
  const auto write = [&](const rollout::Completion& completion) {
    const InputRow& row = rows[completion.prompt_id];
    Json line = row.json;
    if (a.samples > 1) line["sample"] = completion.sample;
    line["output_ids"] = completion.tokens;
    if (completion.text) line["output"] = *completion.text;
    if (a.log_probs) line["output_log_probs"] = completion.log_probs;
    line["finish_reason"] = rollout::FinishReasonName(completion.finish);
    if (!completion.error.ok()) {
      line["error"] = completion.error.message();
      failed.emplace(completion.prompt_id, completion.error.WithContext(row.where));
    }
    ThrowIfError(
        out.Put(completion.prompt_id * static_cast<size_t>(a.samples) + static_cast<size_t>(completion.sample),
                line.dump(-1, ' ', false, Json::error_handler_t::replace)));
  };
  while (!engine.idle()) {
    for (const rollout::Completion& completion : engine.Step()) write(completion);
  }
  ThrowIfError(out.Finish());
  fmt::print("{} rows, {} tokens generated -> {}\n", rows.size(), engine.stats().generated_tokens,
             a.output);
  if (!failed.empty()) throw Error(failed.begin()->second);
}

}  // namespace

void AddGenerateCommand(CLI::App& app, CommandContext&) {
  auto a = std::make_shared<GenerateArguments>();
  CLI::App* generate = app.add_subcommand("generate", "Continue texts with a Hugging Face model");
  generate->add_option("--model", a->model, "Hugging Face directory")->required();
  generate
      ->add_option("--input", a->input,
                   "JSON Lines with input_ids, text or prompt; -: from standard input")
      ->required();
  generate
      ->add_option("--output", a->output, "JSON Lines: the row, output_ids, output, finish_reason")
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
  generate->add_option("--dtype", a->dtype, "float32 or bfloat16 (default: the model's)")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  generate->footer(
      "Examples:\n"
      "  keel generate --model exported --input prompts.jsonl --output out.jsonl\n"
      "  keel generate --model exported --input prompts.jsonl --output out.jsonl --max-new-tokens "
      "200 --temperature 0.8\n"
      "  keel generate --model exported --input prompts.jsonl --output out.jsonl --temperature 1 "
      "--seed 7");
  generate->callback([a] { Generate(*a); });
}

}  // namespace keel::tools
