#include "trainer/rl/generation/split_generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/json.h"
#include "parallel/groups/context.h"
#include "parallel/store/store_server.h"
#include "trainer/desk/desk_file.h"
#include "trainer/desk/job_address.h"
#include "trainer/desk/ledger_file.h"
#include "trainer/rl/generation/scored_response.h"
#include "trainer/run/shared_facts.h"
#include "trainer/sync/group_bytes.h"

namespace keel::trainer::rl {

namespace {

// How long rank 0 waits at a time before it tells the others that it is still there.
constexpr std::chrono::milliseconds kWord{500};

double Seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

std::string RandomSecret() {
  std::random_device device;
  std::string secret;
  for (int i = 0; i < 8; ++i) secret += fmt::format("{:08x}", device());
  return secret;
}

}  // namespace

SplitGeneration::SplitGeneration(Job& job, const TrainerInputs& inputs, TrainEngine& actor,
                                 const WeightSyncOptions& sync, SplitInputs split)
    : job_(job),
      inputs_(inputs),
      desks_prompts_(split.make_prompts()),
      prompts_(split.make_prompts()),
      tokenizer_(split.tokenizer) {
  Status started = Status::Ok();
  if (job.rank0()) {
    const parallel::LaunchEnv& env = inputs.env;
    const std::string here = parallel::LocalAddressTowards(env.master_addr);
    desk::DeskSettings settings;
    settings.host = parallel::WhereToListen(here, false);
    // Those who join from outside have the job's secret, or read this one in the run's folder.
    settings.secret = env.job_secret.empty() ? RandomSecret() : env.job_secret;
    settings.port = static_cast<int>(inputs.loaded.config.async_training.port);
    settings.first_rank = inputs.job_ranks;
    settings.job = desk::JobAddressOf(env);
    settings.worker_timeout = std::chrono::milliseconds(
        static_cast<int64_t>(inputs.loaded.config.async_training.worker_timeout_seconds * 1000));
    settings.min_workers = inputs.loaded.config.async_training.min_workers;
    settings.facts = std::move(split.facts);
    settings.rounding = RoundingFacts(job.device(), job.dtype());
    Result<std::unique_ptr<desk::Desk>> made = desk::Desk::Start(settings, job.log());
    started = made.status();
    if (made.ok()) {
      desk_ = std::move(*made);
      samples_ =
          std::make_unique<SampleStream>(*desk_, inputs.loaded.config.async_training, job.log());
      address_ = {here, desk_->port(), settings.secret};
      started = job.context().store().Set(kDeskKey, address_.ToText());
    }
  }
  Agree(started.ok() ? started : started.WithContext("the desk of the rollout workers"));
  publisher_ = std::make_unique<WeightPublisher>(job, actor, sync, desk_.get());
}

SplitGeneration::~SplitGeneration() {
  // Where another run has the folder, the file is that run's.
  if (said_where_) desk::RemoveDeskFile(job_.config().trainer.default_local_dir);
}

std::string SplitGeneration::Description() const { return "rollout workers of their own"; }

std::string SplitGeneration::Hear(const std::string& text) {
  return ShareBytes(job_.context().world(), job_.rank0() ? text : "", job_.device()).front();
}

void SplitGeneration::Agree(const Status& status) {
  ThrowIfError(ShareStatus(job_.context().world(), status, job_.device()));
}

// Where the next step waits for its samples until workers have these weights, so does the push.
WeightUpdate SplitGeneration::Update() {
  if (desk_ != nullptr) samples_->StepDone();
  const int64_t number = version().number + 1;
  return inputs_.loaded.config.async_training.max_staleness == 0 ? publisher_->Publish(number, 0)
                                                                 : publisher_->Start(number);
}

WeightUpdate SplitGeneration::Restore(const WeightVersion& expected) {
  return publisher_->Publish(expected.number, expected.digest);
}

// All ranks wait with rank 0, which says every while that it does.
bool SplitGeneration::WaitFor(desk::Stream stream, desk::Desk::For what, bool can_be_left) {
  using Event = desk::Desk::Event;
  const Status nobody(
      StatusCode::kUnavailable,
      fmt::format("there has been no rollout worker for {} s: look at what the ranks behind {} of "
                  "this job say, or start workers",
                  job_.deadline().count() / 1000, job_.env().world_size - 1));
  const Stopwatch watch;
  bool said = false;
  gave_up_ = Status::Ok();
  while (true) {
    std::string word;
    Status waited = Status::Ok();
    if (desk_ != nullptr) {
      waited = Guarded([&]() -> Status {
        switch (desk_->Wait(stream, what, kWord)) {
          case Event::kReady:
            word = "ready";
            break;
          case Event::kNewcomer:
            word = "newcomer";
            break;
          case Event::kNothing:
            if (what == desk::Desk::For::kBatch && desk_->counts(stream).samples.used_up) {
              return Status(StatusCode::kConfig,
                            "async_training.schedule_replay: the recorded schedule is used up: it "
                            "is of fewer steps than this run has, or of other groups");
            }
            word = can_be_left && desk_->Linked().empty() ? "alone" : "wait";
            if (what == desk::Desk::For::kWorkers && watch.Elapsed() > Seconds(job_.deadline())) {
              return Status(
                  StatusCode::kUnavailable,
                  fmt::format("{} of async_training.min_workers {} rollout workers were there "
                              "within {} s: look at what the ranks behind {} of this job say",
                              desk_->Linked().size(),
                              inputs_.loaded.config.async_training.min_workers,
                              job_.deadline().count() / 1000, job_.env().world_size - 1));
            }
            // Whoever was lost while nobody waited has all of it to come back, too.
            if (std::min(Seconds(desk_->alone()), watch.Elapsed()) > Seconds(job_.deadline())) {
              if (!can_be_left) return nobody;
              word = "nobody";
            }
            if (word == "alone" && !said && what != desk::Desk::For::kWorkers) {
              job_.log().Warning(
                  "no rollout worker is left; this waits {} s for one: those that ended with an "
                  "error are started again by keel launch, those that were asked to stop are not",
                  job_.deadline().count() / 1000);
              said = true;
            }
            break;
        }
        return Status::Ok();
      });
      if (!waited.ok()) word = "error";
    }
    word = Hear(word);
    if (word == "ready") return true;
    if (word == "alone") {
      // Workers that were asked to stop, as all ranks of the job may have been, are gone for good.
      job_.CountVotes();
      if (job_.vote().stop()) return false;
    }
    if (word == "nobody") {
      gave_up_ = nobody;
      return false;
    }
    if (word == "newcomer") publisher_->MakeLinks();
    if (word == "error") Agree(waited);
  }
}

void SplitGeneration::SayWhere() {
  if (desk_ == nullptr) return;
  job_.log().Info("rollout workers can join at {}:{}", address_.host, address_.port);
  const Status said = desk::WriteDeskFile(job_.config().trainer.default_local_dir, address_);
  said_where_ = said.ok();
  if (!said.ok()) {
    job_.log().Warning("keel status and workers that join will not find this run's desk: {}",
                       said.message());
  }
}

// The workers that it waits for may be such that join.
bool SplitGeneration::Begin(const RunSamples& samples) {
  SayWhere();
  begun_ = WaitFor(desk::Stream::kTrain, desk::Desk::For::kWorkers, true);
  if (!begun_) return false;
  Status opened = Status::Ok();
  if (desk_ != nullptr) opened = Guarded([&] { return samples_->Open(samples, desks_prompts_); });
  Agree(opened);
  return true;
}

bool SplitGeneration::BeforeUpdate() {
  // Whether a schedule wants the newest weights is known once they are published.
  const AsyncSection& async = inputs_.loaded.config.async_training;
  if (async.deterministic || async.schedule_replay) publisher_->Settle();
  return WaitFor(desk::Stream::kTrain, desk::Desk::For::kWeights, true);
}

void SplitGeneration::OpenValidation(const RolloutOrder& order) {
  publisher_->Settle();  // the weights of this very step
  Status opened = Status::Ok();
  if (desk_ != nullptr) {
    desk::StreamOptions options;
    options.protocol.batch = order.count;
    options.protocol.end = order.first + order.count;
    options.protocol.max_response_ms =
        std::llround(inputs_.loaded.config.async_training.max_response_seconds * 1000);
    options.protocol.samples.clear();
    for (int s = 0; s < order.n; ++s) options.protocol.samples.push_back(s);
    options.prompt = order.prompt;
    options.texts = order.texts;
    desk::Ledger ledger;
    ledger.frontier = order.first;
    opened = desk_->Open(desk::Stream::kValidation, std::move(options), std::move(ledger));
  }
  Agree(opened);
}

bool SplitGeneration::Await(RolloutTimes* times) {
  if (!begun_) return false;
  const Stopwatch watch;
  const bool ready = WaitFor(desk::Stream::kTrain, desk::Desk::For::kBatch, true);
  waited_s_ = watch.Elapsed();
  times->generate_s += waited_s_;
  return ready;
}

std::optional<std::vector<Response>> SplitGeneration::Run(const RolloutOrder& order,
                                                          RolloutTimes* times) {
  const Stopwatch watch;
  const desk::Stream stream = order.validation ? desk::Stream::kValidation : desk::Stream::kTrain;
  if (order.validation) OpenValidation(order);
  if (order.more && desk_ != nullptr) desk_->More(stream);
  const Stopwatch waiting;
  if (!WaitFor(stream, desk::Desk::For::kBatch, order.validation || order.more)) {
    if (desk_ != nullptr && order.validation) desk_->Close(stream);
    return std::nullopt;
  }
  if (!order.validation) waited_s_ += waiting.Elapsed();

  std::vector<Response> responses;
  Status taken = Status::Ok();
  if (desk_ != nullptr) {
    taken = Guarded([&]() -> Status {
      KEEL_ASSIGN_OR_RETURN(responses, Take(order));
      RequireGenerated(responses);
      if (order.greedy_baseline) TakeBaselines(&responses);
      return Status::Ok();
    });
  }
  Agree(taken);
  times->generate_s += watch.Elapsed();
  return responses;
}

bool SplitGeneration::MayLeaveStep() const {
  const Config& c = inputs_.loaded.config;
  return c.algorithm.filter_groups.enable || c.async_training.deterministic ||
         c.async_training.schedule_replay.has_value();
}

Result<std::vector<Response>> SplitGeneration::Take(const RolloutOrder& order) {
  std::vector<Response> responses;
  if (order.validation) {
    for (desk::Finished& one : desk_->Take(desk::Stream::kValidation).finished)
      responses.push_back(std::move(one.response));
    desk_->Close(desk::Stream::kValidation);
  } else {
    KEEL_ASSIGN_OR_RETURN(responses, samples_->Take(order.step, order.more, MayLeaveStep()));
  }
  for (Response& r : responses) {
    // Which positions a step trains is for the desk to say: some may have been trained out of turn.
    if (order.validation ? r.position < order.first || r.position >= order.first + order.count
                         : r.position < 0 || r.position >= kValidationPositions) {
      return Status(StatusCode::kInternal,
                    fmt::format("the desk hands out position {}, which is none of {}", r.position,
                                order.validation ? "the validation's" : "the run's"));
    }
    Prompt prompt = order.validation ? order.prompt(r.position) : prompts_(r.position);
    r.row = prompt.id;
    r.data_source = std::move(prompt.data_source);
    r.prompt = std::move(prompt.tokens);
    if (order.texts) {
      // Begun by a start that asked for no texts: nothing but its answer, which the verifier knew,
      // is lost.
      if (r.text.empty() && tokenizer_ != nullptr) r.text = tokenizer_->Decode(r.tokens);
      continue;
    }
    r.text.clear();
    r.answer.clear();
  }
  return responses;
}

void SplitGeneration::AddDocuments(std::vector<checkpoint::Document>* documents) const {
  if (desk_ != nullptr && samples_->open())
    documents->push_back({desk::kLedgerPath, samples_->LedgerBytes(), true});
}

void SplitGeneration::RestoreDocuments(const std::map<std::string, std::string>& documents,
                                       const std::vector<std::string>& changed) {
  const auto found = documents.find(desk::kLedgerPath);
  if (found != documents.end() && desk_ != nullptr)
    ThrowIfError(samples_->Restore(found->second, changed));
}

void SplitGeneration::AddMetrics(StepLine* metrics) const {
  if (desk_ == nullptr) return;
  samples_->AddMetrics(metrics);
  metrics->Set("timing_s/wait_for_samples", waited_s_);
}

}  // namespace keel::trainer::rl
