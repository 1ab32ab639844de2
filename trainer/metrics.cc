#include "trainer/metrics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>

#include "common/file_system.h"

namespace keel::trainer {

namespace {

constexpr std::string_view kName = "metrics.jsonl";

// JSON has no NaN; a number that is none is written as a string.
Json Number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

// "1234567" -> "1,234,567"
std::string Grouped(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

}  // namespace

std::string FormatDuration(double seconds) {
  const auto s = static_cast<int64_t>(std::max(0.0, seconds));
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

Result<MetricsWriter> MetricsWriter::Open(const std::string& directory, int64_t resumed_step,
                                          bool jsonl, bool console) {
  if (!jsonl) return MetricsWriter(nullptr, console);
  const std::string path = directory + "/" + std::string(kName);
  std::string content, kept;
  bool dropped = false;
  {
    std::ifstream old(path, std::ios::binary);
    content.assign(std::istreambuf_iterator<char>(old), {});
    std::istringstream lines(content);
    std::string line;
    while (std::getline(lines, line)) {
      const auto json = ParseJson(line, path);
      // A line that a crash cut off is dropped too.
      if (json.ok() && GetInt(*json, "step", path).ok() &&
          GetInt(*json, "step", path).value() <= resumed_step) {
        kept += line + "\n";
      } else {
        dropped = true;
      }
    }
  }
  if (dropped) {
    KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, true));
    const Status replaced = ReplaceFileDurably(*fs, kName, kept);
    // A full disk: what is to go is at the end, unless someone has edited the file.
    const bool cut = replaced.code() == StatusCode::kNoSpace && content.starts_with(kept) &&
                     ::truncate(path.c_str(), static_cast<off_t>(kept.size())) == 0;
    if (!cut) KEEL_RETURN_IF_ERROR(replaced);
  }
  std::FILE* file = std::fopen(path.c_str(), "ae");
  if (file == nullptr) return Status::FromErrno(errno, "open", path);
  return MetricsWriter(file, console);
}

MetricsWriter::MetricsWriter(MetricsWriter&& other) noexcept
    : file_(std::exchange(other.file_, nullptr)), console_(other.console_) {}

MetricsWriter::~MetricsWriter() {
  if (file_ != nullptr) std::fclose(file_);
}

void MetricsWriter::Line(int64_t step, Json data) {
  if (file_ == nullptr) return;
  const Json line = {{"step", step}, {"data", std::move(data)}};
  const std::string text = line.dump() + "\n";
  // A line is there as a whole or not at all: what a full disk took of it is taken back.
  const int file = fileno(file_);
  const off_t end = ::lseek(file, 0, SEEK_END);
  const ssize_t written = ::write(file, text.data(), text.size());
  failing_ = written != static_cast<ssize_t>(text.size());
  if (!failing_) return;
  const int error = written < 0 ? errno : ENOSPC;
  if (end >= 0 && written > 0) (void)!::ftruncate(file, end);
  ++lost_;
  lost_because_ = Status::FromErrno(error, "write", std::string(kName)).message();
}

// Once when lines begin to be lost, and once when that is over.
void MetricsWriter::TellOfLost(Logger& log) {
  if (lost_ > 0 && !told_) log.Warning("metrics are being lost: {}", lost_because_);
  told_ = lost_ > 0;
  if (lost_ == 0 || failing_) return;
  log.Warning("{} lines of {} were lost", lost_, kName);
  lost_ = 0;
  told_ = false;
}

void MetricsWriter::Step(const StepMetrics& m, int64_t log_freq, Logger& log) {
  const double tps = m.step_s > 0 ? static_cast<double>(m.tokens) / m.step_s : 0;
  Json data = {{"loss_metrics/global_avg_loss", Number(m.loss)},
               {"grad_norm", Number(m.grad_norm)},
               {"lr", m.lr},
               {"throughput(tps)", tps},
               {"tflops", m.tflops},
               {"mfu(%)", 100 * m.mfu},
               {"time_metrics/end_to_end(s)", m.step_s},
               {"time_metrics/data_loading(s)", m.data_s},
               {"time_metrics/forward_backward(s)", m.forward_backward_s},
               {"time_metrics/reduce(s)", m.reduce_s},
               {"time_metrics/optimizer(s)", m.optimizer_s},
               {"timing_s/param_load", m.moves.param_load},
               {"timing_s/param_offload", m.moves.param_offload},
               {"timing_s/grad_load", m.moves.grad_load},
               {"timing_s/grad_offload", m.moves.grad_offload},
               {"timing_s/optimizer_load", m.moves.optimizer_load},
               {"timing_s/optimizer_offload", m.moves.optimizer_offload},
               {"memory/max_rss(GiB)", m.memory_gib},
               {"n_tokens_seen", m.tokens_consumed},
               {"data/samples_consumed", m.samples_consumed},
               {"data/sample_digest", m.sample_digest},
               {"skipped_steps", m.skipped_steps}};
  if (m.save_s > 0) data["time_metrics/save_checkpoint(s)"] = m.save_s;
  Line(m.step, std::move(data));
  TellOfLost(log);
  if (!console_ || (m.step % log_freq != 0 && m.step != 1 && m.step != m.total_steps)) return;
  const auto width = std::to_string(m.total_steps).size();
  log.Info(
      "step {:>{}}/{}  loss {:>8.4f}  norm {:>8.3f}  lr {:.2e}  tok/s {:>9}  mfu {:>5.1f}%  mem "
      "{:>5.2f} GiB  eta {}{}",
      m.step, width, m.total_steps, m.loss, m.grad_norm, m.lr, Grouped(tps), 100 * m.mfu,
      m.memory_gib, FormatDuration(m.eta_s), m.skipped ? "  SKIPPED: loss or norm not finite" : "");
}

void MetricsWriter::Save(int64_t step, const checkpoint::SaveResult& result,
                         const SaveSession::Counts& counts) {
  Json data = {{"checkpoint/step", result.record.step},      {"checkpoint/ok", result.status.ok()},
               {"checkpoint/waited", counts.waited},         {"checkpoint/skipped", counts.skipped},
               {"checkpoint/superseded", counts.superseded}, {"checkpoint/failed", counts.failed}};
  if (!result.status.ok()) data["checkpoint/error"] = result.status.ToString();
  const Json record = result.record.ToJson();
  for (const auto& [key, value] : record.items()) {
    if ((value.is_number() && key != "step") || key == "ranks") data["checkpoint/" + key] = value;
  }
  Line(step, std::move(data));
}

void MetricsWriter::Load(const checkpoint::LoadRecord& record) {
  Json data;
  const Json all = record.ToJson();
  for (const auto& [key, value] : all.items()) {
    if (value.is_number()) data["checkpoint/load/" + key] = value;
  }
  Line(record.step, std::move(data));
}

void MetricsWriter::Validation(int64_t step, double loss, int64_t tokens, double seconds,
                               const MoveSeconds& moves, Logger& log) {
  Line(step, {{"validation_metrics/global_avg_loss", Number(loss)},
              {"validation_metrics/perplexity", Number(std::exp(loss))},
              {"time_metrics/validation(s)", seconds},
              {"timing_s/param_load", moves.param_load},
              {"timing_s/param_offload", moves.param_offload}});
  if (console_)
    log.Info("validation  loss {:.4f}  perplexity {:.3f}  ({} tokens, {:.1f} s)", loss,
             std::exp(loss), tokens, seconds);
}

}  // namespace keel::trainer
