// keel ckpt pin and unpin: steps that retention leaves alone.

#include <fmt/format.h>

#include <ostream>

#include "checkpoint/run/pin.h"
#include "common/clock.h"
#include "tools/ckpt/ckpt_commands.h"
#include "tools/ckpt/ckpt_paths.h"

namespace keel::tools {
namespace {

// All of them, also after one that fails; the first failure decides the exit code.
template <typename Mark>
int ForEachStep(const std::vector<std::string>& steps, std::string_view done, const Mark& mark,
                std::ostream& out, std::ostream& err) {
  int code = 0;
  for (const std::string& step : steps) {
    const auto place = OpenStep(step);
    const Status status = place.ok() ? mark(*place) : place.status();
    if (status.ok()) {
      out << fmt::format("{} {}\n", done, Shown(place->directory));
    } else if (const int failed = Fail(status, err); code == 0) {
      code = failed;
    }
  }
  return code;
}

}  // namespace

int CkptPin(const CkptPinOptions& options, std::ostream& out, std::ostream& err) {
  return ForEachStep(
      options.steps, "pinned",
      [](const StepPath& place) {
        return checkpoint::PinCheckpoint(*place.fs, place.directory, SystemClock());
      },
      out, err);
}

int CkptUnpin(const CkptPinOptions& options, std::ostream& out, std::ostream& err) {
  return ForEachStep(
      options.steps, "unpinned",
      [](const StepPath& place) { return checkpoint::UnpinCheckpoint(*place.fs, place.directory); },
      out, err);
}

}  // namespace keel::tools
