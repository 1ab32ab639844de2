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
  return skipped ? "SKIPPED: loss or norm not finite" : "";
}

std::string TokensPerSecondText(double rate) { return fmt::format("tok/s {:>9}", Grouped(rate)); }

ConsoleLine LmText(const StepLine& line, const StepProgress& progress) {
  const bool peak = line.Has("mfu(%)");
  return {{progress.StepText()},
          {fmt::format("loss {:>8.4f}", line.Number("loss_metrics/global_avg_loss"))},
          {fmt::format("norm {:>8.3f}", line.Number("grad_norm")), 2},
          {fmt::format("lr {:.2e}", line.Number("lr"))},
          {TokensPerSecondText(line.Number("throughput(tps)"))},
          {fmt::format("{} {:>5.1f}%", peak ? "mfu" : "gemm",
                       line.Number(peak ? "mfu(%)" : "gemm_share(%)")),
           3},
          {fmt::format("mem {:>5.2f} GiB", line.Number("memory/max_rss(GiB)")), 4},
          {fmt::format("step {:.2f} s", line.Number("time_metrics/end_to_end(s)"))},
          {"eta " + progress.EtaText(), 1},
          {progress.SkippedText()}};
}

}  // namespace keel::trainer
