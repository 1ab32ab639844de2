// SampleRunner: samples on their way through one replica: generated, turn by turn where they call
// tools or have an environment, and scored. What drives a rollout in both placements.
//
// All ranks of the replica have one and make the same calls; Step() is collective over its group.
// Tools and verifiers run on threads of the leader's, beside generation; the others learn from it
// what tools gave. Every rank finds by itself which turns call tools, since that is a function of
// their tokens. Owned by whoever owns the engine; used from one thread.
//
// Who stops a run may stop every process of it: what its tools and verifiers were at then has not
// failed. So a call whose tool has gone, or a sample whose verifier has, is a failed one only when
// no stop was asked for until a moment later; else it is gone on with no more (left()).
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/groups/process_group.h"
#include "rewards/reward_pool.h"
#include "rollout/engine.h"
#include "trainer/config/config_rl.h"
#include "trainer/data/prompt_data.h"
#include "trainer/data/rollout_batch.h"
#include "trainer/desk/samples.h"
#include "trainer/inputs/run_turns.h"
#include "turns/tool_pool.h"
#include "turns/tool_round.h"

namespace keel::trainer::rl {

struct SampleRunnerOptions {
  const rewards::RewardSection* reward = nullptr;
  const model::Tokenizer* tokenizer = nullptr;  // null: rows bring ids
  const RunTurns* turns = nullptr;              // null: responses have one turn
  at::Device device = at::kCPU;                 // of the group's tensors
  // Told on the leader how tools fail: the first time, then when their count passes 10, 100 ...
  std::function<void(const std::string& text)> warn = {};
  // Other than 0 once the process was asked to stop; or null.
  const std::atomic<int64_t>* stop_requested = nullptr;
};

// A response that is whole; its score, or why it has none, stands in it.
struct RunSample {
  desk::SampleId id;
  Response response;
  desk::Partial whole;
};

class SampleRunner {
 public:
  // What the options point to must outlive this. Throws Error(kConfig) when the reward section
  // cannot be used.
  SampleRunner(rollout::Engine& engine, parallel::ProcessGroup& group,
               const SampleRunnerOptions& options);
  ~SampleRunner();

  // Starts verifiers and tools, on the leader: kConfig says which of them cannot be. Not
  // collective.
  Status Start();

  // A new sample, or one that goes on behind `so_far`. Samples may share their prompt.
  void Begin(const desk::SampleId& id, std::shared_ptr<const Prompt> prompt,
             const rollout::SamplingParams& sampling, desk::Partial so_far = {});
  // Nothing is generated, and no tool is waited for. The same on every rank.
  bool idle() const;
  // What tools have said by now is gone on from; it waits a moment for them where there is nothing
  // to generate. Collective.
  void TakeGiven();
  // Whether a tool or a verifier has gone, and the process was asked to stop: the sample that it
  // was asked about will not be whole here. Of tools every rank knows, of verifiers the leader
  // alone. Whoever hands samples on need not ask. Or LeaveIfStopping has.
  bool left() const { return left_; }
  // From here on it has left, on every rank, where the leader's process was asked to stop: for
  // samples that nobody needs then. Collective.
  void LeaveIfStopping();
  // Drops all samples, wherever they are.
  void Leave();
  // One step of the engine. Collective.
  void Generate();
  // Both.
  void Step();
  // A sample that is still running, between two turns or in one: as far as it has come. Taken out,
  // it can be begun again anywhere; calls under way are then made again.
  std::optional<desk::Partial> SoFar(const desk::SampleId& id) const;
  std::optional<desk::Partial> Take(const desk::SampleId& id);
  // Such a sample is whole with the tokens that it has, as one that has reached its max_tokens is;
  // with one more where it has none, or ends with what a tool gave. It is scored like any other.
  void Conclude(const desk::SampleId& id);
  // Whatever it is at, nobody waits for it: it does not come with Poll. The same on every rank.
  void Forget(const desk::SampleId& id);

  // Samples that were scored, or could not be generated, since the last call: those there are by
  // now, or all that have been generated. Ranks that do not lead know of them by their ids alone,
  // as soon as they are generated. `meanwhile`, if given, is called every second of the wait.
  std::vector<RunSample> Poll();
  std::vector<RunSample> Collect(const std::function<void()>& meanwhile = {});
  bool scoring() const { return !scoring_.empty(); }
  void EachScoring(const std::function<void(const RunSample&)>& look) const;

  double tools_wait_s() const { return tools_wait_s_; }  // with nothing to generate, so far

 private:
  struct Running {
    std::shared_ptr<const Prompt> prompt;
    rollout::SamplingParams sampling;
    std::string environment;  // "": none
  };
  // A sample between two turns.
  struct Waiting {
    rollout::Completion done;                 // as far as it has come
    std::unique_ptr<turns::ToolRound> round;  // on the leader
  };
  // What a round gave, as every rank hears of it.
  struct Given {
    desk::SampleId id;
    std::vector<int32_t> tokens;  // none: the response ends without them
    bool over = false;            // it ends as it is, by its environment
    std::string memory;           // on the leader, which alone asks tools and hands samples on
  };

  // Of a tool, or a verifier, that has gone.
  template <typename Answer>
  struct Lost {
    Answer answer;
    std::chrono::steady_clock::time_point at;  // when it came
  };
  // Takes out those that no stop has followed for long enough.
  template <typename Answer>
  static std::vector<Answer> TakeDue(std::vector<Lost<Answer>>* lost);

  bool leads() const { return group_.rank() == 0; }
  bool stopping() const;
  void AskTools();
  void HearTools();
  void TakeReply(turns::ToolReply reply);
  void TakeLost();
  // Of every result that has come: takes it, unless its verifier has gone.
  void HearScores(std::vector<rewards::RewardResult> results);
  void LeaveOpen(size_t open, const char* who, const char* what);
  void Warn(const desk::SampleId& id, const turns::ToolCall& call, const turns::ToolReply& reply);
  // Of rounds that are done. On the leader.
  std::vector<Given> TakeRounds();
  std::vector<Given> Share(std::vector<Given> given);
  void GoOn(Given given);
  void EndTurn(rollout::Completion done);
  void End(rollout::Completion done);
  void TakeResult(rewards::RewardResult result);

  rollout::Engine& engine_;
  parallel::ProcessGroup& group_;
  const SampleRunnerOptions options_;
  std::unique_ptr<rewards::RewardPool> rewards_;  // on the leader
  std::unique_ptr<turns::ToolPool> tools_;        // likewise, with turns
  std::map<desk::SampleId, Running> running_;
  std::map<desk::SampleId, Waiting> waiting_;
  std::map<int64_t, std::pair<desk::SampleId, size_t>> calls_;  // by the pool's number: whose place
  std::vector<Lost<turns::ToolReply>> lost_;                    // on the leader; not taken yet
  std::vector<Lost<rewards::RewardResult>> lost_scores_;
  bool left_ = false;
  std::map<int64_t, RunSample> scoring_;  // by number
  std::vector<RunSample> ended_;
  int64_t scored_ = 0;
  int64_t tools_failed_ = 0;
  double tools_wait_s_ = 0;
};

}  // namespace keel::trainer::rl
