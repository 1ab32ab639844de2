// Pipeline schedules as data: what a stage does, in order. Pure; the runner interprets the list.
#pragma once

#include <string>
#include <vector>

namespace keel::parallel {

enum class ActionKind {
  kRecvForward,   // post the receive of a micro-batch's input from the previous stage
  kForward,       // wait for that input, compute
  kSendForward,   // start sending the output to the next stage
  kRecvBackward,  // post the receive of the output's gradient from the next stage
  kBackward,      // wait for it, compute
  kSendBackward,  // start sending the input's gradient to the previous stage
};

struct Action {
  ActionKind kind;
  int microbatch;
  friend bool operator==(const Action&, const Action&) = default;
};

// One-forward-one-backward (PipeDream-Flush; Narayanan et al., SC'21): stages - stage - 1 warm-up
// forwards, then forward and backward in turn, then the remaining backwards. At most stages - stage
// micro-batches hold activations at a time. Receives are posted one computation ahead, so that a
// peer's send never waits for this stage's compute.
std::vector<Action> Build1F1B(int stage, int stages, int microbatches);

// Forwards only, for evaluation.
std::vector<Action> BuildForwardOnly(int stage, int stages, int microbatches);

// "F0 F1 B0 F2 B1 B2" with sends and receives left out; for the log.
std::string ToString(const std::vector<Action>& actions);

}  // namespace keel::parallel
