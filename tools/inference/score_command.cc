// keel score: log-probabilities per token, and perplexity.

#include "tools/inference/score_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>

#include "checkpoint/format/safetensors.h"
#include "common/file_system.h"
#include "rollout/engine.h"
#include "tools/inference/engine_run.h"
#include "tools/inference/inference_model.h"
#include "tools/inference/input_rows.h"
#include "tools/inference/row_output.h"

namespace keel::tools {

namespace {

void AddAll(const Prompts& prompts, const ScoreArguments& a, rollout::Engine& engine) {
  for (size_t row = 0; row < prompts.size(); ++row) {
    rollout::Request request{row, 0, prompts[row], {}};
    request.sampling.max_tokens = 0;
    request.sampling.prompt_log_probs = true;
    request.sampling.prompt_logits = !a.logits.empty();
    engine.Add(std::move(request));
  }
}

// As safetensors, logits.<row> [tokens, vocabulary] fp32.
Status WriteLogits(const std::vector<at::Tensor>& logits, const std::string& path) {
  std::vector<checkpoint::SafetensorsPart> parts;
  std::vector<std::string> names;
  for (size_t i = 0; i < logits.size(); ++i) names.push_back(fmt::format("logits.{}", i));
  for (size_t i = 0; i < logits.size(); ++i)
    parts.push_back({names[i], DType::kF32, Dims(logits[i].sizes()), {}});
  KEEL_ASSIGN_OR_RETURN(const std::string header,
                        checkpoint::BuildSafetensorsHeader(parts, {{"format", "pt"}}, 8));
  KEEL_ASSIGN_OR_RETURN(RowOutput out, RowOutput::Open("--logits", path));
  const auto write = [&]() -> Status {
    KEEL_RETURN_IF_ERROR(out.PutBytes(std::as_bytes(std::span(header))));
    for (const at::Tensor& tensor : logits) {
      KEEL_RETURN_IF_ERROR(
          out.PutBytes({static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()}));
    }
    return out.Finish();
  };
  const Status written = write();
  if (!written.ok()) out.Discard();  // half a file of tensors is none
  return written;
}

}  // namespace

void Score(const ScoreArguments& a) {
  const NamedFile input{"--input", a.input}, output{"--output", a.output},
      logits_file{"--logits", a.logits};
  for (const NamedFile* other : {&output, &logits_file}) ThrowIfError(CheckApart(*other, input));
  ThrowIfError(CheckApart(logits_file, output));
  InferenceModel model({.path = a.model,
                        .dtype = a.dtype,
                        .device = a.device,
                        .env = a.env,
                        .asked = {{"--logits is given", a.logits.empty() ? "no" : "yes"}}});
  rollout::Engine engine = model.MakeEngine({});
  const EngineRun run{model, engine, [&](const Prompts& all) { AddAll(all, a, engine); }};
  if (!model.leads()) return FollowRows(run);
  const std::vector<InputRow> rows = ReadInputRows(a.input, model);
  RowOutput out = ValueOrThrow(RowOutput::Open("--output", a.output));
  std::vector<at::Tensor> logits(a.logits.empty() ? 0 : rows.size());
  std::vector<double> sums(rows.size());  // added up in the order of the rows
  int64_t tokens = 0;
  const auto write = [&](const rollout::Completion& completion) {
    const size_t index = completion.prompt_id;
    ThrowIfError(completion.error.WithContext(rows[index].where));
    if (!a.logits.empty()) logits[index] = completion.prompt_logits;
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
  RunRows(run, PromptsOf(rows), out.Bar("score", static_cast<int64_t>(rows.size())), write, &out);
  if (!a.logits.empty()) ThrowIfError(WriteLogits(logits, a.logits));
  const double total = std::accumulate(sums.begin(), sums.end(), 0.0);
  const double mean = total / static_cast<double>(std::max<int64_t>(1, tokens));
  const std::string said =
      tokens == 0 ? "which have a token each, so that none follows another"
                  : fmt::format("mean log-prob {:.6f}, perplexity {:.6f}", mean, std::exp(-mean));
  fmt::print(out.streams() ? stderr : stdout, "{} rows, {} tokens scored, {} -> {}\n", rows.size(),
             tokens, said, a.output);
}

}  // namespace keel::tools
