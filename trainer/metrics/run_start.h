// RunStart: where a run begins. What it logs is of the checkpoint that it goes on from, and of
// nothing that was done after that was saved.
#pragma once

#include <cstdint>
#include <limits>

namespace keel::trainer {

// In numbers of commits (Manifest::sequence).
struct RunStart {
  int64_t step = 0;  // that it goes on from; 0: it begins anew
  // Of the checkpoint that it goes on from; the highest number where that tells nothing.
  int64_t sequence = std::numeric_limits<int64_t>::max();
  int64_t newest_sequence = 0;  // the highest of the folder
  bool elsewhere = false;  // the checkpoint lies in another folder: nothing that is here is of it

  // Whether the checkpoint was saved after a start that found `newest` to be the folder's highest,
  // and so stands on what that start left of the logs. What others took out is taken back.
  bool StandsOn(int64_t newest) const { return newest < sequence; }
};

}  // namespace keel::trainer
