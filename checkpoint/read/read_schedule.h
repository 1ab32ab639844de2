// ReadSchedule: which rank reads which chunks of a checkpoint, and in which round it hands them on.
//
// Pure. Rank 0 makes it from what all ranks need and sends it to all. With an exchange, each chunk
// has one reader: a rank that needs much of it, if that one has not more than its share of the work
// already: to read, verify and copy. Chunks are dealt out in runs, so that files are read in
// sequence. Without an exchange each rank reads what it needs, and only chunks that nobody needs
// are dealt out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/index.h"
#include "checkpoint/read/read_plan.h"
#include "common/status.h"

namespace keel::checkpoint {

struct ReadShare {
  int32_t file = 0;
  int32_t reader = 0;
  int64_t first = 0;
  int64_t count = 0;
  int64_t shared = 0;  // 1: another rank than the reader needs something of each of these chunks
};

// Limits of a round, in bytes of each rank.
struct RoundLimits {
  int64_t send = int64_t{8} << 20;
  int64_t receive = int64_t{8} << 20;
};

struct ReadSchedule {
  bool exchange = false;
  std::vector<ReadShare> shares;  // by file and first chunk, disjoint
  // [round][rank]: how many more of the rank's shared chunks it hands on in that round.
  std::vector<std::vector<int32_t>> rounds;

  std::string Serialize() const;
  // kInternal when the text is malformed or names what the index or the world does not have.
  static Result<ReadSchedule> Parse(std::string_view text, const Index& index, int world);
};

// `needs`: of each rank. `files`: those of which every chunk is to be read and verified, sorted.
ReadSchedule MakeReadSchedule(const Index& index, std::span<const int> files,
                              std::span<const std::vector<ChunkNeed>> needs, bool exchange,
                              const RoundLimits& limits = {});

}  // namespace keel::checkpoint
