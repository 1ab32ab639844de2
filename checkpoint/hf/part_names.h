// PartNames: which tensors of a Hugging Face directory are the text part's of a model of texts and
// images, and what they are called in a directory of that part alone.
//
// transformers has two spellings of such files, and reads both: what it wrote up to version 4.51
// and still writes (language_model.model.layers.0..., of Qwen2-VL and Qwen2.5-VL the text model's
// own names), and the names of its classes since (model.language_model.layers.0...). Immutable.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace keel::checkpoint {

class PartNames {
 public:
  PartNames() = default;  // of a model that is a text model alone
  // A config.json with a text_config, or a vision_config beside the text's keys, is one of a model
  // of several parts. Empty text: as PartNames(). `where` stands first in messages.
  static Result<PartNames> Of(std::string_view config, std::string_view where);

  bool several() const { return several_; }

  struct Place {
    // kOther: of a part that is no text's; kNone: of none that such a model has.
    enum class Kind { kText, kOther, kNone } kind = Kind::kNone;
    std::string name;  // kText: in a directory of the text part alone; kOther: the part's
  };
  // Whether a tensor of the text part has its name in the newer spelling.
  bool Newer(std::string_view tensor) const;
  // Of a tensor of the files.
  Place Find(std::string_view tensor) const;
  // The way back, as a message names a tensor that is not there; in the newer spelling or the
  // older.
  std::string NameInFiles(std::string_view name, bool newer) const;

 private:
  bool several_ = false;
  bool own_names_ = false;  // in the older spelling
  std::span<const std::string_view> others_;
};

}  // namespace keel::checkpoint
