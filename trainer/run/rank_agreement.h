// What all ranks of a job must have been started with alike, and the comparison at the start.
//
// Two ranks with another learning rate, other data or another program train together without an
// error, and what they save verifies: nothing later would show it. Torch-free.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/base/coordinator.h"
#include "common/status.h"

namespace keel::trainer {

// What it is, in a user's words ("trainer.seed", "content of data.train_files"), and its value.
using SharedFacts = std::map<std::string, std::string>;

// Ok on every rank when all have the same facts. Otherwise kConfig, the same on every rank: each
// fact that differs, its values, and the ranks that have them. Costs one short text a rank where
// all agree. Collective over all ranks.
Status AgreeOnFacts(checkpoint::Coordinator& coordinator, const SharedFacts& mine,
                    std::chrono::milliseconds deadline);

// The same of what may differ: on every rank the facts that do, a line each, with their values and
// the ranks that have them; "" where all agree. `tag` names the comparison, once a job.
Result<std::string> CompareFacts(checkpoint::Coordinator& coordinator, const std::string& tag,
                                 const SharedFacts& mine, std::chrono::milliseconds deadline);

// "0-3, 7" of ascending ranks.
std::string RankRanges(const std::vector<int>& ranks);

}  // namespace keel::trainer
