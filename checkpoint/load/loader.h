// Loader: finds the newest checkpoint that verifies, and fills live memory from it.
//
// Rank 0 chooses, and hands manifest and index on to all; each plans what it needs; rank 0 deals
// out who reads what; all read, verify, and hand each other their parts; then all vote. By default
// values go to staging memory and live memory changes only after all ranks voted "verified".
// Damage, on any rank, makes all of them go on with the next older checkpoint. See
// docs/formats/checkpoint.md.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/base/coordinator.h"
#include "checkpoint/base/requests.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/read/read_schedule.h"
#include "checkpoint/read/step_reader.h"
#include "common/files/file_system.h"
#include "common/log.h"
#include "common/status.h"

namespace keel::checkpoint {

struct LoaderOptions {
  std::chrono::milliseconds deadline{120'000};  // of every wait for a peer, beside the disk's time
  // How long a rank looks again for what rank 0 has seen: network file systems show new files late.
  std::chrono::milliseconds visibility_grace{40'000};
  int threads = 2;    // that read, per rank
  RoundLimits round;  // of the exchange
  // Whose checkpoints the newest is looked for among; "": those of all runs.
  std::string run_id = {};
  SettingNames names = {};  // in messages
  // Of the documents, which are announced in parts: the job's store has a limit for a text, and
  // what was saved has none.
  int64_t part_bytes = int64_t{64} << 20;
};

class Loader {
 public:
  // All must outlive this.
  Loader(const FileSystem& fs, Coordinator& coordinator, Logger& log, LoaderOptions options)
      : fs_(fs), coordinator_(coordinator), log_(log), options_(options) {}

  // Collective; `tag` as in coordinator.h. The result is the same on every rank but for bytes and
  // times.
  Result<std::optional<LoadRecord>> Load(std::string_view tag, const LoadRequest& request);

  // What rank 0 has announced and not retracted, since nobody waits until all have read it. To be
  // retracted once all ranks have gone on.
  const std::vector<std::string>& announced() const { return announced_; }

 private:
  struct Attempt;

  // Rank 0's value, or its failure, to all. Rank 0 stays until a failure has been heard: the job
  // ends with it.
  Result<std::string> Tell(const std::string& tag, const Result<std::string>& value,
                           std::chrono::milliseconds deadline);
  // The same of a text that may be long.
  Result<std::string> TellInParts(const std::string& tag, const Result<std::string>& value,
                                  std::chrono::milliseconds deadline);

  // All: plans, reads, verifies, votes, and applies when the vote is good. Damage is kDataLoss,
  // anything else stops the load.
  Status Try(std::string_view tag, const LoadRequest& request, Attempt* attempt,
             LoadRecord* record);
  // Collective: all open what rank 0 has, over the channel if every rank has one.
  Status OpenChosen(const LoadRequest& request, Attempt* attempt);
  // This rank's preparations: nothing is read but the index.
  Status Prepare(const LoadRequest& request, Attempt* attempt);
  // Collective: all are ready, every saved tensor has a place, and who reads what.
  Status AgreeOnSchedule(std::string_view tag, const LoadRequest& request, const Status& mine,
                         Attempt* attempt, LoadRecord* record);
  Status Read(const LoadRequest& request, Attempt* attempt, LoadRecord* record);
  // Collective: every rank has read and verified its part, and rank 0 the documents, which all get.
  Status Vote(std::string_view tag, const LoadRequest& request, const Status& mine,
              const Attempt& attempt, LoadRecord* record);

  const FileSystem& fs_;
  Coordinator& coordinator_;
  Logger& log_;
  const LoaderOptions options_;
  std::vector<std::string> announced_;
};

}  // namespace keel::checkpoint
