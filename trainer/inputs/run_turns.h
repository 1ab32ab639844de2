// What a run with multi_turn.enable needs for responses of several turns. Torch-free, not
// collective; nothing is started here.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "trainer/config/config.h"
#include "trainer/inputs/model_source.h"
#include "turns/tool_calls.h"
#include "turns/tools_file.h"
#include "turns/turn_text.h"

namespace keel::trainer {

struct RunTurns {
  turns::MultiTurnSection options;
  std::vector<turns::ToolSpec> tools;
  std::vector<turns::ToolSpec> environments;
  turns::TurnRule rule;
  turns::TurnText text;
};

// Null where multi_turn is off. `model` must outlive it. kConfig, naming the key, for a model
// without a tokenizer or chat template, or with one that does not show who is to speak or writes
// calls in no known way; errors of LoadTools and LoadEnvironments.
Result<std::unique_ptr<const RunTurns>> OpenRunTurns(const Config& config,
                                                     const ModelSource& model);

// By which the tools and environments of two ranks, or of two starts, are told apart, with the
// files of their programs (ProgramFileDigests).
std::string ToolsDigest(const RunTurns& turns);
// Likewise their chat templates, by which what tools say becomes tokens; "" where there is none.
std::string ChatFingerprint(const ModelSource& model);

}  // namespace keel::trainer
