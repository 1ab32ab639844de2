// IoBackend: how the bytes of a save get from memory to the disk; and which one is asked for.
#pragma once

#include "common/enum_names.h"

namespace keel::checkpoint {

enum class IoBackend {
  kBuffered,  // through the page cache
  kDirect,    // past it, in whole blocks, one piece of a thread after the other
  kIoUring,   // as direct, with a few pieces of a thread under way at once
};
constexpr auto NamesOf(IoBackend) {
  using enum IoBackend;
  return EnumNames<IoBackend>(
      {{kBuffered, "buffered"}, {kDirect, "direct"}, {kIoUring, "io_uring"}});
}

// The first stands for the fastest of the others, which have the back-ends' names.
enum class IoChoice { kAuto, kBuffered, kDirect, kIoUring };
constexpr auto NamesOf(IoChoice) {
  using enum IoChoice;
  return EnumNames<IoChoice>({{kAuto, "auto"},
                              {kBuffered, NameOf(IoBackend::kBuffered)},
                              {kDirect, NameOf(IoBackend::kDirect)},
                              {kIoUring, NameOf(IoBackend::kIoUring)}});
}

}  // namespace keel::checkpoint
