#include "checkpoint/hf/part_names.h"

#include <fmt/format.h>

#include "common/json_builder.h"

namespace keel::checkpoint {
namespace {

// The beginnings of the text part's names, in the files and alone.
struct Spelling {
  std::string_view in_files;
  std::string_view alone;
  bool newer;
};
constexpr Spelling kText[] = {
    {"model.language_model.", "model.", true},
    {"lm_head.", "lm_head.", true},
    {"language_model.model.", "model.", false},
    {"language_model.lm_head.", "lm_head.", false},
};
// Of the text part, too, under one name in both: layers that predict further tokens.
constexpr std::string_view kFurther = "mtp.";
// What turns images into a text's embeddings, each with `model.` before it in the newer spelling.
constexpr std::string_view kOthers[] = {"vision_tower", "multi_modal_projector", "image_newline"};
constexpr std::string_view kOfQwen[] = {"visual"};
constexpr std::string_view kNewer = kText[0].in_files;

}  // namespace

Result<PartNames> PartNames::Of(std::string_view config, std::string_view where) {
  PartNames names;
  if (config.empty()) return names;
  KEEL_ASSIGN_OR_RETURN(const Json root, ParsePythonJson(config, where));
  if (!root.is_object()) return names;
  const auto has = [&](const char* key) { return root.contains(key) && root[key].is_object(); };
  const Json type = root.value("model_type", Json());
  names.own_names_ = type == "qwen2_vl" || type == "qwen2_5_vl";
  names.others_ = kOthers;
  if (names.own_names_ || type == "qwen3_vl" || type == "qwen3_5" || type == "qwen3_5_moe")
    names.others_ = kOfQwen;
  names.several_ = has("text_config") || (names.own_names_ && has("vision_config"));
  return names;
}

bool PartNames::Newer(std::string_view tensor) const {
  return several_ && tensor.starts_with(kNewer);
}

PartNames::Place PartNames::Find(std::string_view tensor) const {
  if (!several_) return {Place::Kind::kText, std::string(tensor)};
  for (const Spelling& spelling : kText) {
    if (!tensor.starts_with(spelling.in_files)) continue;
    const std::string_view rest = tensor.substr(spelling.in_files.size());
    return {Place::Kind::kText, fmt::format("{}{}", spelling.alone, rest)};
  }
  if (tensor.starts_with(kFurther)) return {Place::Kind::kText, std::string(tensor)};
  std::string_view stem = tensor;
  if (stem.starts_with("model.")) stem.remove_prefix(6);
  for (const std::string_view other : others_) {
    if (stem == other || (stem.starts_with(other) && stem[other.size()] == '.'))
      return {Place::Kind::kOther, std::string(other)};
  }
  if (own_names_ && tensor.starts_with("model.")) return {Place::Kind::kText, std::string(tensor)};
  return {};
}

std::string PartNames::NameInFiles(std::string_view name, bool newer) const {
  if (!several_ || (own_names_ && !newer)) return std::string(name);
  for (const Spelling& spelling : kText) {
    if (spelling.newer == newer && name.starts_with(spelling.alone)) {
      return fmt::format("{}{}", spelling.in_files, name.substr(spelling.alone.size()));
    }
  }
  return std::string(name);
}

}  // namespace keel::checkpoint
