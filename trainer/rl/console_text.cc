#include "trainer/rl/console_text.h"

#include <fmt/format.h>

namespace keel::trainer::rl {

std::string ErrorsText(int64_t errors, int64_t samples) {
  return errors == 0 ? "" : fmt::format("  errors {}/{}", errors, samples);
}

std::string DpoText(const StepLine& line, const StepProgress& progress) {
  return fmt::format(
      "step {}/{}  loss {:>8.4f}  norm {:>8.3f}  margin {:>7.4f}  accuracy {:.3f}  {}",
      progress.step, progress.total_steps, line.Number("train/loss"),
      line.Number("train/grad_norm"), line.Number("rewards/margins"),
      line.Number("rewards/accuracies"),
      progress.skipped ? "SKIPPED: loss or norm not finite" : "");
}

std::string RlText(const StepLine& line, const StepProgress& progress) {
  return fmt::format(
      "{}  reward {:>6.3f}  pg_loss {:>8.4f}  kl {:.1e}  entropy {:>6.3f}  length {:>6.1f}  gen "
      "{:.2f} s  train {:.2f} s  sync {:.3f} s  step {:.2f} s  eta {}{}{}",
      progress.StepText(), line.Number("critic/score/mean"), line.Number("actor/pg_loss"),
      line.Number("actor/ppo_kl"), line.Number("actor/entropy"),
      line.Number("response_length/mean"), line.Number("timing_s/gen"),
      line.Number("timing_s/update_actor") + line.Number("timing_s/old_log_prob"),
      line.Number("timing_s/update_weights"), line.Number("timing_s/step"), progress.EtaText(),
      ErrorsText(static_cast<int64_t>(line.Number("reward/errors")),
                 static_cast<int64_t>(line.Number("reward/samples"))),
      progress.SkippedText());
}

}  // namespace keel::trainer::rl
