// Contents: which parts of a checkpoint are saved or loaded.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/enum_names.h"

namespace keel::checkpoint {

enum class Content { kModel, kOptimizer, kExtra, kHfModel };
constexpr auto NamesOf(Content) {
  using enum Content;
  return EnumNames<Content>(
      {{kModel, "model"}, {kOptimizer, "optimizer"}, {kExtra, "extra"}, {kHfModel, "hf_model"}});
}

struct Contents {
  bool model = true;
  bool optimizer = true;
  bool extra = true;      // the documents marked `extra`
  bool hf_model = false;  // one whole Hugging Face model under <role>/huggingface

  static Contents Of(std::span<const Content> parts) {
    Contents all{false, false, false, false};
    for (const Content part : parts) all[part] = true;
    return all;
  }
  bool& operator[](Content part) {
    switch (part) {
      case Content::kModel:
        return model;
      case Content::kOptimizer:
        return optimizer;
      case Content::kExtra:
        return extra;
      case Content::kHfModel:
        break;
    }
    return hf_model;
  }
  // Of those that are set.
  std::vector<std::string> Names() const {
    Contents copy = *this;
    std::vector<std::string> names;
    for (const auto& [part, name] : kEnumNames<Content>) {
      if (copy[part]) names.emplace_back(name);
    }
    return names;
  }
  friend bool operator==(const Contents&, const Contents&) = default;
};

}  // namespace keel::checkpoint
