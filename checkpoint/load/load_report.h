// What ranks tell rank 0 before a load, and the schedule that rank 0 makes of it.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/base/requests.h"
#include "checkpoint/format/index.h"
#include "checkpoint/read/read_plan.h"
#include "checkpoint/read/read_schedule.h"
#include "checkpoint/read/step_reader.h"
#include "common/status.h"

namespace keel::checkpoint {

struct LoadReport {
  bool channel = false;         // parts can be exchanged with this rank
  std::vector<int32_t> scopes;  // of the index, that it loads
  std::vector<bool> wanted;     // by tensor of the index
  // "scope:tensor", of which elements that the checkpoint lacks keep this rank's values.
  std::vector<std::string> kept;
  std::vector<ChunkNeed> needs;

  std::string Serialize() const;
  // False, and this is of no use, where `text` names what the index lacks.
  bool Parse(std::string_view text, const Index& index);
};

// What a checkpoint and the state that it is loaded into do not both have, as allow_missing lets it
// be: "scope:tensor", or a role.
struct LoadDifferences {
  std::set<std::string> kept;      // in this state alone, whose values stay
  std::set<std::string> left_out;  // in the checkpoint alone
};

// Rank 0: who reads what, serialized; `reports` by rank. kConfig where the checkpoint holds tensors
// that no rank has a place for, or of a scope nothing that fits, where allow_missing lets all be;
// `where` is its name for people.
Result<std::string> MakeSchedule(const LoadRequest& request, const StepReader& reader,
                                 const std::vector<std::string>& reports, const RoundLimits& limits,
                                 std::string_view where, const SettingNames& names,
                                 LoadDifferences* differences);

// "a, b and 3 more", of many.
std::string FirstOf(std::span<const std::string> names);

}  // namespace keel::checkpoint
