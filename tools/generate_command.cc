// keel generate: greedy or sampled continuations of many rows at a time.

#include "tools/generate_command.h"

#include <fmt/format.h>

#include <fstream>

#include "rollout/engine.h"
#include "tools/hf_inference.h"

namespace keel::tools {

void Generate(const GenerateArguments& a) {
  if (const auto problems = a.sampling.Validate(); !problems.empty())
    throw Error(StatusCode::kUsage, fmt::format("{}", fmt::join(problems, "; ")));
  HfInference model(a.model, a.dtype);
  const std::vector<InputRow> rows = ReadInputRows(a.input, model);
  std::ofstream out(a.output);
  if (!out)
    throw Error(StatusCode::kCannotCreate, fmt::format("--output {}: cannot be written", a.output));
  rollout::EngineOptions options;
  options.scheduler.max_num_seqs = a.max_num_seqs;
  options.kv_cache_bytes = a.cache_megabytes << 20;
  options.logprobs_mode = rollout::LogProbsMode::kRaw;
  rollout::Engine engine = model.MakeEngine(options);
  std::vector<rollout::Request> requests;
  for (size_t row = 0; row < rows.size(); ++row) {
    for (int64_t sample = 0; sample < a.samples; ++sample)
      requests.push_back({row, static_cast<int>(sample), rows[row].ids, a.sampling});
  }
  const std::vector<rollout::Completion> completions = engine.Generate(std::move(requests));
  Status failed;
  for (const rollout::Completion& completion : completions) {
    const InputRow& row = rows[completion.prompt_id];
    Json line = row.json;
    if (a.samples > 1) line["sample"] = completion.sample;
    line["output_ids"] = completion.tokens;
    if (completion.text) line["output"] = *completion.text;
    if (a.log_probs) line["output_log_probs"] = completion.log_probs;
    line["finish_reason"] = rollout::FinishReasonName(completion.finish);
    if (!completion.error.ok()) {
      line["error"] = completion.error.message();
      if (failed.ok()) failed = completion.error.WithContext(row.where);
    }
    out << line.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  }
  out.close();
  if (!out) throw Error(StatusCode::kIo, fmt::format("--output {}: writing failed", a.output));
  fmt::print("{} rows, {} tokens generated -> {}\n", rows.size(), engine.stats().generated_tokens,
             a.output);
  ThrowIfError(failed);  // the other rows are written
}

}  // namespace keel::tools
