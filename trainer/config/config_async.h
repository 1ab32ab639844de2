// The part of a Config that says who generates in an RL run. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/enum_names.h"
#include "common/status.h"

namespace keel::options {
class Schema;
}

namespace keel::trainer {

struct Config;

// async_training.placement
enum class Placement {
  kColocated,  // the ranks that train, in turns with training
  kSplit,      // ranks of their own
};
constexpr auto NamesOf(Placement) {
  using enum Placement;
  return EnumNames<Placement>({{kColocated, "colocated"}, {kSplit, "split"}});
}

// async_training.order: which samples the next step trains.
enum class StepOrder {
  kInOrder,     // those of the next positions
  kReadyFirst,  // of those that are there, the ones that must be trained soonest
};
constexpr auto NamesOf(StepOrder) {
  using enum StepOrder;
  return EnumNames<StepOrder>({{kInOrder, "in_order"}, {kReadyFirst, "ready_first"}});
}

struct AsyncSection {
  Placement placement = Placement::kColocated;
  StepOrder order = StepOrder::kInOrder;
  int64_t max_staleness = 0;
  int64_t min_workers = 1;
  int64_t port = 0;
  double worker_timeout_seconds = 30;
  int64_t partial_report_tokens = 256;
  bool recompute_kv = true;
  double max_response_seconds = 0;
  bool deterministic = false;
  std::optional<std::string> schedule_record;
  std::optional<std::string> schedule_replay;
};

void AddAsyncOptions(Config& config, options::Schema& schema);
// What does not fit together, as sentences that name the keys.
std::vector<std::string> ValidateAsyncConfig(const Config& config);

// Ranks of a replica that generates.
int64_t ReplicaRanks(const Config& config);

// Of the job's `world` ranks those that train, the first ones, and those that generate alone.
struct JobRoles {
  int trainers = 1;
  int workers = 0;
};
// `said`: the trainers that the launcher says there are (--roles); 0: it says nothing, and
// trainer.nnodes * trainer.n_gpus_per_node does. kConfig with the equation that does not hold.
Result<JobRoles> RolesOf(const Config& config, int world, int said);

}  // namespace keel::trainer
