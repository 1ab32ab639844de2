#include "trainer/rl/generation/colocated_generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "common/clock.h"
#include "common/fail_point.h"
#include "common/guarded.h"
#include "trainer/data/response_wire.h"
#include "trainer/desk/ledger_file.h"
#include "trainer/rl/generation/scored_response.h"
#include "trainer/sync/group_bytes.h"

namespace keel::trainer::rl {

namespace {

// Of the engine in a validation, between two looks whether the run was asked to stop.
constexpr int64_t kStepsBetweenLooks = 16;

}  // namespace

ColocatedGeneration::ColocatedGeneration(std::unique_ptr<RolloutModel> model,
                                         parallel::ParallelContext& context,
                                         const SampleRunnerOptions& options,
                                         std::chrono::milliseconds deadline)
    : model_(std::move(model)),
      context_(context),
      device_(options.device),
      warn_(options.warn),
      runner_(model_->engine(), model_->group(), options),
      progress_(ValueOrThrow(context.store().Clone()), "colocated", context.rank(),
                context.layout().world(), deadline) {}

ColocatedGeneration::~ColocatedGeneration() = default;

std::string ColocatedGeneration::Description() const {
  return fmt::format("{} rollout replicas of {} ranks{}", model_->replicas(),
                     model_->group().size(),
                     model_->aliased() ? ", which use the trainer's own memory" : "");
}

// What it generates is the next positions, one after another.
void ColocatedGeneration::RestoreDocuments(const std::map<std::string, std::string>& documents,
                                           const std::vector<std::string>& /*changed*/) {
  const auto found = documents.find(desk::kLedgerPath);
  if (found == documents.end()) return;
  const desk::Ledger ledger = ValueOrThrow(desk::DecodeLedger(found->second));
  if (!ledger.taken.empty()) {
    throw Error(
        StatusCode::kConfig,
        fmt::format("async_training.placement: colocated: the checkpoint is of a run with "
                    "order: ready_first, in which {} positions behind {} are trained and "
                    "others before them are not: go on with placement: split (order: in_order "
                    "trains those first)",
                    ledger.taken.size(), ledger.frontier));
  }
  if (ledger.samples.empty() || context_.rank() != 0 || !warn_) return;
  warn_(
      fmt::format("{} samples that the checkpoint holds, begun or done, are generated again: "
                  "async_training.placement is colocated, and nobody generates ahead there",
                  ledger.samples.size()));
}

void ColocatedGeneration::StartVerifiers() {
  const Status started = runner_.Start();
  // Killed by somebody, or wrong: a byte before the message.
  constexpr char kKilled = 'k', kWrong = 'w';
  const char kind = started.code() == StatusCode::kUnavailable ? kKilled : kWrong;
  const std::vector<std::string> problems =
      AllGatherBytes(context_.world(), started.ok() ? "" : kind + started.message(), device_);
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty()) continue;
    throw Error(problems[rank][0] == kKilled ? StatusCode::kUnavailable : StatusCode::kConfig,
                fmt::format("the verifier of rank {}: {}", rank, problems[rank].substr(1)));
  }
}

namespace {

// The responses of all replicas from their bytes: one text a rank, empty for those that lead none.
std::vector<Response> Read(std::vector<std::string> parts, const std::vector<std::string>& texts,
                           const RolloutOrder& order) {
  std::vector<Response> all;
  std::optional<int64_t> at;  // whose prompt it is: responses of a prompt are neighbours
  Prompt prompt;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].empty()) continue;
    std::vector<Response> theirs = ValueOrThrow(DecodeResponses(std::exchange(parts[rank], {})));
    if (order.texts) ThrowIfError(DecodeTexts(texts[rank], theirs));
    for (Response& r : theirs) {
      if (r.position < order.first || r.position >= order.first + order.count) {
        throw Error(StatusCode::kInternal,
                    fmt::format("rank {} gives a response to position {}, which was not asked for",
                                rank, r.position));
      }
      if (at != r.position) prompt = order.prompt(r.position);
      at = r.position;
      r.row = prompt.id;
      r.data_source = prompt.data_source;
      r.prompt = prompt.tokens;
      all.push_back(std::move(r));
    }
  }
  RequireGenerated(all);
  // The greedy response is a number of its prompt, and nothing to learn from.
  if (order.greedy_baseline) TakeBaselines(&all);
  return all;
}

}  // namespace

// Whether some replica has left its samples.
bool ColocatedGeneration::AnyLeft() {
  at::Tensor any =
      at::tensor(runner_.left() ? 1.0 : 0.0, at::TensorOptions(at::kDouble).device(device_));
  context_.world().AllReduce(any);
  return any.item<double>() > 0;
}

std::optional<std::vector<Response>> ColocatedGeneration::Run(const RolloutOrder& order,
                                                              RolloutTimes* times) {
  Stopwatch watch;
  // 1. This replica's prompts.
  ScopedSpan generate_span(context_.spans(), "generate");
  for (int64_t i = model_->replica(); i < order.count; i += model_->replicas()) {
    const int64_t position = order.first + i;
    const auto prompt = std::make_shared<const Prompt>(order.prompt(position));
    for (int64_t s = order.greedy_baseline ? kGreedySample : 0; s < order.n; ++s)
      runner_.Begin({position, static_cast<int>(s)}, prompt, order.sampling);
  }

  // 2. Generate; whatever ends is verified at once.
  const double waited = runner_.tools_wait_s();
  for (int64_t steps = 0; !runner_.idle() && !runner_.left(); ++steps) {
    // A validation is not what whoever asked the run to stop waits for.
    if (order.validation && steps % kStepsBetweenLooks == 0) runner_.LeaveIfStopping();
    ThrowIfError(FailPoint("rollout.step"));
    runner_.Step();
    ThrowIfError(progress_.GoesOn());
  }
  times->generate_s += watch.Lap();
  times->tools_wait_s = times->tools_wait_s.value_or(0) + runner_.tools_wait_s() - waited;
  times->engine = model_->engine().stats();

  // 3. Scores.
  generate_span.End();
  ScopedSpan reward_span(context_.spans(), "reward");
  std::vector<Response> responses;
  if (!runner_.left())
    for (RunSample& sample : runner_.Collect([this] { ThrowIfError(progress_.GoesOn()); }))
      responses.push_back(std::move(sample.response));
  // One replica's responses may take much longer than those of another, and so may their scores.
  ThrowIfError(progress_.WaitForAll().WithContext("the responses of all replicas"));
  if (AnyLeft()) {
    runner_.Leave();
    return std::nullopt;
  }
  times->reward_s += watch.Lap();
  reward_span.End();

  // 4. To rank 0, what failed too: all ranks end alike.
  const ScopedSpan gather_span(context_.spans(), "gather responses");
  parallel::ProcessGroup& world = context_.world();
  const bool speaks = model_->leads();  // one rank of each replica
  std::vector<std::string> parts =
      CollectBytes(world, 0, speaks ? EncodeResponses(responses) : std::string(), device_);
  std::vector<std::string> texts;
  if (order.texts) texts = CollectBytes(world, 0, speaks ? EncodeTexts(responses) : "", device_);
  responses.clear();
  Status read = Status::Ok();
  if (world.rank() == 0) {
    read = Guarded([&] {
      responses = Read(std::move(parts), texts, order);
      return Status::Ok();
    });
  }
  ThrowIfError(ShareStatus(world, read, device_));
  times->generate_s += watch.Lap();
  return responses;
}

}  // namespace keel::trainer::rl
