// keel ckpt verify: reads every byte of steps and compares the digests.

#include <fmt/format.h>

#include <ostream>
#include <vector>

#include "checkpoint/read/verifier.h"
#include "checkpoint/run/catalog.h"
#include "common/text.h"
#include "tools/ckpt/ckpt_commands.h"
#include "tools/ckpt/ckpt_paths.h"
#include "tools/counted_reads.h"

namespace keel::tools {
namespace {

constexpr int kDamaged = 1;

// What a reader that takes every file in the folder, such as PyTorch's, would meet beside the
// checkpoint. It is no damage: every byte of the checkpoint itself is proved without it.
void WarnOfForeign(const FileSystem& fs, const std::string& directory, std::ostream& err) {
  const auto manifest = checkpoint::ReadManifest(fs, directory);
  if (!manifest.ok()) return;  // reported as damage
  const auto foreign = checkpoint::ForeignEntries(fs, directory, *manifest);
  if (!foreign.ok()) {
    err << fmt::format("warning: {}: cannot be searched for files that are not of it: {}\n",
                       directory, Shown(foreign.status().message()));
  } else if (!foreign->empty()) {
    err << fmt::format("warning: {}: {} files that are not of it, among them {}\n",
                       Shown(fs.Describe(directory)), foreign->size(), Shown(foreign->front()));
  }
}

// 0 when it is whole, kDamaged, or the exit code of the reason why nothing is known of it.
int Verify(FileSystem& fs, const std::string& directory, int threads, std::ostream& out,
           std::ostream& err) {
  const auto manifest = checkpoint::ReadManifest(fs, directory);
  Progress bar(BytesBar("verify " + Shown(directory), manifest.ok() ? manifest->TotalBytes() : 0));
  const checkpoint::VerifyReport report =
      checkpoint::VerifyCheckpoint(CountedReads(fs, bar), directory, threads);
  bar.Done();
  WarnOfForeign(fs, directory, err);
  if (report.problems.empty()) {
    out << fmt::format("{}: ok: {} tensors, {} files, {} verified in {:.2f} s ({:.2f} GB/s)\n",
                       Shown(report.directory), report.tensors, report.files,
                       HumanBytes(report.bytes), report.seconds,
                       static_cast<double>(report.bytes) / 1e9 / std::max(1e-9, report.seconds));
    return 0;
  }
  if (report.unproven != StatusCode::kOk) {
    out << fmt::format("{}: not verified: {}\n", Shown(report.directory),
                       PrintableLines(report.problems.front()));
    for (size_t i = 1; i < report.problems.size(); ++i)
      err << PrintableLines(report.problems[i]) << "\n";
    return ExitCodeFor(report.unproven);
  }
  out << fmt::format("{}: DAMAGED: {} problems\n", Shown(report.directory), report.problems.size());
  for (const std::string& problem : report.problems) err << PrintableLines(problem) << "\n";
  return kDamaged;
}

}  // namespace

int CkptVerify(const CkptVerifyOptions& options, std::ostream& out, std::ostream& err) {
  const int threads = options.threads > 0 ? options.threads : Cores();
  if (IsStep(options.path)) {
    const auto place = OpenStep(options.path);
    if (!place.ok()) return Fail(place.status(), err);
    return Verify(*place->fs, place->directory, threads, out, err);
  }
  const auto fs = OpenRun(options.path);
  if (!fs.ok()) return Fail(fs.status(), err);
  const auto entries = checkpoint::ListCheckpoints(**fs);
  if (!entries.ok()) return Fail(entries.status(), err);
  if (entries->empty()) {
    // A step whose manifest is gone is damaged, not absent.
    const auto place = OpenStep(options.path);
    if (place.ok() && place->directory.starts_with("global_step_")) {
      return Verify(*place->fs, place->directory, threads, out, err);
    }
    return Fail(Status(StatusCode::kNotFound, fmt::format("{}: holds no checkpoint", options.path)),
                err);
  }
  const int removed = ExitCodeFor(StatusCode::kNotFound);
  bool any = false;
  int worst = 0;
  for (const checkpoint::CatalogEntry& entry : *entries) {
    const int code = Verify(**fs, entry.directory, threads, out, err);
    if (code == removed) continue;  // by the retention of a run that goes on
    any = true;
    if (code == kDamaged || worst == 0) worst = code;
  }
  return any ? worst : removed;
}

}  // namespace keel::tools
