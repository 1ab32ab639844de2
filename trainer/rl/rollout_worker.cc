#include "trainer/rl/rollout_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/clock.h"
#include "common/fail_point.h"
#include "common/hash.h"
#include "common/json.h"
#include "rewards/verifier_factory.h"
#include "trainer/data/response_wire.h"
#include "trainer/sync/group_bytes.h"

namespace keel::trainer::rl {

namespace {

constexpr int kGreedy = -1;  // the sample number of ReMax's baseline

// What the engine could not generate says nothing about a verifier, and no reward.on_error is about
// it. Throws Error(kDataLoss): with what the start checks, only weights without finite logits are
// left.
void RequireGenerated(std::span<const Response> responses) {
  for (const Response& r : responses) {
    if (r.finish != rollout::FinishReasonName(rollout::FinishReason::kError)) continue;
    throw Error(StatusCode::kDataLoss,
                fmt::format("no response to row {} could be generated with weight version {}: {}; "
                            "start again from a checkpoint before that update",
                            r.row, r.weight_version, r.error));
  }
}

}  // namespace

RolloutWorker::RolloutWorker(RolloutModel& model, parallel::ParallelContext& context,
                             const rewards::RewardSection& reward,
                             const model::Tokenizer* tokenizer, at::Device device)
    : model_(model), context_(context), reward_(reward), tokenizer_(tokenizer), device_(device) {
  const rewards::RewardPool::Factory factory = ValueOrThrow(rewards::MakeVerifierFactory(reward));
  if (model.leads()) {
    pool_ = std::make_unique<rewards::RewardPool>(static_cast<int>(reward.num_workers),
                                                  static_cast<size_t>(reward.batch_size), factory);
  }
}

RolloutWorker::~RolloutWorker() = default;

void RolloutWorker::StartVerifiers() {
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

RolloutBatch RolloutWorker::Replay(const std::string& path, const DumpShape& shape) {
  Result<RolloutBatch> batch = ReadDump(path, shape);
  Json mine = {{"path", path}};
  if (batch.ok()) {
    Hasher128 hasher;
    for (const Response& response : batch->responses) {
      const std::vector<uint8_t> bytes = Json::to_cbor(response.ToJson());
      hasher.Update(std::as_bytes(std::span(bytes)));
    }
    mine["digest"] = hasher.Finish().ToHex();
  } else {
    mine["problem"] = batch.status().message();
    mine["code"] = static_cast<int>(batch.status().code());
  }
  const std::string text = mine.dump(-1, ' ', false, Json::error_handler_t::replace);
  Json first;
  int rank = 0;
  for (const std::string& one : AllGatherBytes(context_.world(), text, device_)) {
    const Json theirs = ValueOrThrow(ParseJson(one, "a peer's trainer.rollout_replay_dir"));
    if (theirs.contains("problem")) {
      throw Error(static_cast<StatusCode>(theirs["code"].get<int>()),
                  fmt::format("trainer.rollout_replay_dir, on rank {}: {}", rank,
                              theirs["problem"].get<std::string>()));
    }
    if (rank == 0) first = theirs;
    if (theirs["digest"] != first["digest"]) {
      throw Error(
          StatusCode::kInvalidData,
          fmt::format("trainer.rollout_replay_dir: {} of rank {} holds other responses than "
                      "{} of rank 0: give every node the same files",
                      theirs["path"].get<std::string>(), rank, first["path"].get<std::string>()));
    }
    ++rank;
  }
  return std::move(*batch);
}

std::vector<Response> RolloutWorker::Exchange(std::vector<Response> mine,
                                              std::span<const RolloutPrompt> prompts, bool texts) {
  const bool speaks = model_.leads();  // one rank of each replica
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

std::vector<Response> RolloutWorker::Run(const RolloutOrder& order, RolloutTimes* times) {
  const auto& [prompts, n, sampling, greedy_baseline, texts] = order;
  Stopwatch watch;
  // 1. This replica's prompts.
  std::map<uint64_t, const RolloutPrompt*> mine;  // by position
  rollout::Engine& engine = model_.engine();
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (static_cast<int>(i) % model_.replicas() != model_.replica()) continue;
    const RolloutPrompt& prompt = prompts[i];
    const auto id = static_cast<uint64_t>(prompt.position);
    mine[id] = &prompt;
    for (int64_t s = greedy_baseline ? kGreedy : 0; s < n; ++s) {
      rollout::Request request;
      request.prompt_id = id;
      request.sample = static_cast<int>(s);
      request.prompt = prompt.prompt->tokens;
      request.sampling = sampling;
      if (s == kGreedy) request.sampling.temperature = 0;
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
      Response r;
      r.position = prompt.position;
      r.row = prompt.prompt->id;
      r.sample = done.sample;
      r.data_source = prompt.prompt->data_source;
      r.prompt = prompt.prompt->tokens;
      r.tokens = std::move(done.tokens);
      r.log_probs = std::move(done.log_probs);
      r.finish = rollout::FinishReasonName(done.finish);
      r.weight_version = done.weight_version;
      if (!done.error.ok()) r.error = done.error.ToString();
      if (tokenizer_ != nullptr) r.text = tokenizer_->Decode(r.tokens);
      if (pool_ != nullptr && r.error.empty()) {
        rewards::RewardSample sample;
        sample.id = static_cast<int64_t>(responses.size());
        sample.data_source = r.data_source;
        sample.prompt = prompt.prompt->text;
        sample.response = r.text;
        if (tokenizer_ == nullptr) {
          sample.prompt_ids = r.prompt;
          sample.response_ids = r.tokens;
        }
        sample.ground_truth = prompt.prompt->ground_truth;
        sample.extra_info = prompt.prompt->extra_info;
        pool_->Submit(std::move(sample));
        ++submitted;
      }
      responses.push_back(std::move(r));
    }
  }
  times->generate_s += watch.Lap();
  times->engine = engine.stats();

  // 3. Scores. A verifier that failed has said nothing: reward.on_error says what becomes of it.
  if (pool_ != nullptr) {
    for (rewards::RewardResult& result :
         pool_->Collect(rewards::CollectLimit(reward_, submitted))) {
      Response& r = responses[static_cast<size_t>(result.id)];
      r.score = result.ok() ? result.score : 0.0;
      r.extra = std::move(result.extra);
      r.answer = std::move(result.answer);
      r.error = std::move(result.error);
    }
  }
  times->reward_s += watch.Lap();

  // 4. To everybody, what failed too: all ranks end alike.
  std::vector<Response> gathered = Exchange(std::move(responses), prompts, texts);
  times->generate_s += watch.Lap();
  RequireGenerated(gathered);

  // 5. The greedy response is a number of its prompt, and nothing to learn from.
  if (greedy_baseline) {
    std::map<int64_t, Response> baselines;
    for (const Response& r : gathered)
      if (r.sample == kGreedy) baselines[r.position] = r;
    std::erase_if(gathered, [](const Response& r) { return r.sample == kGreedy; });
    for (Response& r : gathered) {
      const Response& greedy = baselines.at(r.position);
      r.baseline = greedy.score;
      if (!greedy.error.empty()) r.baseline_error = "the greedy response: " + greedy.error;
    }
  }
  return gathered;
}

}  // namespace keel::trainer::rl
