#include "trainer/inputs/text_part_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <vector>

#include "checkpoint/hf/hf_model_dir.h"

namespace keel::trainer {

Result<std::string> SettleTextPart(const FileSystem& files, model::TextPart* part) {
  constexpr const char* kHead = "lm_head.weight";
  constexpr const char* kEmbeddings = "model.embed_tokens.weight";
  const auto weights = checkpoint::HfModelDir::Open(files, ".");
  if (weights.status().code() == StatusCode::kNotFound) return std::string();
  KEEL_RETURN_IF_ERROR(weights.status());
  if (part->tie_unsaid && weights->source().Find(kHead) >= 0 &&
      weights->source().Find(kEmbeddings) >= 0) {
    KEEL_ASSIGN_OR_RETURN(const bool same, weights->SameValues(kHead, kEmbeddings));
    part->json["tie_word_embeddings"] = same;
  }
  int64_t tensors = 0;
  std::vector<std::string> parts;
  for (const auto& [name, count] : weights->left_aside()) {
    tensors += count;
    parts.push_back(fmt::format("{} {}", name, count));
  }
  return fmt::format(
      "{}: {} tensors of the vision part are not loaded{}: of this {} the text part is read, a {}, "
      "and what is saved or exported is that part alone",
      weights->where(), tensors, parts.empty() ? "" : fmt::format(" ({})", fmt::join(parts, ", ")),
      part->whole, part->json["architectures"][0].get<std::string>());
}

Result<std::string> FurtherLayersNote(const FileSystem& files, const model::HfConfig& config) {
  const auto weights = checkpoint::HfModelDir::Open(files, ".");
  if (weights.status().code() == StatusCode::kNotFound) return std::string();
  KEEL_RETURN_IF_ERROR(weights.status());
  std::vector<std::string> beginnings = {"mtp."};
  for (int64_t extra = 0; extra < config.extra_layers; ++extra)
    beginnings.push_back(fmt::format("model.layers.{}.", config.num_hidden_layers + extra));
  std::map<std::string, int64_t> counts;
  for (const TensorInfo& tensor : weights->source().tensors())
    for (const std::string& beginning : beginnings)
      if (tensor.name.starts_with(beginning)) ++counts[beginning + "*"];
  if (counts.empty()) return std::string();
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts) parts.push_back(fmt::format("{} {}", name, count));
  return fmt::format(
      "{}: what predicts further tokens ({}) is neither computed nor trained, and an export has it "
      "no more",
      weights->where(), fmt::join(parts, ", "));
}

}  // namespace keel::trainer
