#include "tools/inference/engine_run.h"

#include <optional>
#include <utility>

#include "tools/inference/request_feed.h"

namespace keel::tools {

namespace {

// What is relayed at a time, but for a row that is longer.
constexpr int64_t kRowsAtATime = 256;
constexpr int64_t kTokensAtATime = int64_t{1} << 16;

// The requests of rows, which come some at a time.
class RequestsOfRows {
 public:
  // `more`: the prompts of the next rows; nothing at the end.
  RequestsOfRows(const EngineRun& run, std::function<std::optional<Prompts>()> more)
      : run_(run), more_(std::move(more)) {}

  std::optional<rollout::Request> Next() {
    if (at_ == prompts_.size()) {
      std::optional<Prompts> more = more_();
      if (!more) return std::nullopt;
      prompts_ = *std::move(more);
      at_ = 0;
    }
    rollout::Request request{row_, sample_, prompts_[at_], run_.sampling};
    if (++sample_ == run_.samples) {
      sample_ = 0;
      ++row_;
      ++at_;
    }
    return request;
  }

 private:
  const EngineRun& run_;
  const std::function<std::optional<Prompts>()> more_;
  Prompts prompts_;
  size_t at_ = 0;  // in prompts_
  uint64_t row_ = 0;
  int sample_ = 0;
};

void Run(const EngineRun& run, std::function<std::optional<Prompts>()> more,
         const std::function<void(const rollout::Completion&)>& take,
         const std::function<void()>& stepped) {
  RequestsOfRows requests(run, std::move(more));
  RequestFeed([&] { return requests.Next(); }).Run(run.engine, take, stepped);
}

}  // namespace

void RunRows(const EngineRun& run, const InputRows& rows, const Progress::Options& options,
             const std::function<void(const rollout::Completion&)>& take) {
  int64_t next = 0;
  const auto more = [&]() -> std::optional<Prompts> {
    if (next == rows.size()) {
      run.model.relay().SendEnd();
      return std::nullopt;
    }
    Prompts prompts;
    for (int64_t tokens = 0;
         next < rows.size() && std::ssize(prompts) < kRowsAtATime && tokens < kTokensAtATime;
         ++next) {
      prompts.push_back(rows.Get(next).ids);
      tokens += std::ssize(prompts.back());
    }
    run.model.relay().Send(prompts);
    return prompts;
  };
  Progress bar(options);
  const auto taken = [&](const rollout::Completion& completion) {
    take(completion);
    bar.Add();
  };
  Run(run, more, taken, [&] { bar.Add(0); });  // time goes on
  bar.Done();
  run.model.Leave();
}

void FollowRows(const EngineRun& run) {
  Run(
      run, [&] { return run.model.relay().Receive(); }, [](const auto&) {}, [] {});
  run.model.Leave();
}

}  // namespace keel::tools
