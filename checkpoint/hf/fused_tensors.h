// FusedTensors: which tensors of a Hugging Face directory's files are several of the canonical
// ones, the rows of one behind those of another (Phi-3: q, k and v; gate and up), or one of them
// under another name (common/tensors/renamed_tensors.h).
//
// Everything else knows the canonical names alone. Whatever reads such files takes them apart by
// this, and whatever writes them joins the parts again. Immutable.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/safetensors.h"
#include "common/status.h"
#include "common/tensors/renamed_tensors.h"
#include "common/tensors/shard_table.h"

namespace keel::checkpoint {

class FusedTensors {
 public:
  FusedTensors() = default;  // of a family that fuses and renames none
  // By the model_type of `config`, the text of the directory's config.json, and the keys that say
  // how many rows each part has. Empty text: as FusedTensors(). `where` stands first in messages.
  static Result<FusedTensors> Of(std::string_view config, std::string_view where);
  // For tensors that are never parts of others: adapters.
  static FusedTensors NamesAlone(std::string_view model_type);

  bool empty() const { return rules_.empty() && names_.empty(); }

  // The canonical tensors that a file's tensor is, with the places of their values; one when it is
  // not fused. kInvalidData when its rows do not divide as config.json has them.
  Result<std::vector<SafetensorsTensor>> Split(const SafetensorsTensor& tensor,
                                               std::string_view where) const;
  // The file's tensor that the canonical `name` is a part of; empty when it is whole there.
  std::string FusedNameOf(std::string_view name) const;
  // Of what is whole in files.
  const RenamedTensors& names() const { return names_; }

  // A tensor of a file that is to be written: its parts' values follow each other.
  struct Joined {
    TensorInfo tensor;
    std::vector<TensorInfo> parts;  // one, the tensor itself, when it is not fused
  };
  // In the order of `tensors`, a fused one where its first part stands. kInvalidData when a part is
  // missing, or of another dtype or width.
  Result<std::vector<Joined>> Join(std::span<const TensorInfo> tensors) const;

 private:
  struct Part {
    std::string_view name;
    int64_t share = 1;  // of the fused tensor's rows
  };
  struct Rule {
    std::string_view name;
    std::vector<Part> parts;
  };
  // The rule by whose part `name` ends; the rest of the name is `stem`.
  const Rule* RuleOfPart(std::string_view name, std::string_view* stem) const;

  std::vector<Rule> rules_;
  RenamedTensors names_;
};

}  // namespace keel::checkpoint
