#include "trainer/rl/validator.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "common/guarded.h"
#include "rewards/reward_options.h"
#include "trainer/metrics/metrics_sink.h"
#include "trainer/metrics/step_line.h"
#include "trainer/rl/console_text.h"
#include "trainer/rl/sample_text.h"
#include "trainer/rl/validation.h"
#include "trainer/sync/group_bytes.h"
#include "trainer/sync/rollout_settings.h"

namespace keel::trainer::rl {

namespace {

constexpr int64_t kSampleTexts = 5;  // of a validation, for dashboards

}  // namespace

Validator::Validator(Job& job, RunCourse& course, const Config& config, const PromptSet& prompts,
                     RewardErrors& errors)
    : job_(job),
      course_(course),
      c_(config),
      prompts_(prompts),
      errors_(errors),
      dumps_("trainer.validation_data_dir", config.trainer.validation_data_dir, job.log()) {}

void Validator::Begin() {
  if (!job_.rank0()) return;
  dumps_.Begin(*course_.start(), course_.state().step > 0 ? course_.state().step + 1 : 0);
}

std::optional<double> Validator::Validate(Generation& generation) {
  if (prompts_.size() == 0) return std::nullopt;
  const Stopwatch watch;
  generation.Prepare();
  RolloutTimes times;
  std::optional<std::vector<Response>> responses = generation.Run(
      {kValidationPositions, prompts_.size(),
       [this](int64_t position) { return prompts_.Get(position - kValidationPositions); },
       c_.actor_rollout_ref.rollout.val_kwargs.n, course_.state().step, ValSampling(c_), true,
       false, true},
      &times);
  generation.Leave();
  if (!responses) {
    const Status& why = generation.gave_up();
    const bool colocated = c_.async_training.placement == Placement::kColocated;
    const std::string_view left = colocated ? "" : ", and no rollout worker is left";
    job_.log().Warning("the validation of step {} is left out: {}", course_.state().step,
                       why.ok() ? fmt::format("the run was asked to stop{}", left) : why.message());
    return std::nullopt;
  }
  Outcome outcome;
  Status judged = Status::Ok();
  if (job_.rank0()) {
    judged = Guarded([&] {
      errors_.Judge(*responses, fmt::format("the validation after step {}", course_.state().step));
      return Status::Ok();
    });
  }
  ThrowIfError(ShareStatus(job_.context().world(), judged, job_.device()));
  if (job_.rank0()) outcome = Report(std::move(*responses), watch);
  outcome = ShareValue(job_.context().world(), outcome, job_.device());
  return outcome.counted ? std::optional(outcome.mean) : std::nullopt;
}

Validator::Outcome Validator::Report(std::vector<Response> responses, const Stopwatch& watch) {
  const RolloutBatch batch = RolloutBatch::Make(std::move(responses));
  const int64_t errors = CountFailed(batch.responses);
  std::vector<Response> counted = batch.responses;
  if (rewards::Excludes(errors_.policy()))
    std::erase_if(counted, [](const Response& r) { return r.failed(); });
  StepLine m = ValidationMetrics(counted, c_.actor_rollout_ref.rollout.val_kwargs.n);
  const Outcome outcome{!counted.empty(), counted.empty() ? 0 : MeanScore(counted)};
  if (outcome.counted) m.Set("val-core/all/reward/mean", outcome.mean);
  m.Set("val-aux/all/reward/errors", errors);
  m.Set("timing_s/testing", watch.Elapsed());
  dumps_.Write(course_.state().step, batch);
  if (MetricsSink* writer = course_.metrics()) {
    int64_t number = 0;
    EachSample(batch, kSampleTexts, [&](const Response& r, const Prompt& prompt) {
      writer->Text(course_.state().step, fmt::format("val/sample_{}", ++number),
                   SampleMarkdown(r, prompt.text));
    });
    writer->Validation(course_.state().step, m,
                       fmt::format("validation  reward {} over {} responses{}{} ({:.1f} s)",
                                   outcome.counted ? fmt::format("{:.3f}", outcome.mean) : "none",
                                   counted.size(), errors > 0 ? "  " : "",
                                   ErrorsText(errors, static_cast<int64_t>(batch.responses.size())),
                                   m.Number("timing_s/testing")) +
                           ConsoleSamples(batch));
  }
  return outcome;
}

// A few answers, the same prompts' in each validation, for people.
void Validator::EachSample(const RolloutBatch& batch, int64_t most,
                           const std::function<void(const Response&, const Prompt&)>& take) const {
  int64_t shown = 0;
  for (const Response& r : batch.responses) {
    if (r.sample != 0) continue;
    if (shown++ == most) return;
    take(r, prompts_.Get(r.position - kValidationPositions));
  }
}

std::string Validator::ConsoleSamples(const RolloutBatch& batch) const {
  std::string text;
  EachSample(batch, c_.trainer.log_val_generations, [&](const Response& r, const Prompt& prompt) {
    text += "\n" + SampleLines(r, prompt.text);
  });
  return text;
}

}  // namespace keel::trainer::rl
