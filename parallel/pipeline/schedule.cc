#include "parallel/pipeline/schedule.h"

#include <algorithm>

namespace keel::parallel {

namespace {

struct Compute {
  bool forward;
  int microbatch;
};

// Adds the communication to a list of computations.
std::vector<Action> WithCommunication(const std::vector<Compute>& order, int stage, int stages) {
  const bool first = stage == 0;
  const bool last = stage == stages - 1;
  std::vector<Action> actions;
  const auto post_receive = [&](size_t i) {
    if (i >= order.size()) return;
    const Compute& c = order[i];
    if (c.forward && !first) actions.push_back({ActionKind::kRecvForward, c.microbatch});
    if (!c.forward && !last) actions.push_back({ActionKind::kRecvBackward, c.microbatch});
  };
  post_receive(0);
  for (size_t i = 0; i < order.size(); ++i) {
    const Compute& c = order[i];
    post_receive(i + 1);
    actions.push_back({c.forward ? ActionKind::kForward : ActionKind::kBackward, c.microbatch});
    if (c.forward && !last) actions.push_back({ActionKind::kSendForward, c.microbatch});
    if (!c.forward && !first) actions.push_back({ActionKind::kSendBackward, c.microbatch});
  }
  return actions;
}

}  // namespace

std::vector<Action> Build1F1B(int stage, int stages, int microbatches) {
  std::vector<Compute> order;
  const int warmup = std::min(stages - stage - 1, microbatches);
  for (int m = 0; m < warmup; ++m) order.push_back({true, m});
  for (int m = warmup; m < microbatches; ++m) {
    order.push_back({true, m});
    order.push_back({false, m - warmup});
  }
  for (int m = microbatches - warmup; m < microbatches; ++m) order.push_back({false, m});
  return WithCommunication(order, stage, stages);
}

std::vector<Action> BuildForwardOnly(int stage, int stages, int microbatches) {
  std::vector<Compute> order;
  for (int m = 0; m < microbatches; ++m) order.push_back({true, m});
  return WithCommunication(order, stage, stages);
}

std::string ToString(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) {
    if (action.kind != ActionKind::kForward && action.kind != ActionKind::kBackward) continue;
    if (!text.empty()) text += ' ';
    text += action.kind == ActionKind::kForward ? 'F' : 'B';
    text += std::to_string(action.microbatch);
  }
  return text;
}

}  // namespace keel::parallel
