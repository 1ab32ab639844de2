// Tokenize: makes a folder of shards of files of rows, of tokens or of records, once, whoever asks
// for it.
//
// Any number of processes, on any number of nodes with one file system, may be at it at once, each
// with threads: a part of the plan is a shard, made by whoever locks it, under a temporary name,
// and renamed when it is on the disk. What a killed process has finished stays; its lock falls with
// it, and the part is made again. All return when all parts are there.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "trainer/data/token_plan.h"
#include "trainer/data/tokens/shard_folder.h"

namespace keel::trainer {

struct TokenizeProgress {
  int64_t bytes = 0;        // of the inputs whose shards are there
  int64_t total_bytes = 0;  // of the inputs
  int64_t parts = 0;
  int64_t total_parts = 0;
};

struct TokenizeOptions {
  PlanOptions plan;
  int threads = 1;
  // How long parts that others have begun may make no progress.
  double deadline_seconds = 600;
  // Called after each part, by one thread at a time.
  std::function<void(const TokenizeProgress&)> progress;
  const Clock* clock = &SystemClock();
};

// The index of `folder`, which is made when it is missing. Where it is finished already nothing is
// done. kAlreadyExists where it was begun with another plan; kInvalidData with file and line, as
// ReadRows; kDeadlineExceeded names the part that another process does not get on with.
Result<ShardFolderIndex> Tokenize(const TokenPlan& plan, const std::string& folder,
                                  const TokenizeOptions& options);

}  // namespace keel::trainer
