// GGUF files: the header, the configuration and the vocabulary.
#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/gguf_names.h"
#include "model/gguf/gguf_tokenizer.h"
#include "tests/fuzz/targets.h"
#include "tests/model/gguf/gguf_builder.h"

namespace keel::fuzz {

void FuzzGguf(std::string_view bytes) {
  const auto file = model::ReadGguf(model::testing::BytesFile(bytes), "fuzz");
  if (!file.ok()) return RequireNames(file.status());
  int64_t end = 0;
  for (const model::GgufTensor& tensor : file->tensors) {
    KEEL_REQUIRE(tensor.offset >= end);
    end = tensor.offset + tensor.bytes;
    KEEL_REQUIRE(end <= std::ssize(bytes));
  }
  const auto tokenizer = model::ReadGgufTokenizer(file->metadata);
  if (!tokenizer.ok()) RequireNames(tokenizer.status());
  if (tokenizer.ok()) KEEL_REQUIRE(!tokenizer->tokenizer.dump().empty());
  const auto config = model::ReadGgufConfig(*file, {});
  if (!config.ok()) return RequireNames(config.status());
  KEEL_REQUIRE(!config->config.dump().empty());
  for (const model::GgufTensor& tensor : file->tensors) {
    const auto places = model::HfPlacesOf(tensor, *config, "fuzz");
    if (!places.ok()) {
      RequireNames(places.status());
      continue;
    }
    int64_t taken = 0;
    for (const model::HfPlace& place : *places) {
      // Every row comes from one of the same head, every byte goes to one place.
      for (int64_t row = 0; row < 2 * place.mixed_head_rows; ++row)
        KEEL_REQUIRE(GgufRow(place, row) / place.mixed_head_rows == row / place.mixed_head_rows);
      const model::GgufTensor part = model::PartAt(place, tensor);
      KEEL_REQUIRE(part.offset == tensor.offset + taken);
      taken += part.bytes;
    }
    // Factors of a rotation have no place.
    KEEL_REQUIRE(taken == tensor.bytes || places->empty());
  }
}

std::vector<std::string> GgufSeeds() {
  model::testing::GgufBuilder sentencepiece;
  sentencepiece.Text("tokenizer.ggml.model", "llama");
  sentencepiece.Texts("tokenizer.ggml.tokens", {"<unk>", "a", "b", "ab"});
  sentencepiece.Numbers<float>("tokenizer.ggml.scores", model::GgufType::kFloat32, {0, -1, -2, -3});
  sentencepiece.Bool("tokenizer.ggml.add_bos_token", false);
  model::testing::GgufBuilder experts = model::testing::TinyGguf();
  experts.Int("llama.expert_count", 2);
  experts.Int("llama.expert_used_count", 1);
  experts.Tensor("blk.0.ffn_up_exps.weight", {8, 4, 2}, std::vector<float>(64, 0.5f));
  return {model::testing::TinyGguf().Build(), sentencepiece.Build(), experts.Build()};
}

}  // namespace keel::fuzz
