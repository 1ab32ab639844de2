// Contents: which parts of a checkpoint are saved or loaded.
#pragma once

#include <string>
#include <vector>

namespace keel::checkpoint {

struct Contents {
  bool model = true;
  bool optimizer = true;
  bool extra = true;      // the documents marked `extra`
  bool hf_model = false;  // one whole Hugging Face model under <role>/huggingface

  // "model", "optimizer", "extra", "hf_model", those that are set.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    if (model) names.emplace_back("model");
    if (optimizer) names.emplace_back("optimizer");
    if (extra) names.emplace_back("extra");
    if (hf_model) names.emplace_back("hf_model");
    return names;
  }
  friend bool operator==(const Contents&, const Contents&) = default;
};

}  // namespace keel::checkpoint
