#include "trainer/metrics/metrics_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "trainer/metrics/event_file.h"
#include "trainer/metrics/prometheus_file.h"

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

MetricsWriter::MetricsWriter(const MetricsOptions& options, Logger& log)
    : options_(options), log_(&log) {}
MetricsWriter::MetricsWriter(MetricsWriter&&) noexcept = default;
MetricsWriter::~MetricsWriter() = default;

Result<MetricsWriter> MetricsWriter::Open(const std::string& directory, int64_t resumed_step,
                                          const MetricsOptions& options, Logger& log) {
  MetricsWriter writer(options, log);
  if (options.jsonl) {
    KEEL_ASSIGN_OR_RETURN(writer.file_, MetricsFile::Open(directory, resumed_step, log));
  }
  if (options.tensorboard_dir)
    writer.events_ =
        std::make_unique<EventFile>(EventFile::Begin(*options.tensorboard_dir, resumed_step, log));
  if (options.prometheus_file) {
    const std::filesystem::path run = std::filesystem::absolute(directory).lexically_normal();
    writer.prometheus_ = std::make_unique<PrometheusFile>(
        *options.prometheus_file,
        run.has_filename() ? run.filename() : run.parent_path().filename(), log);
  }
  return writer;
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
  if (events_ || prometheus_) {
    std::vector<std::pair<std::string, double>> numbers;
    for (const auto& [name, value] : data.items()) {
      if (value.is_number()) numbers.emplace_back(name, value.get<double>());
      if (value.is_boolean()) numbers.emplace_back(name, value.get<bool>() ? 1 : 0);
    }
    if (events_) events_->Scalars(step, numbers);
    if (prometheus_) prometheus_->Write(step, numbers);
  }
  if (file_) file_->Write(step, std::move(data));
}

void MetricsWriter::Histogram(int64_t step, std::string_view name, std::span<const double> values) {
  if (events_) events_->Histogram(step, name, values);
}

void MetricsWriter::Text(int64_t step, std::string_view name, std::string_view markdown) {
  if (events_) events_->Text(step, name, markdown);
}

void MetricsWriter::Close() {
  if (file_) file_->Close();
  if (events_) events_->Close();
  if (prometheus_) prometheus_->Close();
}

}  // namespace keel::trainer
