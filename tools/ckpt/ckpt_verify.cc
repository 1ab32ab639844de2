#include <fmt/format.h>

#include <ostream>
#include <vector>

#include "checkpoint/catalog.h"
#include "checkpoint/verifier.h"
#include "tools/ckpt/ckpt_commands.h"
#include "tools/ckpt/ckpt_paths.h"

namespace keel::tools {
namespace {

constexpr int kDamaged = 1;

bool Report(const checkpoint::VerifyReport& report, std::ostream& out, std::ostream& err) {
  if (report.problems.empty()) {
    out << fmt::format("{}: ok: {} tensors, {} files, {} verified in {:.2f} s ({:.2f} GB/s)\n",
                       report.directory, report.tensors, report.files, HumanBytes(report.bytes),
                       report.seconds,
                       static_cast<double>(report.bytes) / 1e9 / std::max(1e-9, report.seconds));
    return true;
  }
  out << fmt::format("{}: DAMAGED: {} problems\n", report.directory, report.problems.size());
  for (const std::string& problem : report.problems) err << problem << "\n";
  return false;
}

}  // namespace

int CkptVerify(const CkptVerifyOptions& options, std::ostream& out, std::ostream& err) {
  const int threads = options.threads > 0 ? options.threads : Cores();
  if (IsStep(options.path)) {
    const auto place = OpenStep(options.path);
    if (!place.ok()) return Fail(place.status(), err);
    return Report(checkpoint::VerifyCheckpoint(*place->fs, place->directory, threads), out, err)
               ? 0
               : kDamaged;
  }
  const auto fs = OpenRun(options.path);
  if (!fs.ok()) return Fail(fs.status(), err);
  const auto entries = checkpoint::ListCheckpoints(**fs);
  if (!entries.ok()) return Fail(entries.status(), err);
  if (entries->empty()) {
    // A step whose manifest is gone is damaged, not absent.
    const auto place = OpenStep(options.path);
    if (place.ok() && place->directory.starts_with("global_step_")) {
      return Report(checkpoint::VerifyCheckpoint(*place->fs, place->directory, threads), out, err)
                 ? 0
                 : kDamaged;
    }
    return Fail(Status(StatusCode::kNotFound, fmt::format("{}: holds no checkpoint", options.path)),
                err);
  }
  bool whole = true;
  for (const checkpoint::CatalogEntry& entry : *entries) {
    whole = Report(checkpoint::VerifyCheckpoint(**fs, entry.directory, threads), out, err) && whole;
  }
  return whole ? 0 : kDamaged;
}

}  // namespace keel::tools
