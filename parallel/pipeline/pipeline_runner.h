// PipelineRunner: interprets a schedule on one stage. Point-to-point transfers are explicit here
// and nowhere hidden in autograd.
//
// Collective over the pipeline: every stage runs the schedule of the same micro-batches. Used from
// the training thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "common/span_recorder.h"
#include "parallel/groups/process_group.h"
#include "parallel/pipeline/schedule.h"

namespace keel::parallel {

// What the runner needs of a model; callbacks of the trainer.
struct StageCallbacks {
  // Shape of the activations that enter and leave the stage for a micro-batch.
  std::function<std::vector<int64_t>(int microbatch)> activation_shape;
  // Input (undefined on the first stage) -> output (on the last stage the scalar loss).
  std::function<at::Tensor(int microbatch, const at::Tensor& input)> forward;
  // Called before the last backward of the step on this stage; may be empty.
  std::function<void()> before_last_backward;
  // Forwards, backwards and waits for other stages are recorded there; may be null.
  SpanRecorder* spans = nullptr;
};

class PipelineRunner {
 public:
  // `forward_group` carries activations, `backward_group` gradients; both span the pipeline in
  // stage order. `options`: dtype and device of the activations.
  PipelineRunner(ProcessGroup& forward_group, ProcessGroup& backward_group,
                 const at::TensorOptions& options)
      : forward_group_(forward_group), backward_group_(backward_group), options_(options) {}

  // Forwards and backwards of all micro-batches (1F1B). Returns the losses, summed, on the last
  // stage; an undefined tensor elsewhere.
  at::Tensor Train(int microbatches, const StageCallbacks& callbacks);
  // Forwards only, without gradients; the same result.
  at::Tensor Evaluate(int microbatches, const StageCallbacks& callbacks);

 private:
  at::Tensor Run(const std::vector<Action>& actions, int microbatches,
                 const StageCallbacks& callbacks);

  ProcessGroup& forward_group_;
  ProcessGroup& backward_group_;
  at::TensorOptions options_;
};

}  // namespace keel::parallel
