// keel generate: greedy or sampled continuations with a KV cache, one row at a time.

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>

#include "common/philox.h"
#include "tools/command.h"
#include "tools/hf_inference.h"

namespace keel::tools {

namespace {

constexpr uint64_t kSampleStream = 0x73616d706c65;

struct Arguments {
  std::string model, input, output, dtype;
  int64_t max_new_tokens = 64;
  double temperature = 0;
  uint64_t seed = 0;
};

// The token of a row of logits [vocab]: the largest, or a draw from softmax(logits / temperature).
// The draw depends on (seed, row, position) alone.
int32_t Choose(const at::Tensor& logits, double temperature, const Philox& rng, uint64_t draw) {
  if (temperature <= 0) return static_cast<int32_t>(logits.argmax().item<int64_t>());
  const at::Tensor cumulative = at::softmax(logits.to(at::kDouble) / temperature, 0).cumsum(0);
  const double u = rng.Uniform(draw) * cumulative[-1].item<double>();
  const int64_t index = cumulative.le(u).sum().item<int64_t>();
  return static_cast<int32_t>(std::min(index, logits.size(0) - 1));
}

void Generate(const Arguments& a) {
  HfInference model(a.model, a.dtype);
  const std::vector<InputRow> rows = ReadInputRows(a.input, model);
  std::ofstream out(a.output);
  if (!out)
    throw Error(StatusCode::kCannotCreate, fmt::format("--output {}: cannot be written", a.output));
  const std::vector<int64_t>& ends = model.stop_ids();
  int64_t generated = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const Philox rng(a.seed, kSampleStream + r);
    const auto prompt = static_cast<int64_t>(rows[r].ids.size());
    const int64_t room = model.config().max_position_embeddings - prompt;
    if (room < 1) {
      throw Error(StatusCode::kInvalidData,
                  fmt::format("{}: {} tokens, the model takes {}", rows[r].where, prompt,
                              model.config().max_position_embeddings));
    }
    const int64_t limit = std::min(a.max_new_tokens, room);
    model::KvCache cache = model.decoder().MakeCache(1, prompt + limit);
    at::Tensor logits =
        model.decoder().Decode(at::tensor(rows[r].ids, at::kInt).to(at::kLong).unsqueeze(0), cache);
    std::vector<int32_t> tokens;
    std::string reason = "length";
    while (true) {
      tokens.push_back(Choose(logits[0], a.temperature, rng, tokens.size()));
      if (std::find(ends.begin(), ends.end(), tokens.back()) != ends.end()) {
        reason = "stop";
        break;
      }
      if (static_cast<int64_t>(tokens.size()) >= limit) break;
      logits = model.decoder().Decode(at::full({1, 1}, tokens.back(), at::kLong), cache);
    }
    generated += static_cast<int64_t>(tokens.size());
    Json line = rows[r].json;
    line["output_ids"] = tokens;
    if (model.tokenizer() != nullptr) line["output"] = model.tokenizer()->Decode(tokens);
    line["finish_reason"] = reason;
    out << line.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  }
  out.close();
  if (!out) throw Error(StatusCode::kIo, fmt::format("--output {}: writing failed", a.output));
  fmt::print("{} rows, {} tokens generated -> {}\n", rows.size(), generated, a.output);
}

}  // namespace

void AddGenerateCommand(CLI::App& app, CommandContext&) {
  auto a = std::make_shared<Arguments>();
  CLI::App* generate = app.add_subcommand("generate", "Continue texts with a Hugging Face model");
  generate->add_option("--model", a->model, "Hugging Face directory")->required();
  generate->add_option("--input", a->input, "JSON Lines with input_ids, text or prompt")
      ->required();
  generate
      ->add_option("--output", a->output, "JSON Lines: the row, output_ids, output, finish_reason")
      ->required();
  generate->add_option("--max-new-tokens", a->max_new_tokens, "Tokens at most (64)")
      ->check(CLI::PositiveNumber);
  generate->add_option("--temperature", a->temperature, "0: the likeliest token (0)")
      ->check(CLI::NonNegativeNumber);
  generate->add_option("--seed", a->seed, "Of the draws (0)");
  generate->add_option("--dtype", a->dtype, "float32 or bfloat16 (default: the model's)")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  generate->footer(
      "Examples:\n"
      "  keel generate --model runs/quickstart/export --input prompts.jsonl --output out.jsonl\n"
      "  keel generate --model export --input prompts.jsonl --output out.jsonl --max-new-tokens "
      "200 --temperature 0.8\n"
      "  keel generate --model export --input prompts.jsonl --output out.jsonl --temperature 1 "
      "--seed 7");
  generate->callback([a] { Generate(*a); });
}

}  // namespace keel::tools
