#include "trainer/rl/split_generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/json.h"
#include "parallel/context.h"
#include "parallel/store_server.h"
#include "trainer/data/response_wire.h"
#include "trainer/desk/desk_client.h"
#include "trainer/desk/ledger_file.h"
#include "trainer/engine/weights_digest.h"
#include "trainer/rl/scored_response.h"
#include "trainer/sync/group_bytes.h"

namespace keel::trainer::rl {

namespace {

// How long rank 0 waits at a time before it tells the others that it is still there.
constexpr std::chrono::milliseconds kWord{500};
// In a checkpoint.
constexpr const char* kLedgerPath = "rollout/ledger.bin";

std::string RandomSecret() {
  std::random_device device;
  std::string secret;
  for (int i = 0; i < 8; ++i) secret += fmt::format("{:08x}", device());
  return secret;
}

}  // namespace

SplitGeneration::SplitGeneration(Job& job, TrainEngine& actor, const WeightSyncOptions& sync,
                                 std::map<std::string, std::string> facts, PromptAt prompts)
    : job_(job), actor_(actor), sync_options_(sync), prompts_(std::move(prompts)) {
  Status started = Status::Ok();
  if (job.rank0()) {
    const parallel::LaunchEnv& env = job.inputs().env;
    const std::string here = parallel::LocalAddressTowards(env.master_addr);
    desk::DeskSettings settings;
    settings.host = parallel::WhereToListen(here, false);
    settings.secret = RandomSecret();
    settings.worker_timeout = std::chrono::milliseconds(
        static_cast<int64_t>(job.config().async_training.worker_timeout_seconds * 1000));
    settings.facts = std::move(facts);
    Result<std::unique_ptr<desk::Desk>> made = desk::Desk::Start(settings, job.log());
    started = made.status();
    if (made.ok()) {
      desk_ = std::move(*made);
      started = job.context().store().Set(
          kDeskKey, desk::DeskAddress{here, desk_->port(), settings.secret}.ToText());
    }
  }
  Agree(started.ok() ? started : started.WithContext("the desk of the rollout workers"));
}

SplitGeneration::~SplitGeneration() = default;

std::string SplitGeneration::Description() const { return "rollout workers of their own"; }

std::string SplitGeneration::Hear(const std::string& text) {
  return ShareBytes(job_.context().world(), job_.rank0() ? text : "", job_.device()).front();
}

std::map<int64_t, SplitGeneration::LinkEnd> SplitGeneration::OnLinks(
    const std::vector<int64_t>& workers, const std::function<LinkEnd(int64_t worker)>& act) {
  Json mine = Json::object();
  for (const int64_t worker : workers) {
    LinkEnd end;
    const Status status = Guarded([&] {
      end = act(worker);
      return Status::Ok();
    });
    if (!status.ok()) end.problem = status.message();
    mine[std::to_string(worker)] = {{"problem", end.problem}, {"digest", end.digest}};
  }
  std::map<int64_t, LinkEnd> ends;
  const std::string text = mine.dump(-1, ' ', false, Json::error_handler_t::replace);
  for (const std::string& one : AllGatherBytes(job_.context().world(), text, job_.device())) {
    const Json theirs = ValueOrThrow(ParseJson(one, "a peer's links"));
    for (const auto& [worker, end] : theirs.items()) {
      LinkEnd& known = ends[std::stoll(worker)];
      if (known.problem.empty()) known.problem = end["problem"].get<std::string>();
      if (known.digest == 0) known.digest = end["digest"].get<uint64_t>();
    }
  }
  for (const auto& [worker, end] : ends) {
    if (end.problem.empty()) continue;
    links_.erase(worker);
    if (desk_ != nullptr) desk_->Drop(worker, end.problem);
  }
  return ends;
}

// With each that is there and has none; then the present weights.
void SplitGeneration::MakeLinks() {
  Json found = Json::array();
  if (desk_ != nullptr) {
    for (const desk::Desk::Newcomer& one : desk_->Newcomers())
      found.push_back({{"worker", one.worker}, {"ranks", one.ranks}});
  }
  found = ValueOrThrow(ParseJson(Hear(found.dump()), "rank 0's list of workers"));
  const parallel::Layout& layout = job_.context().layout();
  std::vector<int64_t> workers;
  std::map<int64_t, std::vector<int>> ranks, trainers;
  for (const Json& one : found) {
    const auto worker = one["worker"].get<int64_t>();
    workers.push_back(worker);
    ranks[worker] = one["ranks"].get<std::vector<int>>();
    for (int r = 0; r < layout.world(); ++r) {
      if (layout.CoordOf(r, parallel::Axis::kDp) == worker % layout.dp())
        trainers[worker].push_back(r);
    }
  }
  OnLinks(workers, [&](int64_t worker) {
    desk::LinkUp link{fmt::format("link_{}", worker), trainers[worker]};
    if (desk_ != nullptr) desk_->TellLink(worker, link);
    Link& made = links_[worker];
    const std::vector<int>& members = link.trainers;
    if (std::find(members.begin(), members.end(), job_.context().rank()) == members.end())
      return LinkEnd();
    parallel::GroupOptions options;
    options.name = link.group;
    options.ranks = members;
    options.ranks.insert(options.ranks.end(), ranks[worker].begin(), ranks[worker].end());
    options.deadline = job_.deadline();
    options.cuda = !job_.device().is_cpu();
    options.device_index = job_.device().index();
    options.local_address = job_.context().options().local_address;
    made.group = parallel::MakeProcessGroup(job_.context().store(), job_.context().rank(), options);
    made.sync = std::make_unique<WeightSync>(*made.group, actor_.DeviceTable().WithoutViews(),
                                             ShardTable(), 0, 1, sync_options_);
    return LinkEnd();
  });
  std::erase_if(workers, [&](int64_t worker) { return !links_.contains(worker); });
  WeightUpdate update;
  if (version_.number > 0) Push(workers, version_.number, &update);
}

uint64_t SplitGeneration::Push(const std::vector<int64_t>& workers, int64_t number,
                               WeightUpdate* update) {
  if (workers.empty()) return 0;
  Residency& residency = actor_.residency();
  const Place before = residency.place(StateClass::kParams);
  update->param_load += residency.LoadToRead(StateClass::kParams);
  const ShardTable table = actor_.DeviceTable();
  const std::map<int64_t, LinkEnd> ends = OnLinks(workers, [&](int64_t worker) {
    LinkEnd end;
    if (desk_ != nullptr) desk_->TellPush(worker, number);
    if (links_.at(worker).sync == nullptr) return end;
    Result<WeightSyncReport> report = links_.at(worker).sync->Run(table, ShardTable());
    if (!report.ok()) {
      end.problem = report.status().message();
      return end;
    }
    end.digest = report->digest;
    update->sync.sent_bytes += report->sent_bytes;
    update->sync.rounds += report->rounds;
    return end;
  });
  update->param_offload += residency.Restore(StateClass::kParams, before);
  uint64_t digest = 0;
  for (const auto& [worker, end] : ends) {
    if (!end.problem.empty()) continue;
    if (digest != 0 && digest != end.digest) {
      throw Error(StatusCode::kDataLoss,
                  fmt::format("the replicas of the trainers send other weights: digests {:016x} "
                              "and {:016x} of version {}",
                              digest, end.digest, number));
    }
    digest = end.digest;
  }
  return digest;
}

WeightUpdate SplitGeneration::Publish(int64_t number, uint64_t expected) {
  const Stopwatch watch;
  WeightUpdate update;
  std::string list;
  if (desk_ != nullptr) list = Json(desk_->Linked()).dump();
  const Json linked = ValueOrThrow(ParseJson(Hear(list), "rank 0's list of links"));
  std::vector<int64_t> workers = linked.get<std::vector<int64_t>>();
  std::erase_if(links_, [&](const auto& link) {
    return std::find(workers.begin(), workers.end(), link.first) == workers.end();
  });
  std::erase_if(workers, [&](int64_t worker) { return !links_.contains(worker); });
  uint64_t digest = Push(workers, number, &update);
  if (digest == 0) digest = WeightsDigest(actor_, job_.context().world());
  if (expected != 0 && digest != expected) {
    throw Error(StatusCode::kDataLoss,
                fmt::format("weights of version {}: digest {:016x}, the checkpoint says {:016x}; "
                            "they are not those that were saved",
                            number, digest, expected));
  }
  version_ = {number, digest};
  Status published = Status::Ok();
  if (desk_ != nullptr) published = desk_->Publish(number, digest);
  Agree(published);
  update.sync.digest = digest;
  update.seconds = watch.Elapsed();
  return update;
}

WeightUpdate SplitGeneration::Update() {
  return Publish(version_.number + 1, 0);
}

WeightUpdate SplitGeneration::Restore(const WeightVersion& expected) {
  return Publish(expected.number, expected.digest);
}

// All ranks wait with rank 0, which says every while that it does.
void SplitGeneration::WaitFor(desk::Stream stream) {
  using Event = desk::Desk::Event;
  while (true) {
    std::string word;
    if (desk_ != nullptr) {
      const Status status = Guarded([&]() -> Status {
        switch (desk_->Wait(stream, kWord)) {
          case Event::kReady:
            word = "ready";
            break;
          case Event::kNewcomer:
            word = "newcomer";
            break;
          case Event::kNothing:
            word = "wait";
            if (desk_->alone() > job_.deadline()) {
              return Status(
                  StatusCode::kUnavailable,
                  fmt::format("there has been no rollout worker for {} s: look at what the ranks "
                              "behind {} of this job say, or start workers",
                              job_.deadline().count() / 1000, job_.inputs().env.world_size - 1));
            }
            break;
        }
        return Status::Ok();
      });
      if (!status.ok())
        word =
            Json{{"code", static_cast<int>(status.code())}, {"message", status.message()}}.dump();
    }
    word = Hear(word);
    if (word == "ready") return;
    if (word == "newcomer") MakeLinks();
    if (word.starts_with("{")) {
      const Json error = ValueOrThrow(ParseJson(word, "rank 0's error"));
      throw Error(static_cast<StatusCode>(error["code"].get<int>()),
                  error["message"].get<std::string>());
    }
  }
}

void SplitGeneration::Agree(const Status& status) {
  const std::string word = Hear(
      status.ok()
          ? ""
          : Json{{"code", static_cast<int>(status.code())}, {"message", status.message()}}.dump(
                -1, ' ', false, Json::error_handler_t::replace));
  if (word.empty()) return;
  const Json error = ValueOrThrow(ParseJson(word, "rank 0's error"));
  throw Error(static_cast<StatusCode>(error["code"].get<int>()),
              error["message"].get<std::string>());
}

void SplitGeneration::Begin(const RunSamples& samples) {
  Status opened = Status::Ok();
  if (desk_ != nullptr) {
    desk::StreamOptions options;
    options.protocol.batch = samples.batch;
    options.protocol.end = samples.end;
    options.protocol.max_staleness = job_.config().async_training.max_staleness;
    options.protocol.samples.clear();
    for (int s = samples.greedy_baseline ? kGreedySample : 0; s < samples.n; ++s)
      options.protocol.samples.push_back(s);
    options.prompt = prompts_;
    options.texts = samples.texts;
    const auto open = [&](desk::Ledger ledger) {
      return desk_->Open(desk::Stream::kTrain, options, std::move(ledger));
    };
    bool open_fresh = true;
    if (restored_) {
      const size_t known = restored_->samples.size();
      opened = restored_->frontier == samples.first
                   ? open(std::move(*restored_))
                   : Status(StatusCode::kInvalidData,
                            fmt::format("they begin at position {}, the run at {}",
                                        restored_->frontier, samples.first));
      open_fresh = opened.code() == StatusCode::kInvalidData;
      // None of them has been trained: they are generated again.
      if (open_fresh) {
        job_.log().Warning(
            "{} samples that the checkpoint holds, begun or done, are not of this run's settings "
            "and are generated again: {}",
            known, opened.message());
      } else if (known > 0) {
        job_.log().Info("{} samples of the checkpoint go on, begun or done", known);
      }
      restored_.reset();
    }
    if (open_fresh) {
      desk::Ledger fresh;
      fresh.frontier = samples.first;
      opened = open(std::move(fresh));
    }
  }
  Agree(opened);
}

void SplitGeneration::OpenValidation(const RolloutOrder& order) {
  Status opened = Status::Ok();
  if (desk_ != nullptr) {
    const int64_t first = order.prompts.front().position;
    desk::StreamOptions options;
    options.protocol.batch = static_cast<int64_t>(order.prompts.size());
    options.protocol.end = first + options.protocol.batch;
    options.protocol.samples.clear();
    for (int s = 0; s < order.n; ++s) options.protocol.samples.push_back(s);
    options.prompt = [prompts = order.prompts, first](int64_t position) -> const Prompt& {
      return *prompts[static_cast<size_t>(position - first)].prompt;
    };
    options.texts = order.texts;
    desk::Ledger ledger;
    ledger.frontier = first;
    opened = desk_->Open(desk::Stream::kValidation, std::move(options), std::move(ledger));
  }
  Agree(opened);
}

std::vector<Response> SplitGeneration::Run(const RolloutOrder& order, RolloutTimes* times) {
  const Stopwatch watch;
  const desk::Stream stream = order.validation ? desk::Stream::kValidation : desk::Stream::kTrain;
  if (order.validation) OpenValidation(order);
  if (order.more && desk_ != nullptr) desk_->More(stream);
  const Stopwatch waiting;
  WaitFor(stream);
  if (!order.validation) waited_s_ = (order.more ? waited_s_ : 0) + waiting.Elapsed();

  // To all ranks that train; texts stay here.
  std::vector<Response> mine;
  if (desk_ != nullptr) {
    desk::Desk::Batch batch = desk_->Take(stream);
    if (!order.validation) {
      if (!order.more) ages_ = {};
      NoteAges(batch);
    }
    for (desk::Finished& one : batch.finished) mine.push_back(std::move(one.response));
    if (order.validation) desk_->Close(stream);
  }
  const int64_t first = order.prompts.front().position;
  std::vector<Response> responses = ValueOrThrow(DecodeResponses(Hear(EncodeResponses(mine))));
  for (size_t i = 0; i < responses.size(); ++i) {
    Response& r = responses[i];
    const auto at = static_cast<size_t>(r.position - first);
    if (r.position < first || at >= order.prompts.size()) {
      throw Error(
          StatusCode::kInternal,
          fmt::format("the desk hands out position {}, the step is at {}", r.position, first));
    }
    const Prompt& prompt = *order.prompts[at].prompt;
    r.row = prompt.id;
    r.data_source = prompt.data_source;
    r.prompt = prompt.tokens;
    if (mine.empty() || !order.texts) continue;
    r.text = std::move(mine[i].text);
    r.answer = std::move(mine[i].answer);
  }
  RequireGenerated(responses);
  if (order.greedy_baseline) TakeBaselines(&responses);
  times->generate_s += watch.Elapsed();
  return responses;
}

void SplitGeneration::NoteAges(const desk::Desk::Batch& batch) {
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

void SplitGeneration::AddDocuments(std::vector<checkpoint::Document>* documents) const {
  if (desk_ == nullptr || !desk_->Has(desk::Stream::kTrain)) return;
  documents->push_back(
      {kLedgerPath, desk::EncodeLedger(desk_->LedgerOf(desk::Stream::kTrain)), true});
}

void SplitGeneration::RestoreDocuments(const std::map<std::string, std::string>& documents) {
  const auto found = documents.find(kLedgerPath);
  if (found != documents.end()) restored_ = ValueOrThrow(desk::DecodeLedger(found->second));
}

void SplitGeneration::AddMetrics(StepLine* metrics) const {
  if (desk_ == nullptr) return;
  const desk::Desk::Counts counts = desk_->counts(desk::Stream::kTrain);
  metrics->Set("fully_async/count/workers", counts.workers);
  metrics->Set("fully_async/count/workers_lost", counts.lost);
  metrics->Set("fully_async/count/reassigned_tokens", counts.reassigned_tokens);
  metrics->Set("fully_async/count/dropped_samples", 0);
  metrics->Set("fully_async/count/queue", counts.samples.finished);
  metrics->Set("fully_async/count/running", counts.samples.running);
  const double responses = std::max<double>(1, static_cast<double>(ages_.responses));
  metrics->Set("fully_async/partial/partial_ratio", static_cast<double>(ages_.partial) / responses);
  metrics->Set("fully_async/partial/max_partial_span", ages_.most_spans);
  metrics->Set("off_policy/mean", ages_.sum / std::max(1.0, ages_.tokens));
  metrics->Set("off_policy/max", ages_.most);
  metrics->Set("timing_s/wait_for_samples", waited_s_);
}

}  // namespace keel::trainer::rl
