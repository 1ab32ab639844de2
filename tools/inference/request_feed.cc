#include "tools/inference/request_feed.h"

#include <utility>

namespace keel::tools {

void RequestFeed::Feed(rollout::Engine& engine) {
  const rollout::EngineStats stats = engine.stats();
  const int64_t most = 2 * engine.options().scheduler.max_num_seqs;
  for (int64_t have = stats.running + stats.waiting; !ended_ && have < most; ++have) {
    std::optional<rollout::Request> request = next_();
    ended_ = !request;
    if (request) engine.Add(*std::move(request));
  }
}

void RequestFeed::Run(rollout::Engine& engine,
                      const std::function<void(const rollout::Completion&)>& take,
                      const std::function<void()>& stepped) {
  for (Feed(engine); !engine.idle(); Feed(engine)) {
    for (const rollout::Completion& completion : engine.Step()) take(completion);
    stepped();
  }
}

}  // namespace keel::tools
