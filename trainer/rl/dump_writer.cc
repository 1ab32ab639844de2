#include "trainer/rl/dump_writer.h"

#include <fmt/format.h>

#include "trainer/metrics/step_files.h"

namespace keel::trainer::rl {

void DumpWriter::Begin(const RunStart& start, int64_t first_step) {
  if (folder_) KeepStepFilesOf(key_, *folder_, start, first_step, log_);
}

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
