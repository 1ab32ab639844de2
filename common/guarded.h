// What is thrown, as a Status: at the top of a thread, of a rank's work, of a program.
#pragma once

#include <exception>

#include "common/status.h"

namespace keel {

// An exception of any library in words: an Error's own status; kExhausted with the cause
// kMemory where memory has run out, with the bytes that were asked for where the text has them;
// kExhausted where no thread is to be had; else kInternal. Stacks that libraries
// add to their texts are left out.
Status StatusOf(const std::exception& error);

// What `work`, which returns a Status, returns; what it throws as a Status, too. For work that must
// not end its caller: what it has begun is to be undone, or peers are to hear of it.
template <typename Work>
Status Guarded(const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return StatusOf(error);
  }
}

}  // namespace keel
