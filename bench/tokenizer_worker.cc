#include "bench/tokenizer_worker.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/worker_protocol.h"
#include "common/hash.h"
#include "model/tokenizer/files/open_tokenizer.h"

namespace keel::bench {
namespace {

struct TokenizerBenchOptions {
  std::string tokenizer, texts;
};

std::vector<std::string> ReadTexts(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(StatusCode::kNotFound, fmt::format("--texts: {} cannot be read", path));
  std::vector<std::string> texts;
  for (std::string text; std::getline(file, text, '\0');) texts.push_back(std::move(text));
  return texts;
}

// As bench/peers/tokenize_worker.py computes it: tells whether both sides gave the same ids.
uint64_t Check(const std::vector<std::vector<int32_t>>& all) {
  uint64_t sum = 0, place = 0;
  for (const std::vector<int32_t>& ids : all)
    for (const int32_t id : ids) sum += static_cast<uint64_t>(id) * ++place;
  return sum & ((uint64_t{1} << 53) - 1);
}

void RunTokenizerWorker(const TokenizerBenchOptions& options) {
  const std::vector<std::string> texts = ReadTexts(options.texts);
  double begin = CpuSeconds();
  const auto tokenizer = ValueOrThrow(model::OpenTokenizer(options.tokenizer));
  const double load_s = CpuSeconds() - begin;
  size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  Answer({{"ready", true}, {"name", "keel"}, {"load_s", load_s}, {"bytes", bytes}});
  Serve({{"encode",
          [&](std::istringstream& words) -> Json {
            int passes = 1;
            words >> passes;
            std::vector<std::vector<int32_t>> ids(texts.size());
            const double start = CpuSeconds();
            for (int pass = 0; pass < passes; ++pass)
              for (size_t i = 0; i < texts.size(); ++i) ids[i] = tokenizer->Encode(texts[i]);
            const double seconds = CpuSeconds() - start;
            size_t count = 0;
            for (const auto& one : ids) count += one.size();
            return {{"seconds", seconds}, {"ids", count}, {"check", Check(ids)}};
          }},
         {"scan", [&](std::istringstream& words) -> Json {
            int passes = 1;
            words >> passes;
            uint64_t check = 0;
            const double start = CpuSeconds();
            for (int pass = 0; pass < passes; ++pass)
              for (const std::string& text : texts) check ^= Hash64(text);
            return {{"seconds", CpuSeconds() - start}, {"check", check >> 11}};
          }}});
}

}  // namespace

void AddTokenizerWorker(CLI::App& worker) {
  auto o = std::make_shared<TokenizerBenchOptions>();
  worker.add_option("--tokenizer", o->tokenizer)->required();
  worker.add_option("--texts", o->texts)->required();
  worker.callback([o] { RunTokenizerWorker(*o); });
}

}  // namespace keel::bench
