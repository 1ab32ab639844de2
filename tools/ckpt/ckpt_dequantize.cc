// keel ckpt dequantize-hf.

#include <fmt/format.h>

#include <ostream>

#include "common/enum_names.h"
#include "common/log.h"
#include "common/text.h"
#include "tools/ckpt/ckpt_commands.h"
#include "tools/ckpt/ckpt_paths.h"
#include "tools/ckpt/hf_dequantize.h"
#include "tools/counted_reads.h"
#include "tools/interruptible_reads.h"
#include "trainer/config/choices.h"

namespace keel::tools {

int CkptDequantizeHf(const CkptDequantizeOptions& options, std::ostream& out, std::ostream& err) {
  if (const Status usable = CheckTarget(options.output); !usable.ok()) return Fail(usable, err);
  const auto source = OpenPosixFileSystem(options.source, false, LinkPolicy::kFollow);
  if (!source.ok()) return Fail(source.status(), err);
  const auto target = OpenParentOf(options.output);
  if (!target.ok()) return Fail(target.status(), err);

  DequantizeOptions how;
  how.dtype = ParseName<trainer::WeightDtype>(options.dtype) == trainer::WeightDtype::kFloat32
                  ? DType::kF32
                  : DType::kBF16;
  Progress bar(BytesBar("dequantize", 0));
  how.progress = ShownBy(bar);
  Logger log({});
  InterruptibleReads reads(**source);
  const auto made = DequantizeHf(reads, *target->parent, target->name, how, log);
  bar.Done();
  if (!made.ok()) return Fail(made.status(), err);
  out << fmt::format(
      "dequantized {} to {}: {} tensors, {} of them of {} and now {}{}\n", Shown(options.source),
      Shown(target->path), made->tensors, made->quantized, Shown(made->method), options.dtype,
      made->left_out > 0 ? fmt::format("; {} scales of activations are left out", made->left_out)
                         : "");
  return 0;
}

}  // namespace keel::tools
