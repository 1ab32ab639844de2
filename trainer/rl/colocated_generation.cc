#include "trainer/rl/colocated_generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/clock.h"
#include "common/fail_point.h"
#include "trainer/data/response_wire.h"
#include "trainer/desk/ledger_file.h"
#include "trainer/rl/scored_response.h"
#include "trainer/sync/group_bytes.h"

namespace keel::trainer::rl {

ColocatedGeneration::ColocatedGeneration(std::unique_ptr<RolloutModel> model,
                                         parallel::ParallelContext& context,
                                         const SampleRunnerOptions& options)
    : model_(std::move(model)),
      context_(context),
      device_(options.device),
      runner_(model_->engine(), model_->group(), options) {}

ColocatedGeneration::~ColocatedGeneration() = default;

std::string ColocatedGeneration::Description() const {
  return fmt::format("{} rollout replicas of {} ranks{}", model_->replicas(),
                     model_->group().size(),
                     model_->aliased() ? ", which use the trainer's own memory" : "");
}

// What it generates is the next positions, one after another.
void ColocatedGeneration::RestoreDocuments(const std::map<std::string, std::string>& documents) {
  const auto found = documents.find(desk::kLedgerPath);
  if (found == documents.end()) return;
  const desk::Ledger ledger = ValueOrThrow(desk::DecodeLedger(found->second));
  if (ledger.taken.empty()) return;
  throw Error(
      StatusCode::kConfig,
      fmt::format("async_training.placement: colocated: the checkpoint is of a run with "
                  "order: ready_first, in which {} positions behind {} are trained and "
                  "others before them are not: go on with placement: split (order: in_order "
                  "trains those first)",
                  ledger.taken.size(), ledger.frontier));
}

void ColocatedGeneration::StartVerifiers() {
  const Status started = runner_.Start();
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
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (static_cast<int>(i) % model_->replicas() != model_->replica()) continue;
    for (int64_t s = greedy_baseline ? kGreedySample : 0; s < n; ++s)
      runner_.Begin({prompts[i].position, static_cast<int>(s)}, *prompts[i].prompt, sampling);
  }

  // 2. Generate; whatever ends is verified at once.
  const double waited = runner_.tools_wait_s();
  while (!runner_.idle()) {
    ThrowIfError(FailPoint("rollout.step"));
    runner_.Step();
  }
  times->generate_s += watch.Lap();
  times->tools_wait_s = times->tools_wait_s.value_or(0) + runner_.tools_wait_s() - waited;
  times->engine = model_->engine().stats();

  // 3. Scores.
  std::vector<Response> responses;
  for (RunSample& sample : runner_.Collect()) responses.push_back(std::move(sample.response));
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
