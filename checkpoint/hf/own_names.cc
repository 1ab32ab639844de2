#include "checkpoint/hf/own_names.h"

#include <string_view>

namespace keel::checkpoint {
namespace {

constexpr std::string_view kBase = "model.";

}  // namespace

std::map<std::string, std::string> OwnNames(const ShardTable& files, const ModelTensors& model) {
  std::map<std::string, std::string> own;
  const auto is_there = [&](const std::string& name) { return files.Find(name) >= 0; };
  const auto without_base = [&](const std::string& name) {
    if (!name.starts_with(kBase) || is_there(name)) return;
    const std::string bare = name.substr(kBase.size());
    if (is_there(bare)) own[bare] = name;
  };
  for (const TensorInfo& needed : model.needed) without_base(needed.name);
  for (const ModelTensors::Stack& stack : model.may_stack) without_base(stack.name);
  for (const ModelTensors::Copy& tied : model.may_copy) {
    const bool bare =
        tied.original.starts_with(kBase) && own.contains(tied.original.substr(kBase.size()));
    if (is_there(tied.name) && !is_there(tied.original) && !bare) own[tied.name] = tied.original;
  }
  return own;
}

}  // namespace keel::checkpoint
