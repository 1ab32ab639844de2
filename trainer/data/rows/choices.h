// What the configuration chooses among in how rows become samples: enums with their names.
// Torch-free.
#pragma once

#include "common/enum_names.h"

namespace keel::trainer {

// data.packing: how documents become samples.
enum class Packing {
  kNone,     // a document is a sample
  kStream,   // all documents are one text, cut every max_length; attention crosses documents
  kWrapped,  // cut so, too, but each document is attended to by itself, from position 0
  kBestFit,  // whole documents that fill max_length best share a sample, each by itself
};
constexpr auto NamesOf(Packing) {
  using enum Packing;
  return EnumNames<Packing>(
      {{kNone, "none"}, {kStream, "stream"}, {kWrapped, "wrapped"}, {kBestFit, "best_fit"}});
}
// Whether a document is never cut, but where it is longer than a sample may be.
constexpr bool KeepsWhole(Packing packing) {
  return packing == Packing::kNone || packing == Packing::kBestFit;
}

// data.train_on: which answers of a conversation are learnt.
enum class TrainOn {
  kAllAssistant,  // every message of the assistant
  kLast,          // the assistant's last message alone
};
constexpr auto NamesOf(TrainOn) {
  using enum TrainOn;
  return EnumNames<TrainOn>({{kAllAssistant, "all_assistant"}, {kLast, "last"}});
}

// data.truncation: what becomes of a row that is too long.
enum class Truncation {
  kError,
  kRight,  // cut the end
  kLeft,   // cut the beginning
  kSkip,   // leave the row out
};
constexpr auto NamesOf(Truncation) {
  using enum Truncation;
  return EnumNames<Truncation>(
      {{kError, "error"}, {kRight, "right"}, {kLeft, "left"}, {kSkip, "skip"}});
}

}  // namespace keel::trainer
