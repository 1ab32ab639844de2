// TextPart: the text model in a model of texts and images, by its config.json. Torch-free.
//
// Such a file has the text model's keys under text_config, where transformers leaves out whatever
// is its class's default, and beside it what is said of the whole. Keel reads the text part alone.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/json.h"
#include "common/status.h"

namespace keel::model {

struct TextPart {
  std::string whole;  // the file's own model_type
  // A config.json of the text model alone, with nothing left out: for ParseHfConfig, and what
  // exports keep of the file.
  Json json;
  // The file does not say whether the head is the embeddings' matrix, and transformers then takes
  // it to be, unless the weights have a head of other values.
  bool tie_unsaid = false;
};

// Nothing of a file that is a text model's, or of a whole that Keel does not know, which
// ParseHfConfig refuses. kInvalidData names the key; `where` stands first.
Result<std::optional<TextPart>> TextPartOf(const Json& json, std::string_view where);

// "gemma3, mistral3, ...", of messages.
std::string WholeNames();

}  // namespace keel::model
