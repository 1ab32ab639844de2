// keel ckpt reshard: a step once more, in the files of another layout.

#include <fmt/format.h>

#include <optional>
#include <ostream>

#include "checkpoint/read/step_reader.h"
#include "checkpoint/tools/reshard.h"
#include "common/clock.h"
#include "common/log.h"
#include "tools/ckpt/ckpt_commands.h"
#include "tools/ckpt/ckpt_paths.h"
#include "tools/counted_reads.h"
#include "tools/interruptible_reads.h"

namespace keel::tools {

int CkptReshard(const CkptReshardOptions& options, std::ostream& out, std::ostream& err) {
  if ((options.world > 0) == !options.like.empty()) {
    return Fail(Status(StatusCode::kUsage, "reshard: give --world or --like"), err);
  }
  const auto place = OpenStep(options.source);
  if (!place.ok()) return Fail(place.status(), err);
  Progress bar(BytesBar("reshard", 0));
  InterruptibleReads reads(*place->fs);
  CountedReads files(reads, bar);
  const auto source = checkpoint::StepReader::Open(files, place->directory);
  if (!source.ok()) return Fail(source.status(), err);
  bar.SetTotal(source->manifest().TotalBytes());
  if (const Status usable = CheckTarget(options.run); !usable.ok()) return Fail(usable, err);
  checkpoint::ReshardOptions reshard;
  reshard.threads = options.threads > 0 ? options.threads : Cores();
  std::optional<StepPath> like_place;
  std::optional<checkpoint::StepReader> like;
  if (options.like.empty()) {
    reshard.world = options.world;
  } else {
    auto opened = OpenStep(options.like);
    if (!opened.ok()) return Fail(opened.status(), err);
    like_place = std::move(opened).value();
    auto reader = checkpoint::StepReader::Open(*like_place->fs, like_place->directory);
    if (!reader.ok()) return Fail(reader.status(), err);
    like = std::move(reader).value();
    reshard.like = &*like;
  }
  const FolderToFill folder(options.run);
  const auto run = OpenPosixFileSystem(options.run, true);
  if (!run.ok()) return Fail(run.status(), err);
  const Status latest = CheckIsLatest(**run, options.run, source->manifest().step, "resharded");
  if (!latest.ok()) return Fail(latest, err);
  LogOptions quiet;
  quiet.level = LogLevel::kWarning;
  Logger log(quiet);
  const auto report = checkpoint::ReshardCheckpoint(*source, **run, SystemClock(), log, reshard);
  bar.Done();
  if (!report.ok()) return Fail(report.status(), err);
  out << fmt::format("wrote {}/{}: {} tensor files, {} in {:.2f} s\n", Shown(options.run),
                     report->directory, report->tensor_files, HumanBytes(report->bytes),
                     report->seconds);
  return 0;
}

}  // namespace keel::tools
