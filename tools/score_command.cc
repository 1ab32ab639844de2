// keel score: log-probabilities per token, and perplexity.

#include "tools/score_command.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <numeric>

#include "checkpoint/format/safetensors.h"
#include "common/file_system.h"
#include "rollout/engine.h"
#include "tools/hf_inference.h"
#include "tools/row_output.h"

namespace keel::tools {

void Score(const ScoreArguments& a) {
  const NamedFile input{"--input", a.input}, output{"--output", a.output},
      logits_file{"--logits", a.logits};
  for (const NamedFile* other : {&output, &logits_file}) ThrowIfError(CheckApart(*other, input));
  ThrowIfError(CheckApart(logits_file, output));
  HfInference model(a.model, a.dtype);
  const std::vector<InputRow> rows = ReadInputRows(a.input, model);
  rollout::Engine engine = model.MakeEngine({});
  RowOutput out = ValueOrThrow(RowOutput::Open("--output", a.output));
  for (size_t row = 0; row < rows.size(); ++row) {
    rollout::Request request{row, 0, rows[row].ids, {}};
    request.sampling.max_tokens = 0;
    request.sampling.prompt_log_probs = true;
    request.sampling.prompt_logits = !a.logits.empty();
    engine.Add(std::move(request));
  }
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
    const double mean = values.empty() ? 0 : sum / static_cast<double>(values.size());
    // log_probs[i] is log p(token i + 1 | tokens up to i).
    const Json line = {
        {"log_probs", values}, {"sum_log_prob", sum}, {"perplexity", std::exp(-mean)}};
    ThrowIfError(out.Put(index, line.dump()));
  };
  while (!engine.idle()) {
    for (const rollout::Completion& completion : engine.Step()) write(completion);
  }
  ThrowIfError(out.Finish());
  if (!a.logits.empty()) {
    std::vector<checkpoint::SafetensorsPart> parts;
    std::vector<std::string> names;
    for (size_t i = 0; i < logits.size(); ++i) names.push_back(fmt::format("logits.{}", i));
    for (size_t i = 0; i < logits.size(); ++i)
      parts.push_back({names[i], DType::kF32, Dims(logits[i].sizes()), {}});
    const std::string header =
        ValueOrThrow(checkpoint::BuildSafetensorsHeader(parts, {{"format", "pt"}}, 8));
    std::ofstream file(a.logits, std::ios::binary);
    file << header;
    for (const at::Tensor& tensor : logits) {
      file.write(static_cast<const char*>(tensor.data_ptr()),
                 static_cast<std::streamsize>(tensor.nbytes()));
    }
    file.close();
    if (!file) throw Error(StatusCode::kIo, fmt::format("--logits {}: writing failed", a.logits));
  }
  const double total = std::accumulate(sums.begin(), sums.end(), 0.0);
  const double mean = tokens == 0 ? 0 : total / static_cast<double>(tokens);
  fmt::print(out.streams() ? stderr : stdout,
             "{} rows, {} tokens scored, mean log-prob {:.6f}, perplexity {:.6f} -> {}\n",
             rows.size(), tokens, mean, std::exp(-mean), a.output);
}

}  // namespace keel::tools
