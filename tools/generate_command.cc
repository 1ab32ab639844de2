// keel generate: greedy or sampled continuations of many rows at a time.

#include "tools/generate_command.h"

#include <fmt/format.h>

#include <map>

#include "rollout/engine.h"
#include "tools/hf_inference.h"
#include "tools/row_output.h"

namespace keel::tools {

void Generate(const GenerateArguments& a) {
  if (const auto problems = a.sampling.Validate(); !problems.empty())
    throw Error(StatusCode::kUsage, fmt::format("{}", fmt::join(problems, "; ")));
  ThrowIfError(CheckApart({"--output", a.output}, {"--input", a.input}));
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
  // The rows that failed, of which the first is reported; the others are written all the same.
  std::map<size_t, Status> failed;
  const auto write = [&](const rollout::Completion& completion) {
    const InputRow& row = rows[completion.prompt_id];
    Json line = row.json;
    // Results of an earlier generation would be taken for this one's.
    for (const char* key :
         {"sample", "output_ids", "output", "output_log_probs", "finish_reason", "error"})
      line.erase(key);
    if (a.samples > 1) line["sample"] = completion.sample;
    line["output_ids"] = completion.tokens;
    if (completion.text) line["output"] = *completion.text;
    if (a.log_probs) line["output_log_probs"] = completion.log_probs;
    line["finish_reason"] = rollout::FinishReasonName(completion.finish);
    if (!completion.error.ok()) {
      line["error"] = completion.error.message();
      failed.emplace(completion.prompt_id, completion.error.WithContext(row.where));
    }
    ThrowIfError(out.Put(completion.prompt_id * static_cast<size_t>(a.samples) +
                             static_cast<size_t>(completion.sample),
                         line.dump(-1, ' ', false, Json::error_handler_t::replace)));
  };
  while (!engine.idle()) {
    for (const rollout::Completion& completion : engine.Step()) write(completion);
  }
  ThrowIfError(out.Finish());
  fmt::print(out.streams() ? stderr : stdout, "{} rows, {} tokens generated -> {}\n", rows.size(),
             engine.stats().generated_tokens, a.output);
  if (!failed.empty()) throw Error(failed.begin()->second);
}

}  // namespace keel::tools
