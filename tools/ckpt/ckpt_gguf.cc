// keel ckpt import-gguf.

#include <fmt/format.h>

#include <filesystem>
#include <ostream>

#include "common/enum_names.h"
#include "common/log.h"
#include "tools/ckpt/ckpt_commands.h"
#include "tools/ckpt/ckpt_paths.h"
#include "tools/ckpt/gguf_import.h"
#include "tools/counted_reads.h"
#include "tools/interruptible_reads.h"
#include "trainer/config/choices.h"

namespace keel::tools {

int CkptImportGguf(const CkptImportGgufOptions& options, std::ostream& out, std::ostream& err) {
  if (const Status usable = CheckTarget(options.output); !usable.ok()) return Fail(usable, err);
  const std::filesystem::path file = std::filesystem::absolute(options.file).lexically_normal();
  const auto source = OpenPosixFileSystem(file.parent_path().string(), false, LinkPolicy::kFollow);
  if (!source.ok()) return Fail(source.status(), err);
  const auto target = OpenParentOf(options.output);
  if (!target.ok()) return Fail(target.status(), err);

  GgufImportOptions imports;
  if (const auto dtype = ParseName<trainer::WeightDtype>(options.dtype))
    imports.dtype = *dtype == trainer::WeightDtype::kBfloat16 ? DType::kBF16 : DType::kF32;
  imports.tokenizer_only = options.tokenizer_only;
  Progress bar(BytesBar("import", 0));
  imports.progress = ShownBy(bar);
  Logger log({});
  InterruptibleReads reads(**source);
  const auto imported =
      ImportGguf(reads, file.filename().string(), *target->parent, target->name, imports, log);
  bar.Done();
  if (!imported.ok()) return Fail(imported.status(), err);
  const std::string weights =
      options.tokenizer_only ? ""
                             : fmt::format("{} tensors of {} values in {}, ", imported->tensors,
                                           imported->values, DTypeName(imported->dtype));
  out << fmt::format("imported {} to {}: {}a vocabulary of {}\n", Shown(options.file),
                     Shown(target->path), weights, imported->tokens);
  return 0;
}

}  // namespace keel::tools
