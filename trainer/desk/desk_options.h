// DeskOptions: what a stream of samples is, of which the desk (desk_protocol.h) hands out batches.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trainer/desk/schedule.h"

namespace keel::trainer::desk {

struct DeskOptions {
  int64_t batch = 1;               // positions that a step takes at a time
  std::vector<int> samples = {0};  // of each position, ascending
  int64_t max_staleness = 0;       // steps
  bool ready_first = false;        // false: in order
  int64_t end = INT64_MAX;         // positions from here on are never begun
  int64_t max_response_ms = 0;     // see DeskProtocol::Elapse; 0: no bound
  // Null: a worker goes on with what it has under its newest weights.
  std::shared_ptr<const Schedule> schedule = nullptr;
  // With steps that take several batches what old weights may begin grows while a step takes more,
  // and depends on when it does: they then begin all that the schedule, of a run that kept to
  // max_staleness, has them begin.
  bool schedule_reaches = false;
};

}  // namespace keel::trainer::desk
