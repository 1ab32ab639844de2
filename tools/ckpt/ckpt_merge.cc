// keel ckpt merge-adapter.

#include <fmt/format.h>

#include <ostream>

#include "common/log.h"
#include "tools/ckpt/adapter_merge.h"
#include "tools/ckpt/ckpt_commands.h"
#include "tools/ckpt/ckpt_paths.h"
#include "tools/counted_reads.h"
#include "tools/interruptible_reads.h"

namespace keel::tools {

int CkptMergeAdapter(const CkptMergeOptions& options, std::ostream& out, std::ostream& err) {
  if (const Status usable = CheckTarget(options.output); !usable.ok()) return Fail(usable, err);
  const auto model = OpenNamedModel(options.adapters, {"ADAPTERS", options.base});
  if (!model.ok()) return Fail(model.status(), err);
  if (!model->has_adapters()) {
    return Fail(Status(StatusCode::kInvalidData,
                       fmt::format("{}: has no adapters: its weights are whole as they are",
                                   Shown(options.adapters))),
                err);
  }
  const auto base = OpenPosixFileSystem(model->base, false, LinkPolicy::kFollow);
  if (!base.ok()) return Fail(base.status(), err);
  const auto target = OpenParentOf(options.output);
  if (!target.ok()) return Fail(target.status(), err);
  MergeOptions how;
  how.threads = Cores();
  Progress bar(BytesBar("merge", 0));
  how.progress = ShownBy(bar);
  Logger log({});
  InterruptibleReads reads(**base);
  const auto merged = MergeAdapters(*model, reads, *target->parent, target->name, how, log);
  bar.Done();
  if (!merged.ok()) return Fail(merged.status(), err);
  for (const std::string& note : model->source.left_out) out << note << "\n";
  out << fmt::format("merged {} adapters of {} into {} as {}\n", *merged, Shown(options.adapters),
                     Shown(model->base), Shown(target->path));
  return 0;
}

}  // namespace keel::tools
