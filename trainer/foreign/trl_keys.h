// The arguments of TRL 1.16's commands sft, dpo and grpo: those of SFTConfig, DPOConfig and
// GRPOConfig with transformers' TrainingArguments, of ModelConfig and of the scripts. What each
// becomes here.
#pragma once

#include <vector>

#include "common/enum_names.h"
#include "trainer/foreign/key_table.h"

namespace keel::trainer::foreign {

inline constexpr const char* kTrl = "TRL 1.16";

enum class TrlMethod { kSft, kDpo, kGrpo };
constexpr auto NamesOf(TrlMethod) {
  using enum TrlMethod;
  return EnumNames<TrlMethod>({{kSft, "sft"}, {kDpo, "dpo"}, {kGrpo, "grpo"}});
}

std::vector<Row> TrlRows(TrlMethod method);

}  // namespace keel::trainer::foreign
