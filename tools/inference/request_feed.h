// RequestFeed: requests put into an engine as it has room for them, so that no more are held than
// it computes, twice over.
//
// What comes when follows from the engine's state alone: every rank of a model, feeding the same
// requests, adds the same ones before the same step. Used from one thread.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "rollout/engine.h"

namespace keel::tools {

class RequestFeed {
 public:
  // `next`: the next request; nothing at the end, after which it is not called again.
  explicit RequestFeed(std::function<std::optional<rollout::Request>()> next)
      : next_(std::move(next)) {}

  // Until the end, or until as many wait as the engine computes at a time beside those that it
  // does.
  void Feed(rollout::Engine& engine);
  // Feeds and steps until nothing is left. Calls `take` with each completion as it comes, and
  // `stepped` after each step.
  void Run(rollout::Engine& engine, const std::function<void(const rollout::Completion&)>& take,
           const std::function<void()>& stepped);

 private:
  std::function<std::optional<rollout::Request>()> next_;
  bool ended_ = false;
};

}  // namespace keel::tools
