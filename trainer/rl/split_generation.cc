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
    settings.min_workers = job.config().async_training.min_workers;
    settings.facts = std::move(facts);
    Result<std::unique_ptr<desk::Desk>> made = desk::Desk::Start(settings, job.log());
    started = made.status();
    if (made.ok()) {
      desk_ = std::move(*made);
      samples_ = std::make_unique<SampleStream>(*desk_, job.config().async_training, job.log());
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

WeightUpdate SplitGeneration::Update() { return Publish(version_.number + 1, 0); }

WeightUpdate SplitGeneration::Restore(const WeightVersion& expected) {
  return Publish(expected.number, expected.digest);
}

// All ranks wait with rank 0, which says every while that it does.
void SplitGeneration::WaitFor(desk::Stream stream, desk::Desk::For what) {
  using Event = desk::Desk::Event;
  const Stopwatch watch;
  while (true) {
    std::string word;
    if (desk_ != nullptr) {
      const Status status = Guarded([&]() -> Status {
        switch (desk_->Wait(stream, what, kWord)) {
          case Event::kReady:
            word = "ready";
            break;
          case Event::kNewcomer:
            word = "newcomer";
            break;
          case Event::kNothing:
            word = "wait";
            if (what == desk::Desk::For::kWorkers &&
                watch.Elapsed() * 1000 > static_cast<double>(job_.deadline().count())) {
              return Status(
                  StatusCode::kUnavailable,
                  fmt::format("{} of async_training.min_workers {} rollout workers were there "
                              "within {} s: look at what the ranks behind {} of this job say",
                              desk_->Linked().size(), job_.config().async_training.min_workers,
                              job_.deadline().count() / 1000, job_.inputs().env.world_size - 1));
            }
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
  WaitFor(desk::Stream::kTrain, desk::Desk::For::kWorkers);
  Status opened = Status::Ok();
  if (desk_ != nullptr) opened = Guarded([&] { return samples_->Open(samples, prompts_); });
  Agree(opened);
}

void SplitGeneration::BeforeUpdate() { WaitFor(desk::Stream::kTrain, desk::Desk::For::kWeights); }

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
  WaitFor(stream, desk::Desk::For::kBatch);
  if (!order.validation) waited_s_ = (order.more ? waited_s_ : 0) + waiting.Elapsed();

  // To all ranks that train; texts stay here.
  std::vector<Response> mine;
  Status taken = Status::Ok();
  if (desk_ != nullptr && order.validation) {
    for (desk::Finished& one : desk_->Take(stream).finished)
      mine.push_back(std::move(one.response));
    desk_->Close(stream);
  } else if (desk_ != nullptr) {
    Result<std::vector<Response>> batch = samples_->Take(order.step, order.more);
    taken = batch.status();
    if (batch.ok()) mine = std::move(*batch);
  }
  Agree(taken);
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

void SplitGeneration::AddDocuments(std::vector<checkpoint::Document>* documents) const {
  if (desk_ != nullptr && samples_->open())
    documents->push_back({kLedgerPath, samples_->LedgerBytes(), true});
}

void SplitGeneration::RestoreDocuments(const std::map<std::string, std::string>& documents) {
  const auto found = documents.find(kLedgerPath);
  if (found != documents.end() && desk_ != nullptr) ThrowIfError(samples_->Restore(found->second));
}

void SplitGeneration::AddMetrics(StepLine* metrics) const {
  if (desk_ == nullptr) return;
  samples_->AddMetrics(metrics);
  metrics->Set("timing_s/wait_for_samples", waited_s_);
}

}  // namespace keel::trainer::rl
