#include "trainer/rl/response_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "common/guarded.h"
#include "rewards/reward_shaping.h"
#include "trainer/rl/generation/scored_response.h"
#include "trainer/rl/replay.h"
#include "trainer/sync/group_bytes.h"
#include "trainer/sync/rollout_settings.h"

namespace keel::trainer::rl {

namespace {

// How many prompts the step of a dump took. Its positions do not tell: they may be out of turn.
int64_t ConsumedBy(const RolloutBatch& dump, int64_t batch) {
  for (const Response& r : dump.responses) batch = std::max(batch, r.consumed);
  return batch;
}

}  // namespace

std::optional<RolloutBatch> ResponseSource::Next(int64_t step, int64_t position, int64_t* consumed,
                                                 StepLine* metrics) {
  RolloutBatch batch;
  if (c_.trainer.rollout_replay_dir) {
    const RolloutCorrectionSection& correction = c_.algorithm.rollout_correction;
    batch = ReplayDump(context_.world(), device_,
                       fmt::format("{}/{}.jsonl", *c_.trainer.rollout_replay_dir, step),
                       {prompts_.vocab_size(), c_.data.train_batch_size,
                        c_.actor_rollout_ref.rollout.n, correction.wants() != nullptr});
    *consumed = ConsumedBy(batch, c_.data.train_batch_size);
    if (context_.rank() != 0) batch = RolloutBatch::Make({});
    metrics->Set("reward/errors", CountFailed(batch.responses));
    metrics->Set("reward/samples", batch.responses.size());
    metrics->Set("timing_s/gen", 0.0);
    metrics->Set("timing_s/reward", 0.0);
  } else {
    std::optional<RolloutBatch> made = Generate(step, position, consumed, metrics);
    if (!made) return std::nullopt;
    batch = std::move(*made);
    if (dumps_ != nullptr) dumps_->Write(step, batch);
  }
  MaskOut(&batch);
  return batch;
}

// One batch of prompts, or with algorithm.filter_groups as many as it takes.
std::optional<RolloutBatch> ResponseSource::Generate(int64_t step, int64_t position,
                                                     int64_t* consumed, StepLine* metrics) {
  const int64_t wanted = c_.data.train_batch_size;
  const double param_load = generation_.Prepare();
  RolloutTimes times;
  std::vector<Response> kept;
  int64_t batches = 0;
  int64_t failed = 0;
  size_t samples = 0;
  *consumed = 0;
  const auto leave = [&]() -> std::nullopt_t {
    generation_.Leave();
    generation_.ReleaseWeights();
    return std::nullopt;
  };
  handed_out_ = generation_.Await(&times);
  if (!handed_out_) return leave();
  while (true) {
    const int64_t first = position + *consumed;
    *consumed += wanted;
    ++batches;
    std::optional<std::vector<Response>> made =
        generation_.Run({first, wanted, [this](int64_t at) { return prompts_.Get(order_.At(at)); },
                         c_.actor_rollout_ref.rollout.n, step, TrainSampling(c_), false,
                         TraitsOf(c_.algorithm.adv_estimator).greedy_baseline,
                         c_.trainer.rollout_data_dir.has_value(), batches > 1},
                        &times);
    if (!made) return leave();
    std::vector<Response> fresh = std::move(*made);
    failed += CountFailed(fresh);
    samples += fresh.size();
    bool enough = true;
    Status chosen = Status::Ok();
    if (context_.rank() == 0) {
      chosen = Guarded([&] {
        enough = Choose(step, batches, std::move(fresh), &kept);
        return Status::Ok();
      });
    }
    ThrowIfError(ShareStatus(context_.world(), chosen, device_));
    if (ShareValue(context_.world(), enough, device_)) break;
    // It may go on for ever, and no update tells what other ranks were asked.
    job_.CountVotes();
    if (job_.vote().stop()) return leave();
  }
  const double param_offload = generation_.Leave();
  generation_.ReleaseWeights();
  if (*consumed > wanted)
    for (Response& r : kept) r.consumed = *consumed;
  metrics->Set("reward/errors", failed);
  metrics->Set("reward/samples", samples);
  metrics->Set("timing_s/gen", times.generate_s);
  metrics->Set("timing_s/reward", times.reward_s);
  if (c_.actor_rollout_ref.rollout.multi_turn.enable && times.tools_wait_s)
    metrics->Set("timing_s/tools_wait", *times.tools_wait_s);
  metrics->Set("timing_s/rollout_param_load", param_load);
  metrics->Set("timing_s/rollout_param_offload", param_offload);
  metrics->Set("rollout/gen_batches", batches);
  metrics->Set("perf/rollout_preemptions", times.engine.preemptions);
  generation_.AddMetrics(metrics);
  return RolloutBatch::Make(std::move(kept));
}

bool ResponseSource::Choose(int64_t step, int64_t batches, std::vector<Response> fresh,
                            std::vector<Response>* kept) {
  // Before the filter, which would put other prompts in the place of those that have no scores.
  errors_.Judge(fresh, batches == 1 ? fmt::format("step {}", step)
                                    : fmt::format("step {}'s batch {}", step, batches));
  Shape(&fresh);
  if (c_.algorithm.filter_groups.enable) return Filter(step, std::move(fresh), batches, kept);
  *kept = std::move(fresh);
  return true;
}

// DAPO's soft punishment of long responses, of a baseline's, too.
void ResponseSource::Shape(std::vector<Response>* responses) const {
  const rewards::OverlongBufferSection& overlong = c_.reward.overlong_buffer;
  if (!overlong.enable) return;
  const auto penalty = [&](int64_t tokens) {
    return rewards::OverlongPenalty(tokens, c_.data.max_response_length, overlong.len,
                                    overlong.penalty_factor);
  };
  for (Response& r : *responses) {
    r.verified = r.score;
    r.score += penalty(static_cast<int64_t>(r.tokens.size()));
    r.baseline += penalty(r.baseline_tokens);
  }
}

// Takes the informative groups of `fresh` into `kept`; true when they are enough.
bool ResponseSource::Filter(int64_t step, std::vector<Response> fresh, int64_t batches,
                            std::vector<Response>* kept) const {
  const int64_t wanted = c_.data.train_batch_size;
  const RolloutBatch batch = RolloutBatch::Make(std::move(fresh));
  std::vector<double> metric;
  std::vector<uint8_t> counted;
  const std::string& name = c_.algorithm.filter_groups.metric;
  for (const Response& r : batch.responses) {
    metric.push_back(NamedValue(r, name, "algorithm.filter_groups.metric"));
    // A score that is missing decides nothing, unless it is trained on as 0.
    counted.push_back(!r.failed() || !rewards::Excludes(errors_.policy()));
  }
  const std::vector<uint8_t> keep = rewards::KeepInformativeGroups(batch.groups(), metric, counted);
  std::set<int64_t> positions;
  for (const Response& r : *kept) positions.insert(r.position);
  for (size_t i = 0; i < keep.size(); ++i) {
    const Response& r = batch.responses[i];
    if (keep[i] == 0) continue;
    if (!positions.contains(r.position) && static_cast<int64_t>(positions.size()) == wanted)
      continue;
    positions.insert(r.position);
    kept->push_back(r);
  }
  switch (rewards::DecideSampling(static_cast<int64_t>(positions.size()), wanted, batches,
                                  c_.algorithm.filter_groups.max_num_gen_batches)) {
    case rewards::SamplingDecision::kEnough:
      return true;
    case rewards::SamplingDecision::kGenerate:
      WarnOfBatches(step, batches, static_cast<int64_t>(positions.size()));
      return false;
    case rewards::SamplingDecision::kGiveUp:
      break;
  }
  throw Error(
      StatusCode::kInvalidData,
      fmt::format("algorithm.filter_groups: {} of {} groups have rewards that differ after {} "
                  "batches of prompts: the task is too easy or too hard; raise "
                  "max_num_gen_batches, or switch the filter off",
                  positions.size(), wanted, batches));
}

void ResponseSource::WarnOfBatches(int64_t step, int64_t batches, int64_t groups) const {
  constexpr int64_t kFirst = 8;
  if (batches < kFirst || !std::has_single_bit(static_cast<uint64_t>(batches))) return;
  job_.log().Warning(
      "algorithm.filter_groups: step {} has {} of {} groups whose rewards differ after {} batches "
      "of prompts, and goes on: the task may be too easy or too hard "
      "(algorithm.filter_groups.max_num_gen_batches limits the batches)",
      step, groups, c_.data.train_batch_size, batches);
}

// Tokens that are not to be learnt from.
void ResponseSource::MaskOut(RolloutBatch* batch) const {
  for (size_t s = 0; s < batch->responses.size(); ++s) {
    const Response& r = batch->responses[s];
    const bool excluded = r.failed() && rewards::Excludes(errors_.policy());
    const bool filtered = c_.algorithm.overlong_filtering && r.finish == "length";
    if (excluded || filtered) batch->LeaveOut(s, !excluded);
  }
}

}  // namespace keel::trainer::rl
