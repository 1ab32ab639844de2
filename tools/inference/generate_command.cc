// keel generate: greedy or sampled continuations of many rows at a time.

#include "tools/inference/generate_command.h"

#include <fmt/format.h>

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/json_builder.h"
#include "common/text.h"
#include "rollout/engine.h"
#include "tools/inference/asked_facts.h"
#include "tools/inference/engine_run.h"
#include "tools/inference/inference_model.h"
#include "tools/inference/input_rows.h"
#include "tools/row_output.h"

namespace keel::tools {

void Generate(const GenerateArguments& a) {
  if (const auto problems = a.sampling.Validate(); !problems.empty())
    throw Error(StatusCode::kUsage, fmt::format("{}", fmt::join(problems, "; ")));
  if (a.samples > 1 && a.sampling.temperature == 0) {
    throw Error(StatusCode::kUsage,
                fmt::format("--temperature 0 with --n {}: all samples of a row would be the same; "
                            "raise it, or leave --n out",
                            a.samples));
  }
  ThrowIfError(CheckApart({"--output", a.output}, {"--input", a.input}));
  trainer::SharedFacts asked = FactsOf(a.sampling);
  asked.merge(EngineFacts(a.max_num_seqs, a.cache_megabytes));
  asked["--n"] = fmt::format("{}", a.samples);
  InferenceModel model({.path = a.model,
                        .base = a.base,
                        .dtype = a.dtype,
                        .device = a.device,
                        .env = a.env,
                        .asked = std::move(asked)});
  rollout::EngineOptions options;
  options.scheduler.max_num_seqs = a.max_num_seqs;
  options.kv_cache_bytes = a.cache_megabytes << 20;
  options.enforce_eager = a.enforce_eager;
  options.logprobs_mode = rollout::LogProbsMode::kRaw;
  rollout::Engine engine = model.MakeEngine(options);
  const EngineRun run{model, engine, a.sampling, a.samples};
  if (!model.leads()) return FollowRows(run);
  const InputRows rows({.path = a.input, .spill_folder = SpillFolder(a.output), .keeps_json = true},
                       model);
  RowOutput out = ValueOrThrow(RowOutput::Open("--output", a.output, Part::kKept));
  // Of the rows that failed the first one is reported; the others are written all the same.
  std::optional<std::pair<size_t, Status>> failed;
  std::set<std::string> replaced;  // members of the rows
  const auto write = [&](const rollout::Completion& completion) {
    const InputRows::Row row = rows.Get(static_cast<int64_t>(completion.prompt_id));
    Json line = row.json;
    // Results of an earlier generation would be taken for this one's.
    for (const char* key :
         {"sample", "output_ids", "output", "output_log_probs", "finish_reason", "error"})
      if (line.erase(key) > 0) replaced.insert(key);
    if (a.samples > 1) line["sample"] = completion.sample;
    line["output_ids"] = completion.tokens;
    if (completion.text) line["output"] = *completion.text;
    if (a.log_probs) line["output_log_probs"] = completion.log_probs;
    line["finish_reason"] = rollout::FinishReasonName(completion.finish);
    if (!completion.error.ok()) {
      line["error"] = completion.error.message();
      if (!failed || completion.prompt_id < failed->first)
        failed.emplace(completion.prompt_id, completion.error.WithContext(row.where));
    }
    ThrowIfError(out.Put(completion.prompt_id * static_cast<size_t>(a.samples) +
                             static_cast<size_t>(completion.sample),
                         DumpRow(line)));
  };
  try {
    RunRows(run, rows, out.Bar("generate", rows.size() * a.samples), write);
    ThrowIfError(out.Finish());
  } catch (const Error& error) {
    if (out.streams()) throw;
    throw Error(error.status().WithContext(
        fmt::format("the rows that are done are in {}", Printable(out.written_to()))));
  }
  fmt::print(out.streams() ? stderr : stdout, "{} rows, {} tokens generated -> {}\n", rows.size(),
             engine.stats().generated_tokens, a.output);
  if (!replaced.empty()) {
    fmt::print(stderr,
               "keel: {}: rows have members of the names that results have ({}), which are not "
               "written again\n",
               Printable(a.input), fmt::join(replaced, ", "));
  }
  if (failed) throw Error(failed->second);
}

}  // namespace keel::tools
