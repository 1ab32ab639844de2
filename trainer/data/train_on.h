// TrainOn: which answers of a conversation are learnt; data.train_on.
#pragma once

#include "common/enum_names.h"

namespace keel::trainer {

enum class TrainOn {
  kAllAssistant,  // every message of the assistant
  kLast,          // the assistant's last message alone
};
constexpr auto NamesOf(TrainOn) {
  using enum TrainOn;
  return EnumNames<TrainOn>({{kAllAssistant, "all_assistant"}, {kLast, "last"}});
}

}  // namespace keel::trainer
