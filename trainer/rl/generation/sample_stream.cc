#include "trainer/rl/generation/sample_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "trainer/desk/ledger_file.h"
#include "trainer/rl/generation/scored_response.h"

namespace keel::trainer::rl {

Status SampleStream::Restore(const std::string& ledger, std::vector<std::string> changed) {
  changed_ = std::move(changed);
  KEEL_ASSIGN_OR_RETURN(restored_, desk::DecodeLedger(ledger));
  return Status::Ok();
}

std::string SampleStream::LedgerBytes() const {
  if (left_ && before_step_) return desk::EncodeLedger(*before_step_);
  return desk::EncodeLedger(desk_.LedgerOf(desk::Stream::kTrain));
}

Status SampleStream::MakeSchedule(desk::DeskOptions* options, int64_t first) {
  if (options_.deterministic)
    options->schedule = std::make_shared<desk::FixedSchedule>(options_.partial_report_tokens);
  if (!options_.schedule_replay) return Status::Ok();
  KEEL_ASSIGN_OR_RETURN(replayed_, desk::RecordedSchedule::Load(*options_.schedule_replay));
  // Where a step takes as many as it needs, it needs as many as it did.
  if (options->end == kValidationPositions) {
    options->end = replayed_->end();
    options->schedule_reaches = true;
  }
  options->schedule = replayed_;
  return replayed_->Covers(first, options->end, options->samples);
}

Status SampleStream::Open(const RunSamples& samples, PromptAt prompts) {
  desk::StreamOptions options;
  options.protocol.batch = samples.batch;
  options.protocol.end = samples.end;
  options.protocol.max_staleness = options_.max_staleness;
  options.protocol.ready_first = options_.order == StepOrder::kReadyFirst;
  options.protocol.max_response_ms = std::llround(options_.max_response_seconds * 1000);
  options.protocol.samples.clear();
  for (int s = samples.greedy_baseline ? kGreedySample : 0; s < samples.n; ++s)
    options.protocol.samples.push_back(s);
  options.prompt = std::move(prompts);
  options.texts = samples.texts;
  if (const Status status = MakeSchedule(&options.protocol, samples.first); !status.ok())
    return status.WithContext("async_training.schedule_replay");

  desk::Ledger fresh;
  fresh.frontier = samples.first;
  if (restored_) {
    desk::Ledger ledger = std::move(*restored_);
    restored_.reset();
    const size_t known = ledger.samples.size();
    const int64_t trained = ledger.trained();
    if (trained == samples.first) {
      // Whatever becomes of its samples: these positions are trained.
      fresh.frontier = ledger.frontier;
      fresh.taken = ledger.taken;
    } else if (!ledger.taken.empty()) {
      return Status(StatusCode::kDataLoss,
                    fmt::format("rollout/ledger.bin says that {} positions are trained, up to {}, "
                                "and the run that {} are: which ones is not known; resume another "
                                "checkpoint",
                                trained, *ledger.taken.rbegin(), samples.first));
    }
    Status opened;
    if (trained != samples.first) {
      opened =
          Status(StatusCode::kInvalidData,
                 fmt::format("they begin at position {}, the run at {}", trained, samples.first));
    } else if (known > 0 && !changed_.empty()) {
      opened = Status(StatusCode::kInvalidData,
                      fmt::format("changed since they were begun: {}", fmt::join(changed_, ", ")));
    } else {
      opened = desk_.Open(desk::Stream::kTrain, options, std::move(ledger));
    }
    if (opened.code() != StatusCode::kInvalidData) {
      if (opened.ok() && known > 0)
        log_.Info("{} samples of the checkpoint go on, begun or done", known);
      return opened;
    }
    // None of them has been trained. Where no step is left, none is generated, either.
    if (samples.end > samples.first)
      log_.Warning(
          "{} samples that the checkpoint holds, begun or done, are not of this run's settings and "
          "are generated again: {}",
          known, opened.message());
  }
  return desk_.Open(desk::Stream::kTrain, options, std::move(fresh));
}

Result<std::vector<Response>> SampleStream::Take(int64_t step, bool more, bool may_be_left) {
  if (!more) {
    left_ = false;
    before_step_.reset();
    if (may_be_left) before_step_ = desk_.LedgerOf(desk::Stream::kTrain);
  }
  desk::Desk::Batch batch = desk_.Take(desk::Stream::kTrain);
  if (!more) {
    ages_ = {};
    taken_.clear();
  }
  NoteAges(batch);
  std::vector<Response> responses;
  for (desk::Finished& one : batch.finished) {
    if (replayed_ != nullptr) KEEL_RETURN_IF_ERROR(replayed_->Check(one));
    if (options_.schedule_record) taken_.push_back(desk::RecordOf(one));
    responses.push_back(std::move(one.response));
  }
  taken_by_ = step;
  return responses;
}

void SampleStream::NoteAges(const desk::Desk::Batch& batch) {
  for (const desk::Finished& one : batch.finished) {
    const auto tokens = static_cast<int64_t>(one.response.tokens.size());
    for (size_t i = 0; i < one.spans.size(); ++i) {
      const int64_t end = i + 1 < one.spans.size() ? one.spans[i + 1].begin : tokens;
      const int64_t age = batch.steps - batch.versions.at(one.spans[i].version);
      ages_.tokens += static_cast<double>(end - one.spans[i].begin);
      ages_.sum += static_cast<double>((end - one.spans[i].begin) * age);
      ages_.most = std::max(ages_.most, age);
    }
    ++ages_.responses;
    ages_.partial += one.spans.size() > 1 ? 1 : 0;
    ages_.most_spans = std::max<int64_t>(ages_.most_spans, std::ssize(one.spans));
  }
}

void SampleStream::StepDone() {
  const std::optional<int64_t> step = std::exchange(taken_by_, std::nullopt);
  if (!step || !options_.schedule_record) return;
  ++files_;
  const Status written = desk::RecordStep(*options_.schedule_record, *step, taken_);
  if (written.ok()) return;
  ++lost_;
  log_.Warning(
      "async_training.schedule_record: the schedule of step {} is lost, {} of {} files so far, and "
      "the run cannot be replayed: {}",
      *step, lost_, files_, written.message());
}

void SampleStream::AddMetrics(StepLine* metrics) {
  const desk::Desk::Counts counts = desk_.counts(desk::Stream::kTrain);
  metrics->Set("fully_async/count/workers", counts.workers);
  metrics->Set("fully_async/count/workers_lost", counts.lost);
  metrics->Set("fully_async/count/reassigned_tokens", counts.reassigned_tokens);
  metrics->Set("fully_async/count/dropped_samples", 0);
  metrics->Set("rollout/recomputed_tokens", counts.recomputed_tokens);
  metrics->Set("fully_async/count/put_off", counts.samples.put_off);
  metrics->Set("fully_async/count/overdue", counts.samples.overdue);
  metrics->Set("fully_async/count/queue", counts.samples.finished);
  metrics->Set("fully_async/count/running", counts.samples.running);
  // Steps may be shorter than the time between two words of a worker.
  if (counts.up_s > up_s_) idle_ratio_ = (counts.idle_s - idle_s_) / (counts.up_s - up_s_);
  up_s_ = counts.up_s;
  idle_s_ = counts.idle_s;
  metrics->Set("fully_async/rollouter/idle_ratio", idle_ratio_);
  const double responses = std::max<double>(1, static_cast<double>(ages_.responses));
  metrics->Set("fully_async/partial/partial_ratio", static_cast<double>(ages_.partial) / responses);
  metrics->Set("fully_async/partial/max_partial_span", ages_.most_spans);
  metrics->Set("off_policy/mean", ages_.sum / std::max(1.0, ages_.tokens));
  metrics->Set("off_policy/max", ages_.most);
}

}  // namespace keel::trainer::rl
