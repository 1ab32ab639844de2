#include "trainer/rl/colocated_generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/clock.h"
#include "common/fail_point.h"
#include "rewards/verifier_factory.h"
#include "trainer/data/response_wire.h"
#include "trainer/rl/scored_response.h"
#include "trainer/sync/group_bytes.h"

namespace keel::trainer::rl {

ColocatedGeneration::ColocatedGeneration(std::unique_ptr<RolloutModel> model,
                                         parallel::ParallelContext& context,
                                         const rewards::RewardSection& reward,
                                         const model::Tokenizer* tokenizer, at::Device device)
    : model_(std::move(model)),
      context_(context),
      reward_(reward),
      tokenizer_(tokenizer),
      device_(device) {
  const rewards::RewardPool::Factory factory = ValueOrThrow(rewards::MakeVerifierFactory(reward));
  if (model_->leads()) {
    pool_ = std::make_unique<rewards::RewardPool>(static_cast<int>(reward.num_workers),
                                                  static_cast<size_t>(reward.batch_size), factory);
  }
}

ColocatedGeneration::~ColocatedGeneration() = default;

std::string ColocatedGeneration::Description() const {
  return fmt::format("{} rollout replicas of {} ranks{}", model_->replicas(),
                     model_->group().size(),
                     model_->aliased() ? ", which use the trainer's own memory" : "");
}

void ColocatedGeneration::StartVerifiers() {
  const Status started = pool_ == nullptr ? Status::Ok() : pool_->Start();
  const std::vector<std::string> problems =
      AllGatherBytes(context_.world(), started.ok() ? "" : started.message(), device_);
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (!problems[rank].empty()) {
      throw Error(StatusCode::kConfig,
                  fmt::format("the verifier of rank {}: {}", rank, problems[rank]));
    }
  }
}

std::vector<Response> ColocatedGeneration::Exchange(std::vector<Response> mine,
                                                    std::span<const RolloutPrompt> prompts,
                                                    bool texts) {
  const bool speaks = model_->leads();  // one rank of each replica
  parallel::ProcessGroup& world = context_.world();
  std::vector<std::string> parts =
      ShareBytes(world, speaks ? EncodeResponses(mine) : std::string(), device_);
  std::vector<std::string> written(parts.size());
  if (texts) written = CollectBytes(world, 0, speaks ? EncodeTexts(mine) : "", device_);
  mine.clear();
  std::map<int64_t, const Prompt*> prompt_at;
  for (const RolloutPrompt& prompt : prompts) prompt_at[prompt.position] = prompt.prompt;
  std::vector<Response> all;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].empty()) continue;
    std::vector<Response> theirs = ValueOrThrow(DecodeResponses(std::exchange(parts[rank], {})));
    if (!written[rank].empty()) ThrowIfError(DecodeTexts(written[rank], theirs));
    for (Response& r : theirs) {
      const Prompt& prompt = *prompt_at.at(r.position);
      r.row = prompt.id;
      r.data_source = prompt.data_source;
      r.prompt = prompt.tokens;
      all.push_back(std::move(r));
    }
  }
  return all;
}

std::vector<Response> ColocatedGeneration::Run(const RolloutOrder& order, RolloutTimes* times) {
  const auto& [prompts, n, step, sampling, validation, greedy_baseline, texts, more] = order;
  Stopwatch watch;
  // 1. This replica's prompts.
  std::map<uint64_t, const RolloutPrompt*> mine;  // by position
  rollout::Engine& engine = model_->engine();
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (static_cast<int>(i) % model_->replicas() != model_->replica()) continue;
    const RolloutPrompt& prompt = prompts[i];
    const auto id = static_cast<uint64_t>(prompt.position);
    mine[id] = &prompt;
    for (int64_t s = greedy_baseline ? kGreedySample : 0; s < n; ++s) {
      rollout::Request request;
      request.prompt_id = id;
      request.sample = static_cast<int>(s);
      request.prompt = prompt.prompt->tokens;
      request.sampling = SamplingOf(*prompt.prompt, request.sample, sampling);
      engine.Add(std::move(request));
    }
  }

  // 2. Generate; whatever ends is verified at once.
  std::vector<Response> responses;
  int64_t submitted = 0;
  while (!engine.idle()) {
    ThrowIfError(FailPoint("rollout.step"));
    for (rollout::Completion& done : engine.Step()) {
      const RolloutPrompt& prompt = *mine.at(done.prompt_id);
      Response r = ResponseOf(std::move(done), prompt.position, *prompt.prompt, tokenizer_);
      if (pool_ != nullptr && r.error.empty()) {
        rewards::RewardSample sample = SampleToVerify(r, *prompt.prompt, tokenizer_ == nullptr);
        sample.id = static_cast<int64_t>(responses.size());
        pool_->Submit(std::move(sample));
        ++submitted;
      }
      responses.push_back(std::move(r));
    }
  }
  times->generate_s += watch.Lap();
  times->engine = engine.stats();

  // 3. Scores.
  if (pool_ != nullptr) {
    for (rewards::RewardResult& result :
         pool_->Collect(rewards::CollectLimit(reward_, submitted))) {
      Response& r = responses[static_cast<size_t>(result.id)];
      TakeScore(std::move(result), &r);
    }
  }
  times->reward_s += watch.Lap();

  // 4. To everybody, what failed too: all ranks end alike.
  std::vector<Response> gathered = Exchange(std::move(responses), prompts, texts);
  times->generate_s += watch.Lap();
  RequireGenerated(gathered);

  // 5. The greedy response is a number of its prompt, and nothing to learn from.
  if (greedy_baseline) TakeBaselines(&gathered);
  return gathered;
}

}  // namespace keel::trainer::rl
