#include "trainer/metrics/metrics_sink.h"

#include <fmt/format.h>

#include <algorithm>

namespace keel::trainer {

namespace {

// "1234567" -> "1,234,567"
std::string Grouped(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

}  // namespace

std::string StepProgress::StepText() const {
  return fmt::format("step {:>{}}/{}", step, std::to_string(total_steps).size(), total_steps);
}

std::string StepProgress::EtaText() const {
  const auto s = static_cast<int64_t>(std::max(0.0, eta_s));
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string StepProgress::SkippedText() const {
  return skipped ? "  SKIPPED: loss or norm not finite" : "";
}

std::string LmText(const StepLine& line, const StepProgress& progress) {
  const bool peak = line.Has("mfu(%)");
  return fmt::format(
      "{}  loss {:>8.4f}  norm {:>8.3f}  lr {:.2e}  tok/s {:>9}  {} {:>5.1f}%  mem {:>5.2f} GiB  "
      "eta {}{}",
      progress.StepText(), line.Number("loss_metrics/global_avg_loss"), line.Number("grad_norm"),
      line.Number("lr"), Grouped(line.Number("throughput(tps)")), peak ? "mfu" : "gemm",
      line.Number(peak ? "mfu(%)" : "gemm_share(%)"), line.Number("memory/max_rss(GiB)"),
      progress.EtaText(), progress.SkippedText());
}

}  // namespace keel::trainer
