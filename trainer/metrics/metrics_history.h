// MetricsHistory: which lines are those of the run that goes on from a checkpoint, where a folder
// has seen it go on from more than one. Torch-free.
//
// What is taken out of metrics.jsonl is kept, behind a line that tells when: metrics.dropped.jsonl
// is the log of these rewinds, which can be taken back, the last first.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace keel::trainer {

// Where a run begins, as its checkpoints' numbers tell (Manifest::sequence).
struct MetricsStart {
  int64_t step = 0;  // that it goes on from; 0: it begins anew
  // Of the checkpoint that it goes on from; the highest number for one that is not this folder's.
  int64_t sequence = std::numeric_limits<int64_t>::max();
  int64_t newest_sequence = 0;  // the highest of the folder
};

// One start that took lines out of metrics.jsonl.
struct MetricsRewind {
  int64_t resumed_step = 0;
  int64_t sequence = 0;   // the folder's newest then: what has a higher one was saved after it
  int64_t kept = 0;       // lines that stayed
  std::string file = {};  // that all of them became, where none stayed; or
  std::vector<std::string> lines = {};  // those that were taken out, without their ends

  // As it stands in metrics.dropped.jsonl: a line of its own, then the others.
  std::string Text() const;
};

// What metrics.dropped.jsonl has of them, in order. Other lines are passed over.
std::vector<MetricsRewind> ParseRewinds(std::string_view dropped);

// Whether `rewind` took out what the checkpoint of `start` stands on: it was saved before.
inline bool IsTakenBack(const MetricsRewind& rewind, const MetricsStart& start) {
  return rewind.sequence >= start.sequence;
}

}  // namespace keel::trainer
