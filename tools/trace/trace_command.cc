// keel trace: when each rank of a run did what, for Perfetto.

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <system_error>

#include "common/files/may_replace.h"
#include "common/terminal.h"
#include "tools/command.h"
#include "tools/trace/trace_events.h"
#include "tools/trace/trace_reader.h"
#include "tools/unfinished_file.h"

namespace keel::tools {

namespace {

constexpr size_t kMostNamed = 16;  // missing ranks

std::string ClocksText(const TraceCounts& counts) {
  if (counts.unaligned)
    return "some ranks' times are those of their machines' wall clocks, which may differ";
  if (counts.by_meetings)
    return fmt::format("clocks of several machines, aligned by barriers that agree to {} us",
                       counts.spread_ns / 1000 + 1);
  return "one machine's clock";
}

void Trace(const std::string& folder, const std::string& output, const std::string& steps) {
  std::optional<StepRange> range;
  if (!steps.empty()) range = ValueOrThrow(ParseStepRange(steps));
  TraceReader reader = ValueOrThrow(TraceReader::Open(folder));
  const std::string path = output.empty() ? folder + "/trace.json" : output;
  ThrowIfError(MayReplace(path, kTraceBegins));
  // Whoever opens it meanwhile sees the one before.
  const std::string partial = path + ".partial";
  WrittenEvents written;
  UnfinishedFile unfinished(partial);
  {
    std::ofstream out(partial, std::ios::binary | std::ios::trunc);
    if (!out) throw Error(Status::FromErrno(errno, "open", partial));
    Result<WrittenEvents> result = WriteTraceEvents(reader, range, out);
    if (!result.ok()) throw Error(result.status().WithContext(path));
    written = *result;
  }
  if (range && written.spans == 0)
    throw Error(StatusCode::kNotFound,
                fmt::format("{}: no span of it is of the steps {}", folder, steps));
  std::error_code error;
  std::filesystem::rename(partial, path, error);
  if (error) throw Error(Status::FromErrno(error.value(), "rename", partial));
  unfinished.Release();
  const TraceCounts& counts = reader.counts();
  if (counts.torn > 0)
    WriteStderr(
        fmt::format("warning: {} lines are left out: torn by the end of a process, or no lines "
                    "of a trace\n",
                    counts.torn));
  if (counts.unplaced > 0)
    WriteStderr(fmt::format(
        "warning: {} spans are left out: the line before them that says what their clock "
        "means is damaged\n",
        counts.unplaced));
  if (!counts.missing.empty())
    WriteStderr(
        fmt::format("warning: nothing is there of rank{} {}{}: put their files together "
                    "in {}/trace\n",
                    counts.missing.size() == 1 ? "" : "s",
                    fmt::join(counts.missing | std::views::take(kMostNamed), ", "),
                    counts.missing.size() > kMostNamed ? ", …" : "", folder));
  if (counts.dropped > 0)
    WriteStderr(fmt::format("warning: {} spans were too many for a step, and are missing\n",
                            counts.dropped));
  fmt::print("{}: {} ranks, {} spans{}; {}\n", path, counts.ranks, written.spans,
             written.spans == 0
                 ? ""
                 : fmt::format(" of steps {} to {}", written.first_step, written.last_step),
             ClocksText(counts));
}

}  // namespace

void AddTraceCommand(CLI::App& app, CommandContext& /*context*/) {
  auto folder = std::make_shared<std::string>();
  auto output = std::make_shared<std::string>();
  auto steps = std::make_shared<std::string>();
  CLI::App* trace = app.add_subcommand(
      "trace", "When each rank of a run did what, as a file for ui.perfetto.dev");
  trace->add_option("RUN", *folder, "The folder of a run with trainer.trace.enable")->required();
  trace->add_option("--out,-o", *output, "The file; trace.json in the run's folder");
  trace->add_option("--steps", *steps, "A step, 7, or the first and the last, 3:8 (all)");
  trace->footer(
      "Examples:\n"
      "  keel trace runs/quickstart\n"
      "  keel trace runs/quickstart --steps 2:3\n"
      "  keel trace runs/quickstart --steps 2 --out step.json");
  trace->callback([folder, output, steps] { Trace(*folder, *output, *steps); });
}

}  // namespace keel::tools
