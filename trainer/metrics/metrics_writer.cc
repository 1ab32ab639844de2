#include "trainer/metrics/metrics_writer.h"

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
  return fmt::format(
      "{}  loss {:>8.4f}  norm {:>8.3f}  lr {:.2e}  tok/s {:>9}  mfu {:>5.1f}%  mem {:>5.2f} GiB  "
      "eta {}{}",
      progress.StepText(), line.Number("loss_metrics/global_avg_loss"), line.Number("grad_norm"),
      line.Number("lr"), Grouped(line.Number("throughput(tps)")), line.Number("mfu(%)"),
      line.Number("memory/max_rss(GiB)"), progress.EtaText(), progress.SkippedText());
}

Result<MetricsWriter> MetricsWriter::Open(const std::string& directory, int64_t resumed_step,
                                          const MetricsOptions& options, Logger& log) {
  if (!options.jsonl) return MetricsWriter(std::nullopt, options, log);
  KEEL_ASSIGN_OR_RETURN(MetricsFile file, MetricsFile::Open(directory, resumed_step, log));
  return MetricsWriter(std::move(file), options, log);
}

void MetricsWriter::Step(const StepLine& line, const StepProgress& progress, ConsoleText* text) {
  Record(progress.step, line.ToJson());
  const bool due = progress.step % options_.log_freq == 0 || progress.step == 1 ||
                   progress.step == progress.total_steps;
  if (options_.console && due) log_->Info("{}", text(line, progress));
}

void MetricsWriter::Validation(int64_t step, const StepLine& line, const std::string& text) {
  Record(step, line.ToJson());
  if (options_.console) log_->Info("{}", text);
}

void MetricsWriter::Record(int64_t step, Json data) {
  if (file_) file_->Write(step, std::move(data));
}

}  // namespace keel::trainer
