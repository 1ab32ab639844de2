#include "trainer/metrics/prometheus_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "common/files/whole_file.h"
#include "common/text.h"

namespace keel::trainer {

namespace {

constexpr std::chrono::seconds kInterval{1};

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string LabelText(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return text;
}

}  // namespace

std::string PrometheusFile::MetricName(std::string_view name) {
  std::string text = "keel_";
  for (const char c : name) text += IsLetter(c) || IsDigit(c) ? c : '_';
  return text;
}

const std::string& PrometheusFile::NameFor(const std::string& metric) {
  const auto found = names_.find(metric);
  if (found != names_.end()) return found->second;
  const std::string plain = MetricName(metric);
  std::string name = plain;
  const auto taken = [&](const std::string& one) {
    return one == MetricName("step") || one == MetricName("updated_seconds") ||
           values_.contains(one);
  };
  for (int i = 2; taken(name); ++i) name = fmt::format("{}_{}", plain, i);
  values_[name] = 0;
  return names_[metric] = name;
}

void PrometheusFile::Write(int64_t step, std::span<const std::pair<std::string, double>> metrics) {
  for (const auto& [metric, value] : metrics) values_[NameFor(metric)] = value;
  step_ = step;
  pending_ = true;
  if (!published_ || clock_->Monotonic() - *published_ >= kInterval) Publish();
}

void PrometheusFile::Publish() {
  published_ = clock_->Monotonic();
  pending_ = false;
  const double now = std::chrono::duration<double>(clock_->Wall().time_since_epoch()).count();
  const std::string labels = fmt::format("{{run=\"{}\",rank=\"0\"}}", LabelText(run_));
  std::string text;
  const auto add = [&](std::string_view name, double value) {
    fmt::format_to(std::back_inserter(text), "# TYPE {0} gauge\n{0}{1} {2}\n", name, labels,
                   NumberText(value));
  };
  add(MetricName("step"), static_cast<double>(step_));
  add(MetricName("updated_seconds"), now);
  for (const auto& [name, value] : values_) add(name, value);
  // Collectors read *.prom.
  const Status status = ReplaceWholeFile(path_, text);
  ++writes_;
  if (status.ok()) {
    if (lost_in_row_ > 0)
      log_->Warning("{}: can be written again, after {} times that it could not", path_,
                    lost_in_row_);
    lost_in_row_ = 0;
    return;
  }
  because_ = status.message();
  ++lost_;
  if (++lost_in_row_ == 1) {
    log_->Warning("{}: stays behind the run from step {} on: {}", path_, step_, because_);
  }
}

void PrometheusFile::Close() {
  if (pending_) Publish();
  if (lost_ == 0) return;
  log_->Warning("{}: {} of {} times it could not be written: {}", path_, lost_, writes_, because_);
  lost_ = 0;
}

}  // namespace keel::trainer
