// keel score: log-probabilities per token, and perplexity.

#include "tools/inference/score_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format/safetensors.h"
#include "rollout/engine.h"
#include "tools/inference/engine_run.h"
#include "tools/inference/inference_model.h"
#include "tools/inference/input_rows.h"
#include "tools/row_output.h"

namespace keel::tools {

namespace {

// --logits: as safetensors, logits.<row> [tokens, vocabulary] fp32, which are written as they come.
class LogitsFile {
 public:
  LogitsFile(const std::string& path, const InputRows& rows, int64_t vocabulary)
      : LogitsFile(path) {
    const std::vector<int64_t> tokens = rows.NumTokens();
    std::vector<std::string> names;
    for (size_t row = 0; row < tokens.size(); ++row) names.push_back(fmt::format("logits.{}", row));
    std::vector<checkpoint::SafetensorsPart> parts;
    for (size_t row = 0; row < tokens.size(); ++row)
      parts.push_back({names[row], DType::kF32, {tokens[row], vocabulary}, {}});
    const std::string header =
        ValueOrThrow(checkpoint::BuildSafetensorsHeader(parts, {{"format", "pt"}}, 8));
    PutBytes(0, std::as_bytes(std::span(header)));
  }
  void Put(size_t row, const at::Tensor& logits) {
    PutBytes(row + 1, {static_cast<const std::byte*>(logits.const_data_ptr()), logits.nbytes()});
  }
  void Finish() { ThrowIfError(out_.Finish()); }

 private:
  explicit LogitsFile(const std::string& path)
      : out_(ValueOrThrow(RowOutput::Open("--logits", path))) {}
  void PutBytes(size_t place, std::span<const std::byte> bytes) {
    ThrowIfError(out_.PutBytes(place, bytes));
  }

  RowOutput out_;
};

}  // namespace

void Score(const ScoreArguments& a) {
  const NamedFile input{"--input", a.input}, output{"--output", a.output},
      logits_file{"--logits", a.logits};
  for (const NamedFile* other : {&output, &logits_file}) ThrowIfError(CheckApart(*other, input));
  ThrowIfError(CheckApart(logits_file, output));
  InferenceModel model({.path = a.model,
                        .base = a.base,
                        .dtype = a.dtype,
                        .device = a.device,
                        .env = a.env,
                        .asked = {{"--logits is given", a.logits.empty() ? "no" : "yes"}}});
  rollout::Engine engine = model.MakeEngine({});
  rollout::SamplingParams sampling;
  sampling.max_tokens = 0;
  sampling.prompt_log_probs = true;
  sampling.prompt_logits = !a.logits.empty();
  const EngineRun run{model, engine, sampling};
  if (!model.leads()) return FollowRows(run);
  const auto check = [&](int64_t count) -> Status {
    const int64_t most = engine.options().max_model_len;
    if (count <= most) return engine.CheckLengths(count, 0);
    return Status(StatusCode::kInvalidData,
                  fmt::format("{} tokens to score, more than the {} positions that the model has; "
                              "cut the row, or score it in parts",
                              count, most));
  };
  const InputRows rows({.path = a.input,
                        .spill_folder = SpillFolder(a.output),
                        .with_responses = true,
                        .check = check},
                       model);
  RowOutput out = ValueOrThrow(RowOutput::Open("--output", a.output));
  std::optional<LogitsFile> logits;
  if (!a.logits.empty()) logits.emplace(a.logits, rows, model.config().vocab_size);
  std::vector<double> sums(static_cast<size_t>(rows.size()));  // added up in the order of the rows
  int64_t tokens = 0;
  const auto write = [&](const rollout::Completion& completion) {
    const size_t index = completion.prompt_id;
    if (!completion.error.ok())
      throw Error(completion.error.WithContext(rows.Get(static_cast<int64_t>(index)).where));
    if (logits) logits->Put(index, completion.prompt_logits);
    std::vector<double> values;
    double sum = 0;
    for (const float log_prob : completion.prompt_log_probs) {
      values.push_back(static_cast<double>(log_prob));
      sum += values.back();
    }
    sums[index] = sum;
    tokens += static_cast<int64_t>(values.size());
    // log_probs[i] is log p(token i + 1 | tokens up to i). Of a single token nothing is said.
    Json line = {{"log_probs", values}, {"sum_log_prob", sum}, {"perplexity", nullptr}};
    if (!values.empty()) line["perplexity"] = std::exp(-sum / static_cast<double>(values.size()));
    ThrowIfError(out.Put(index, line.dump()));
  };
  RunRows(run, rows, out.Bar("score", rows.size()), write);
  if (logits) logits->Finish();
  ThrowIfError(out.Finish());
  const double total = std::accumulate(sums.begin(), sums.end(), 0.0);
  const double mean = total / static_cast<double>(std::max<int64_t>(1, tokens));
  const std::string said =
      tokens == 0 ? "which have a token each, so that none follows another"
                  : fmt::format("mean log-prob {:.6f}, perplexity {:.6f}", mean, std::exp(-mean));
  fmt::print(out.streams() ? stderr : stdout, "{} rows, {} tokens scored, {} -> {}\n", rows.size(),
             tokens, said, a.output);
}

}  // namespace keel::tools
