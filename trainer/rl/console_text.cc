#include "trainer/rl/console_text.h"

#include <fmt/format.h>

namespace keel::trainer::rl {

std::string ErrorsText(int64_t errors, int64_t samples) {
  return errors == 0 ? "" : fmt::format("errors {}/{}", errors, samples);
}

ConsoleLine DpoText(const StepLine& line, const StepProgress& progress) {
  return {{progress.StepText()},
          {fmt::format("loss {:>8.4f}", line.Number("train/loss"))},
          {fmt::format("norm {:>8.3f}", line.Number("train/grad_norm")), 4},
          {fmt::format("margin {:>7.4f}", line.Number("rewards/margins")), 3},
          {fmt::format("accuracy {:.3f}", line.Number("rewards/accuracies")), 1},
          {fmt::format("lr {:.2e}", line.Number("train/lr"))},
          {TokensPerSecondText(line.Number("throughput(tps)"))},
          {fmt::format("step {:.2f} s", line.Number("timing_s/step"))},
          {"eta " + progress.EtaText(), 2},
          {progress.SkippedText()}};
}

ConsoleLine RlText(const StepLine& line, const StepProgress& progress) {
  const double train_s =
      line.Number("timing_s/update_actor") + line.Number("timing_s/old_log_prob");
  return {{progress.StepText()},
          {line.Has("critic/score/mean")
               ? fmt::format("reward {:>6.3f}", line.Number("critic/score/mean"))
               : "reward   none"},
          {fmt::format("pg_loss {:>8.4f}", line.Number("actor/pg_loss")), 5},
          {fmt::format("kl {:.1e}", line.Number("actor/ppo_kl")), 2},
          {fmt::format("entropy {:>6.3f}", line.Number("actor/entropy")), 4},
          {fmt::format("length {:>6.1f}", line.Number("response_length/mean")), 3},
          {fmt::format("lr {:.2e}", line.Number("actor/lr"))},
          // Of a rank, under verl's name.
          {TokensPerSecondText(line.Number("perf/throughput"))},
          {fmt::format("gen {:.2f} s", line.Number("timing_s/gen")), 6},
          {fmt::format("train {:.2f} s", train_s), 7},
          {fmt::format("sync {:.3f} s", line.Number("timing_s/sync")), 8},
          {fmt::format("step {:.2f} s", line.Number("timing_s/step"))},
          {"eta " + progress.EtaText(), 1},
          {ErrorsText(static_cast<int64_t>(line.Number("reward/errors")),
                      static_cast<int64_t>(line.Number("reward/samples")))},
          {progress.SkippedText()}};
}

}  // namespace keel::trainer::rl
