// Of weights that a directory has and that are not loaded, and what those of a model of texts and
// images say of its text part. Torch-free.
#pragma once

#include <string>

#include "common/files/file_system.h"
#include "common/status.h"
#include "model/config/hf_config.h"
#include "model/config/text_part.h"

namespace keel::trainer {

// Settles TextPart::tie_unsaid by the weights of the directory `files`, and returns a sentence for
// whoever loads it: how many tensors of which other parts are not, and what becomes of the model.
// Reads headers, and the head where there is one. Without weights there is nothing to settle, and
// "" is returned: whoever needs them says so.
Result<std::string> SettleTextPart(const FileSystem& files, model::TextPart* part);

// The same of tensors of layers behind the last, which predict further tokens; "" where there are
// none.
Result<std::string> FurtherLayersNote(const FileSystem& files, const model::HfConfig& config);

}  // namespace keel::trainer
