// keel score: log-probabilities per token, and perplexity.

#include "tools/score_command.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>

#include "checkpoint/safetensors.h"
#include "common/file_system.h"
#include "rollout/engine.h"
#include "tools/hf_inference.h"

namespace keel::tools {

void Score(const ScoreArguments& a) {
  HfInference model(a.model, a.dtype);
  const std::vector<InputRow> rows = ReadInputRows(a.input, model);
  std::ofstream out(a.output);
  if (!out)
    throw Error(StatusCode::kCannotCreate, fmt::format("--output {}: cannot be written", a.output));
  rollout::Engine engine = model.MakeEngine({});
  std::vector<rollout::Request> requests;
  for (size_t row = 0; row < rows.size(); ++row) {
    rollout::Request request{row, 0, rows[row].ids, {}};
    request.sampling.max_tokens = 0;
    request.sampling.prompt_log_probs = true;
    request.sampling.prompt_logits = !a.logits.empty();
    requests.push_back(std::move(request));
  }
  const std::vector<rollout::Completion> completions = engine.Generate(std::move(requests));
  std::vector<at::Tensor> logits;
  double total = 0;
  int64_t tokens = 0;
  for (const rollout::Completion& completion : completions) {
    const InputRow& row = rows[completion.prompt_id];
    ThrowIfError(completion.error.WithContext(row.where));
    if (!a.logits.empty()) logits.push_back(completion.prompt_logits);
    std::vector<double> values;
    double sum = 0;
    for (const float log_prob : completion.prompt_log_probs) {
      values.push_back(static_cast<double>(log_prob));
      sum += values.back();
    }
    total += sum;
    tokens += static_cast<int64_t>(values.size());
    const double mean = values.empty() ? 0 : sum / static_cast<double>(values.size());
    // log_probs[i] is log p(token i + 1 | tokens up to i).
    const Json line = {
        {"log_probs", values}, {"sum_log_prob", sum}, {"perplexity", std::exp(-mean)}};
    out << line.dump() << "\n";
  }
  out.close();
  if (!out) throw Error(StatusCode::kIo, fmt::format("--output {}: writing failed", a.output));
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
  const double mean = tokens == 0 ? 0 : total / static_cast<double>(tokens);
  fmt::print("{} rows, {} tokens scored, mean log-prob {:.6f}, perplexity {:.6f} -> {}\n",
             rows.size(), tokens, mean, std::exp(-mean), a.output);
}

}  // namespace keel::tools
