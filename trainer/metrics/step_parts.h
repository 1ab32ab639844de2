// The parts of a step and the figures that a run is judged by, as its metrics name them, for all
// who show them: the page of `keel report`, `keel status`, `keel watch`, and the lines that
// a run ends with. Torch-free.
#pragma once

#include <array>
#include <string_view>

namespace keel::trainer {

struct StepPart {
  std::string_view metric;  // seconds
  std::string_view name;    // for people
};

// Those of one step follow each other and do not overlap, but for `timing_s/save_checkpoint`, which
// is the time for which a save blocked.
inline constexpr std::array<StepPart, 17> kStepParts = {{
    {"time_metrics/data_loading(s)", "data"},
    {"time_metrics/forward_backward(s)", "forward, backward"},
    {"time_metrics/reduce(s)", "reduce"},
    {"time_metrics/optimizer(s)", "optimizer"},
    {"timing_s/gen", "generate"},
    {"timing_s/reward", "reward"},
    {"timing_s/old_log_prob", "old log-prob"},
    {"timing_s/ref", "reference"},
    {"timing_s/values", "values"},
    {"timing_s/adv", "advantage"},
    {"timing_s/update_critic", "critic"},
    {"timing_s/update_actor", "actor"},
    {"timing_s/sync", "sync"},
    {"time_metrics/save_checkpoint(s)", "save"},
    {"timing_s/save_checkpoint", "save"},
    {"timing_s/testing", "validate"},
    {"time_metrics/validation(s)", "validate"},
}};

struct Figure {
  std::string_view metric;
  std::string_view name;
  bool higher_is_better;
};

// Of validations and of steps: the first that a line has is what the run is judged by.
inline constexpr std::array<Figure, 3> kValidationFigures = {{
    {"validation_metrics/global_avg_loss", "validation loss", false},
    {"val-core/all/reward/mean", "validation reward", true},
    {"val/loss", "validation loss", false},
}};
inline constexpr std::array<Figure, 3> kStepFigures = {{
    {"loss_metrics/global_avg_loss", "loss", false},
    {"critic/score/mean", "reward", true},
    {"train/loss", "loss", false},
}};

// Seconds of a whole step.
inline constexpr std::array<std::string_view, 2> kStepSeconds = {"time_metrics/end_to_end(s)",
                                                                 "timing_s/step"};
inline constexpr std::array<std::string_view, 2> kTokensPerSecond = {"throughput(tps)",
                                                                     "perf/throughput"};

}  // namespace keel::trainer
