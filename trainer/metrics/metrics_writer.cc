#include "trainer/metrics/metrics_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "trainer/metrics/console_line.h"
#include "trainer/metrics/event_file.h"
#include "trainer/metrics/metrics_history.h"
#include "trainer/metrics/prometheus_file.h"

namespace keel::trainer {

namespace {

using Numbers = std::vector<std::pair<std::string, double>>;

Numbers NumbersOf(const Json& data) {
  Numbers numbers;
  for (const auto& [name, value] : data.items()) {
    if (value.is_number()) numbers.emplace_back(name, value.get<double>());
    if (value.is_boolean()) numbers.emplace_back(name, value.get<bool>() ? 1 : 0);
  }
  return numbers;
}

struct Line {
  int64_t step = 0;
  Numbers numbers;
};

Line ParseLine(const std::string& text) {
  const Json json = ValueOrThrow(ParseJson(text, kMetricsName));
  return {ValueOrThrow(GetInt(json, "step", kMetricsName)), NumbersOf(json.value("data", Json()))};
}

}  // namespace

MetricsWriter::MetricsWriter(const MetricsOptions& options, int64_t resumed_step, Logger& log)
    : options_(options), summary_(resumed_step), log_(&log) {}
MetricsWriter::MetricsWriter(MetricsWriter&&) noexcept = default;
MetricsWriter::~MetricsWriter() = default;

Result<MetricsWriter> MetricsWriter::Open(const std::string& directory, const RunStart& start,
                                          const MetricsOptions& options, Logger& log) {
  MetricsWriter writer(options, start.step, log);
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, true, LinkPolicy::kFollow));
  KEEL_ASSIGN_OR_RETURN(MetricsHistory history, MetricsHistory::Read(*fs, start, log));
  // Events first: a start that is killed on the way is done again as long as the lines are not.
  std::error_code error;
  if (options.tensorboard || std::filesystem::is_directory(options.tensorboard_dir, error)) {
    auto events = std::make_unique<EventFile>(
        EventFile::Begin(options.tensorboard_dir, history.known_step(), log));
    for (const std::string& text : history.restored()) {
      const Line line = ParseLine(text);
      events->Scalars(line.step, line.numbers);
    }
    if (!options.tensorboard) events->TakeBack();
    if (options.tensorboard) writer.events_ = std::move(events);
  }
  KEEL_RETURN_IF_ERROR(history.Apply());
  if (options.jsonl) {
    KEEL_ASSIGN_OR_RETURN(writer.file_, MetricsFile::Open(*fs, log));
  }
  if (options.prometheus_file) {
    const std::filesystem::path run = std::filesystem::absolute(directory).lexically_normal();
    writer.prometheus_ = std::make_unique<PrometheusFile>(
        *options.prometheus_file,
        run.has_filename() ? run.filename() : run.parent_path().filename(), log);
  }
  return writer;
}

void MetricsWriter::Step(const StepLine& line, const StepProgress& progress, ConsoleText* text) {
  Write(progress.step, line.ToJson(), progress.total_steps);
  summary_.AddStep(progress.step, line);
  const bool due = progress.step % options_.log_freq == 0 || progress.step == 1 ||
                   progress.step == progress.total_steps;
  if (!options_.console || !due) return;
  const ConsoleLine shown = text(line, progress);
  log_->InfoFitted(WholeText(shown), [&](int columns) { return FittedText(shown, columns); });
}

void MetricsWriter::Validation(int64_t step, const StepLine& line, const std::string& text) {
  Record(step, line.ToJson());
  summary_.AddValidation(step, line);
  if (options_.console) log_->Info("{}", text);
}

void MetricsWriter::Write(int64_t step, Json data, std::optional<int64_t> total_steps) {
  if (events_ || prometheus_) {
    const Numbers numbers = NumbersOf(data);
    if (events_) events_->Scalars(step, numbers);
    if (prometheus_) prometheus_->Write(step, numbers);
  }
  if (file_) file_->Write(step, std::move(data), total_steps);
}

void MetricsWriter::Histogram(int64_t step, std::string_view name, std::span<const double> values) {
  if (events_) events_->Histogram(step, name, values);
}

void MetricsWriter::Text(int64_t step, std::string_view name, std::string_view markdown) {
  if (events_) events_->Text(step, name, markdown);
}

void MetricsWriter::TellSummary(const RunPlaces& places) {
  if (options_.console) log_->Info("{}", summary_.Text(places));
}

void MetricsWriter::Close() {
  if (file_) file_->Close();
  if (events_) events_->Close();
  if (prometheus_) prometheus_->Close();
}

}  // namespace keel::trainer
