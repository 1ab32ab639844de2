// Packing: how documents become samples; data.packing.
#pragma once

#include "common/enum_names.h"

namespace keel::trainer {

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

}  // namespace keel::trainer
