// RenamedTensors: what a family's Hugging Face files, and so PEFT's, call tensors that Keel calls
// otherwise ("gpt_neox.layers.0.attention.dense.weight": "model.layers.0.self_attn.o_proj.weight").
//
// Immutable.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace keel {

class RenamedTensors {
 public:
  // By the model_type of a config.json; of most families the names are the same.
  explicit RenamedTensors(std::string_view model_type = {});

  bool empty() const { return parts_.empty(); }
  // A name that neither side changes is itself.
  std::string ModelName(std::string_view file_name) const;
  std::string FileName(std::string_view model_name) const;

  // Whole parts of a name between dots, in files and in the model.
  struct Part {
    std::string_view file;
    std::string_view model;
  };

 private:
  std::span<const Part> parts_;
};

}  // namespace keel
