#include "trainer/run/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace keel::trainer {

namespace {

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
                                          bool jsonl, bool console, Logger& log) {
  if (!jsonl) return MetricsWriter(std::nullopt, console);
  KEEL_ASSIGN_OR_RETURN(MetricsFile file, MetricsFile::Open(directory, resumed_step, log));
  return MetricsWriter(std::move(file), console);
}

void MetricsWriter::Line(int64_t step, Json data) {
  if (file_) file_->Write(step, std::move(data));
}

void MetricsWriter::Step(const StepMetrics& m, int64_t log_freq, Logger& log) {
  const double tps = m.step_s > 0 ? static_cast<double>(m.tokens) / m.step_s : 0;
  Json data = {{"loss_metrics/global_avg_loss", m.loss},
               {"grad_norm", m.grad_norm},
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
  Line(step, {{"validation_metrics/global_avg_loss", loss},
              {"validation_metrics/perplexity", std::exp(loss)},
              {"time_metrics/validation(s)", seconds},
              {"timing_s/param_load", moves.param_load},
              {"timing_s/param_offload", moves.param_offload}});
  if (console_)
    log.Info("validation  loss {:.4f}  perplexity {:.3f}  ({} tokens, {:.1f} s)", loss,
             std::exp(loss), tokens, seconds);
}

}  // namespace keel::trainer
