// ModelWords: the model, as far as its requests are to be understood. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "turns/multi_turn_options.h"

namespace keel::serve {

// Thread-safe.
class ModelWords {
 public:
  virtual ~ModelWords() = default;
  virtual Result<std::vector<int32_t>> EncodeText(const std::string& text) const = 0;
  // Nothing where the model's template shows none of the tools.
  virtual Result<std::optional<std::vector<int32_t>>> EncodeChat(const Json& messages,
                                                                 const Json& tools) const = 0;
  // Why a request of so many tokens can never be served.
  virtual Status CheckLengths(int64_t prompt, int64_t response) const = 0;
  // What a token adds to a text, which may be a part of a character, as the `first` of the text's
  // tokens or a later one; of a special one, which texts are shown without, its name.
  struct TokenText {
    std::string bytes;
    bool special = false;
  };
  virtual TokenText TextOf(int32_t token, bool first) const = 0;
  virtual std::string TextOf(const std::vector<int32_t>& tokens) const = 0;
  virtual bool has_text() const = 0;  // else prompts are ids, and so are answers, which nobody sees
  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_model_len() const = 0;
  // How its template has it write calls of tools; nothing: in no way that is known.
  virtual std::optional<turns::ToolFormat> tool_format() const = 0;
};

}  // namespace keel::serve
