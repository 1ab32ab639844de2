#include "library/checkpointer_options.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "library/state_tables.h"

namespace keel::library {

checkpoint::CheckpointOptions OptionsOf(const CheckpointerOptions& options) {
  checkpoint::CheckpointOptions all;
  all.max_ckpts_to_keep = options.keep;
  all.retention.keep_best = options.keep_best;
  all.retention.higher_is_better = options.higher_is_better;
  all.retention.keep_every = options.keep_every;
  all.adopt_foreign = options.adopt_foreign;
  all.role = kRole;
  all.io = ParseName<checkpoint::IoChoice>(options.io).value_or(checkpoint::IoChoice::kAuto);
  all.dist_ckpt_workers = options.writers;
  all.load_threads = options.readers;
  all.deadline = options.deadline;
  all.names.keep = "keep";
  all.names.writers = "writers";
  all.names.readers = "readers";
  all.names.apart =
      "Give each rank's a name of its own, say which part of a whole each is (Shard), or name in "
      "from_rank_0 those of which rank 0's stands for all";
  return all;
}

LogOptions LogOptionsOf(const CheckpointerOptions& options) {
  LogOptions log;
  log.level = options.log == Verbosity::kInfo       ? LogLevel::kInfo
              : options.log == Verbosity::kWarnings ? LogLevel::kWarning
                                                    : LogLevel::kError;
  log.rank = options.world > 1 ? options.rank : -1;
  return log;
}

Status CheckOptions(const CheckpointerOptions& options) {
  std::vector<std::string> problems = checkpoint::Validate(OptionsOf(options));
  if (!ParseName<checkpoint::IoChoice>(options.io)) {
    problems.push_back(fmt::format("io is '{}', expected one of {}", options.io,
                                   fmt::join(AllNames<checkpoint::IoChoice>(), ", ")));
  }
  if (options.keep_best < 0) problems.emplace_back("keep_best is negative");
  if (options.keep_every < 0) problems.emplace_back("keep_every is negative");
  if (!options.keep && (options.keep_best > 0 || options.keep_every > 0))
    problems.emplace_back("keep_best and keep_every say what stays besides the newest: set keep");
  if (options.world < 1 || options.rank < 0 || options.rank >= options.world)
    problems.push_back(fmt::format("rank {} of world {}", options.rank, options.world));
  if (options.world > 1 && options.store.empty())
    problems.push_back(fmt::format(
        "{} ranks need a store over which they agree: set it to the host:port of a TCPStore",
        options.world));
  if (options.world > 1 && options.job.empty())
    problems.emplace_back("several ranks need the job's name, which is used once in the store");
  if (problems.empty()) return Status::Ok();
  return Status(StatusCode::kConfig, fmt::format("options: {}", fmt::join(problems, "; ")));
}

}  // namespace keel::library
