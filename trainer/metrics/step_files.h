// The files `<step>.jsonl` of a folder of the configuration's choice, where a run begins.
// Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/log.h"
#include "trainer/metrics/run_start.h"

namespace keel::trainer {

// Leaves the files of steps before `first_step` that are of this run, so that who reads the folder
// finds this run alone. Others are set aside, in a folder earlier.<n> of their own; where the run
// goes back to a checkpoint, what starts after that was saved had set aside comes back, as the
// lines of metrics do (MetricsHistory). What cannot be moved is a warning, in which `key` names the
// folder.
void KeepStepFilesOf(const std::string& key, const std::string& folder, const RunStart& start,
                     int64_t first_step, Logger& log);

// However they are spelled: what reads there may also write there, and nothing is to be moved.
bool SameFolder(const std::optional<std::string>& a, const std::optional<std::string>& b);

}  // namespace keel::trainer
