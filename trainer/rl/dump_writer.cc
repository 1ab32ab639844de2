#include "trainer/rl/dump_writer.h"

#include <fmt/format.h>

namespace keel::trainer::rl {

void DumpWriter::Write(int64_t step, const RolloutBatch& batch) {
  if (!folder_) return;
  ++files_;
  const Status written = WriteDump(fmt::format("{}/{}.jsonl", *folder_, step), batch);
  if (written.ok()) return;
  ++lost_;
  log_.Warning("{}: the responses of step {} are lost, {} of {} files so far: {}", key_, step,
               lost_, files_, written.message());
}

}  // namespace keel::trainer::rl
