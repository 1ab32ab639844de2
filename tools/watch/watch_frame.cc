#include "tools/watch/watch_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "common/terminal.h"
#include "common/text.h"
#include "tools/report/text_plot.h"
#include "trainer/metrics/step_parts.h"

namespace keel::tools {

namespace {

constexpr int kLabel = 18;
constexpr int kLeastChart = 3, kChart = 8, kMostChart = 16;

// Small curves, those that are there.
constexpr std::array<std::pair<std::string_view, std::string_view>, 19> kCurves = {{
    {"validation_metrics/global_avg_loss", "validation loss"},
    {"val-core/all/reward/mean", "validation reward"},
    {"val/loss", "validation loss"},
    {"throughput(tps)", "tokens/s"},
    {"perf/throughput", "tokens/s"},
    {"mfu(%)", "mfu %"},
    {"gemm_share(%)", "gemm share %"},
    {"grad_norm", "gradient norm"},
    {"train/grad_norm", "gradient norm"},
    {"actor/grad_norm", "gradient norm"},
    {"lr", "learning rate"},
    {"train/lr", "learning rate"},
    {"actor/lr", "learning rate"},
    {"rewards/accuracies", "accuracy"},
    {"actor/ppo_kl", "KL divergence"},
    {"actor/entropy", "entropy"},
    {"response_length/mean", "response length"},
    {"memory/max_rss(GiB)", "memory GiB"},
    {"perf/cpu_memory_used_gb", "memory GiB"},
}};

std::string Labelled(std::string_view label, std::string_view text) {
  const int room = std::max(1, kLabel - DisplayWidth(label));
  return std::string(label) + std::string(static_cast<size_t>(room), ' ') + std::string(text);
}

const std::vector<MetricPoint>* Judged(const ReportRun& run, std::string_view* name) {
  for (const trainer::Figure& figure : trainer::kStepFigures) {
    const auto found = run.metrics.find(std::string(figure.metric));
    if (found == run.metrics.end()) continue;
    *name = figure.name;
    return &found->second;
  }
  return nullptr;
}

std::vector<std::string> Curves(const ReportRun& run, int columns) {
  std::vector<std::string> lines;
  const int width = std::min(40, columns - kLabel - 12);
  if (width < 8) return lines;
  for (const auto& [metric, name] : kCurves) {
    const auto found = run.metrics.find(std::string(metric));
    if (found == run.metrics.end()) continue;
    lines.push_back(Labelled(name, fmt::format("{:<11.5g} {}", found->second.back().value,
                                               Sparkline(found->second, width))));
  }
  return lines;
}

std::vector<std::string> StepTime(const ReportRun& run, int columns) {
  auto parts = LastStepParts(run);
  double all = 0;
  for (const auto& [name, seconds] : parts) all += seconds;
  if (!(all > 0)) return {};
  std::vector<std::string> lines;
  lines.push_back(Labelled(
      "last step",
      fmt::format("{:<8.3g} s  {}", all, ShareBar(parts, std::min(40, columns - kLabel - 12)))));
  std::ranges::stable_sort(parts, std::greater<>(), [](const auto& part) { return part.second; });
  std::vector<std::string> shares;
  for (const auto& [name, seconds] : parts)
    if (seconds / all >= 0.005)
      shares.push_back(fmt::format("{} {:.0f} %", name, 100 * seconds / all));
  lines.push_back(Labelled("", FitFields(shares, std::max(1, columns - kLabel))));
  return lines;
}

}  // namespace

std::vector<std::string> WatchFrame(const WatchState& state, int columns, int rows) {
  const ReportRun& run = *state.run;
  // 1. What is shown in any case, then what there is room for.
  std::vector<std::string> top = {Printable(run.name, 100)};
  for (const auto& [name, text] : WatchFacts(state)) top.push_back(Labelled(name, text));
  if (state.begun)
    for (const std::string& warning : RunWarnings(run)) top.push_back(Labelled("warning", warning));
  std::vector<std::string> below = StepTime(run, columns);
  for (std::string& line : Curves(run, columns)) below.push_back(std::move(line));

  // 2. The chart takes what is left.
  std::string_view name;
  const auto* judged = Judged(run, &name);
  const int others = static_cast<int>(top.size() + below.size()) + 1;
  const int height = rows == 0 ? kChart : std::clamp(rows - others, 0, kMostChart);
  std::vector<std::string> lines = std::move(top);
  if (judged != nullptr && judged->size() > 1 && height >= kLeastChart) {
    auto chart = DotChart(*judged, columns, height);
    if (!chart.empty())
      lines.push_back(
          fmt::format("{} of steps {} to {}", name, judged->front().step, judged->back().step));
    for (std::string& line : chart) lines.push_back(std::move(line));
  }
  for (std::string& line : below) lines.push_back(std::move(line));
  if (rows > 0 && lines.size() > static_cast<size_t>(rows)) lines.resize(static_cast<size_t>(rows));
  for (std::string& line : lines) line = FitColumns(line, columns);
  return lines;
}

}  // namespace keel::tools
