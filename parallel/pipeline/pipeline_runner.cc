#include "parallel/pipeline/pipeline_runner.h"

#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <utility>

namespace keel::parallel {

namespace {

// What a stage holds of a micro-batch between its forward and its backward.
struct InFlight {
  at::Tensor input;
  at::Tensor output;
  at::Tensor output_gradient;
  std::unique_ptr<Work> input_work;
  std::unique_ptr<Work> gradient_work;
};

struct Sending {
  at::Tensor tensor;
  std::unique_ptr<Work> work;
};

}  // namespace

at::Tensor PipelineRunner::Train(int microbatches, const StageCallbacks& callbacks) {
  const at::AutoGradMode with_grad(true);
  return Run(Build1F1B(forward_group_.rank(), forward_group_.size(), microbatches), microbatches,
             callbacks);
}

at::Tensor PipelineRunner::Evaluate(int microbatches, const StageCallbacks& callbacks) {
  const at::NoGradGuard no_grad;
  return Run(BuildForwardOnly(forward_group_.rank(), forward_group_.size(), microbatches),
             microbatches, callbacks);
}

at::Tensor PipelineRunner::Run(const std::vector<Action>& actions, int microbatches,
                               const StageCallbacks& callbacks) {
  const int stage = forward_group_.rank();
  const bool last = stage == forward_group_.size() - 1;
  const bool training = at::GradMode::is_enabled();
  std::vector<InFlight> flight(static_cast<size_t>(microbatches));
  std::vector<Sending> sends;
  at::Tensor loss;
  int backwards_left = microbatches;

  for (const Action& action : actions) {
    const int m = action.microbatch;
    InFlight& f = flight[static_cast<size_t>(m)];
    switch (action.kind) {
      case ActionKind::kRecvForward:
        f.input = at::empty(callbacks.activation_shape(m), options_);
        f.input_work = forward_group_.RecvAsync(f.input, stage - 1, m);
        break;
      case ActionKind::kForward: {
        const ScopedSpan span(callbacks.spans, "forward", {.microbatch = m, .stage = stage});
        if (f.input_work) {
          const ScopedSpan wait(callbacks.spans, "receive", {.microbatch = m, .stage = stage});
          f.input_work->Wait();
          f.input_work.reset();
          f.input.requires_grad_(training);
        }
        f.output = callbacks.forward(m, f.input);
        if (last) loss = loss.defined() ? loss + f.output.detach() : f.output.detach();
        if (!training) f.input = at::Tensor();
        break;
      }
      case ActionKind::kSendForward: {
        const at::Tensor payload = f.output.detach().contiguous();
        sends.push_back({payload, forward_group_.SendAsync(payload, stage + 1, m)});
        // The graph keeps what its backward needs; the output's own storage goes with the send.
        if (training) {
          f.output.set_data(at::empty({0}, f.output.options()));
        } else {
          f.output = at::Tensor();
        }
        break;
      }
      case ActionKind::kRecvBackward:
        f.output_gradient = at::empty(callbacks.activation_shape(m), options_);
        f.gradient_work = backward_group_.RecvAsync(f.output_gradient, stage + 1, m);
        break;
      case ActionKind::kBackward: {
        const ScopedSpan span(callbacks.spans, "backward", {.microbatch = m, .stage = stage});
        if (--backwards_left == 0 && callbacks.before_last_backward)
          callbacks.before_last_backward();
        if (f.gradient_work) {
          const ScopedSpan wait(callbacks.spans, "receive", {.microbatch = m, .stage = stage});
          f.gradient_work->Wait();
          f.gradient_work.reset();
        }
        if (last) f.output_gradient = at::ones_like(f.output);
        torch::autograd::backward({f.output}, {f.output_gradient});
        f.output = at::Tensor();
        f.output_gradient = at::Tensor();
        break;
      }
      case ActionKind::kSendBackward: {
        const at::Tensor payload = f.input.grad().contiguous();
        sends.push_back({payload, backward_group_.SendAsync(payload, stage - 1, m)});
        f.input = at::Tensor();
        break;
      }
    }
  }
  const ScopedSpan sent(sends.empty() ? nullptr : callbacks.spans, "finish sends");
  for (Sending& sending : sends) sending.work->Wait();
  return loss;
}

}  // namespace keel::parallel
