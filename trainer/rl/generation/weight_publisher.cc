#include "trainer/rl/generation/weight_publisher.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/json.h"
#include "parallel/groups/beside.h"
#include "parallel/groups/context.h"
#include "parallel/groups/link_group.h"
#include "trainer/engine/weights_digest.h"
#include "trainer/sync/group_bytes.h"

namespace keel::trainer::rl {

namespace {

// Links that a rank sends over at a time: workers wait for each other's weights no longer than the
// wire takes, and buffers stay bounded. On CUDA one: communicators of one device, each started from
// a thread of its own, may wait for each other.
constexpr size_t kLinksAtATime = 4;
// How long a rank is at its links before it tells the others that it still is.
constexpr std::chrono::milliseconds kLinkWord{500};

// Of a link's group.
std::string LinkName(int64_t worker) { return fmt::format("link_{}", worker); }

}  // namespace

WeightPublisher::WeightPublisher(Job& job, TrainEngine& actor, const WeightSyncOptions& sync,
                                 desk::Desk* desk)
    : job_(job), actor_(actor), sync_options_(sync), desk_(desk) {
  std::vector<int> all;
  for (int r = 0; r < job.context().layout().world(); ++r) all.push_back(r);
  beside_ = MakeGroup("publish", all, !job.device().is_cpu(), nullptr);
  words_ = MakeGroup("publish_words", all, false, nullptr);
}

WeightPublisher::~WeightPublisher() {
  if (push_.valid()) push_.wait();
  if (std::uncaught_exceptions() > 0) return;
  try {
    beside_->Shutdown();
  } catch (const std::exception&) {
    // A lost peer was said by whoever waited for it.
  }
}

std::unique_ptr<parallel::ProcessGroup> WeightPublisher::MakeGroup(
    const std::string& name, std::vector<int> ranks, bool cuda,
    const std::atomic<bool>* given_up) const {
  parallel::GroupOptions options;
  options.name = name;
  options.ranks = std::move(ranks);
  options.deadline = job_.deadline();
  options.cuda = cuda;
  options.is_link = given_up != nullptr;
  options.by_host = job_.context().options().by_host;
  options.device_index = job_.device().index();
  options.local_address = job_.context().options().local_address;
  return parallel::MakeLinkGroup(job_.context().store(), job_.context().rank(), options, given_up);
}

// 1. Links.

WeightPublisher::Ends WeightPublisher::Gather(parallel::ProcessGroup& group, Ends mine) {
  Json said = Json::object();
  for (const auto& [worker, end] : mine)
    said[std::to_string(worker)] = {{"problem", end.problem}, {"digest", end.digest}};
  const std::string text = said.dump(-1, ' ', false, Json::error_handler_t::replace);
  Ends ends = std::move(mine);
  for (const std::string& one : AllGatherBytes(group, text, job_.device())) {
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

WeightPublisher::Ends WeightPublisher::Await(std::future<Ends> links,
                                             const std::vector<int64_t>& workers) {
  try {
    while (true) {
      const bool done = links.wait_for(kLinkWord) == std::future_status::ready;
      Json word = {{"done", done}};
      for (const int64_t worker : workers)
        if (desk_ != nullptr && !desk_->IsThere(worker)) word["lost"].push_back(worker);
      bool all_done = true;
      for (const std::string& one : AllGatherBytes(*words_, word.dump(), at::kCPU)) {
        const Json said = ValueOrThrow(ParseJson(one, "a peer's word on its links"));
        all_done = all_done && said["done"].get<bool>();
        if (!said.contains("lost")) continue;
        for (const Json& worker : said["lost"]) *links_.at(worker.get<int64_t>()).given_up = true;
      }
      if (all_done) return links.get();
    }
  } catch (...) {
    // A rank that trains is lost: nobody is to wait for this one's links any more.
    for (const int64_t worker : workers) *links_.at(worker).given_up = true;
    throw;
  }
}

void WeightPublisher::MakeLink(int64_t worker, const std::vector<int>& trainers,
                               const std::vector<int>& ranks, const Tables& tables) {
  Link& made = links_.at(worker);
  if (std::find(trainers.begin(), trainers.end(), job_.context().rank()) == trainers.end()) return;
  std::vector<int> members = trainers;
  members.insert(members.end(), ranks.begin(), ranks.end());
  made.group =
      MakeGroup(LinkName(worker), std::move(members), !job_.device().is_cpu(), made.given_up.get());
  made.sync = std::make_unique<WeightSync>(*made.group, tables.own.WithoutViews(), ShardTable(), 0,
                                           1, sync_options_);
  if (!actor_.has_adapters()) return;
  made.base = std::make_unique<WeightSync>(*made.group, tables.base.WithoutViews(), ShardTable(), 0,
                                           1, sync_options_);
}

void WeightPublisher::MakeLinks() {
  Settle();
  Json found = Json::array();
  if (desk_ != nullptr) {
    for (const desk::Desk::Newcomer& one : desk_->Newcomers())
      found.push_back({{"worker", one.worker}, {"ranks", one.ranks}});
  }
  parallel::ProcessGroup& world = job_.context().world();
  found = ValueOrThrow(ParseJson(ShareBytes(world, found.dump(), job_.device()).front(),
                                 "rank 0's list of workers"));
  const parallel::Layout& layout = job_.context().layout();
  const auto trainers_of = [&layout](int64_t worker) {
    std::vector<int> trainers;
    for (int r = 0; r < layout.world(); ++r) {
      if (layout.CoordOf(r, parallel::Axis::kDp) == worker % layout.dp()) trainers.push_back(r);
    }
    return trainers;
  };
  // 1. The weights, where links send them at once.
  Residency& residency = actor_.residency();
  const Place before = residency.place(StateClass::kParams);
  const bool sends = version_.number != 0 || actor_.has_adapters();
  if (sends && !found.empty() && !AtHand()) residency.LoadToRead(StateClass::kParams);
  const Tables tables = found.empty() ? Tables() : TablesHere();
  // 2. All of them hear of their links before the first one is waited for.
  std::vector<int64_t> workers;
  for (const Json& one : found) {
    const auto worker = one["worker"].get<int64_t>();
    workers.push_back(worker);
    links_[worker] = Link();
    if (desk_ != nullptr) desk_->TellLink(worker, {LinkName(worker), trainers_of(worker)});
  }
  std::future<Ends> made = parallel::Beside(job_.device(), [&] {
    Ends mine;
    for (const Json& one : found) {
      const auto worker = one["worker"].get<int64_t>();
      const Status link = Guarded([&] {
        MakeLink(worker, trainers_of(worker), one["ranks"].get<std::vector<int>>(), tables);
        return Status::Ok();
      });
      mine[worker].problem = link.ok() ? "" : link.message();
    }
    return mine;
  });
  const auto settle = [&](std::future<Ends> ends) {
    Gather(world, Await(std::move(ends), workers));
    std::erase_if(workers, [&](int64_t worker) { return !links_.contains(worker); });
  };
  settle(std::move(made));
  if (actor_.has_adapters() && !workers.empty()) {
    settle(parallel::Beside(job_.device(), [&] {
      return OverLinks(workers, [&](int64_t worker) { return SendBase(worker, tables.base); });
    }));
  }
  if (version_.number != 0 && !workers.empty()) Push(world, workers, version_.number, tables.own);
  residency.Restore(StateClass::kParams, before);
}

std::vector<int64_t> WeightPublisher::Linked() {
  std::string list;
  if (desk_ != nullptr) list = Json(desk_->Linked()).dump();
  list = ShareBytes(job_.context().world(), list, job_.device()).front();
  auto workers =
      ValueOrThrow(ParseJson(list, "rank 0's list of links")).get<std::vector<int64_t>>();
  std::erase_if(links_, [&](const auto& link) {
    return std::find(workers.begin(), workers.end(), link.first) == workers.end();
  });
  std::erase_if(workers, [&](int64_t worker) { return !links_.contains(worker); });
  return workers;
}

// 2. A push.

bool WeightPublisher::AtHand() {
  return job_.device().is_cpu() || actor_.residency().place(StateClass::kParams) != Place::kHost;
}

// On a CPU links read host memory: the copy that the weights have there while they are offloaded.
WeightPublisher::Tables WeightPublisher::TablesHere() {
  using Which = TrainEngine::Which;
  if (!job_.device().is_cpu())
    return {actor_.DeviceTable(Which::kOwn), actor_.DeviceTable(Which::kBase)};
  return {actor_.SaveTables().model, actor_.BaseTable()};
}

WeightPublisher::LinkEnd WeightPublisher::Send(int64_t worker, int64_t number,
                                               const ShardTable& table) {
  LinkEnd end;
  const Status sent = Guarded([&]() -> Status {
    if (desk_ != nullptr) desk_->TellPush(worker, number);
    WeightSync* const sync = links_.at(worker).sync.get();
    if (sync == nullptr) return Status::Ok();
    KEEL_ASSIGN_OR_RETURN(end.report, sync->Run(table, ShardTable()));
    end.digest = end.report.digest;
    return Status::Ok();
  });
  if (!sent.ok()) end.problem = sent.message();
  return end;
}

WeightPublisher::LinkEnd WeightPublisher::SendBase(int64_t worker, const ShardTable& base) {
  LinkEnd end;
  const Status sent = Guarded([&]() -> Status {
    WeightSync* const sync = links_.at(worker).base.get();
    return sync == nullptr ? Status::Ok() : sync->Run(base, ShardTable()).status();
  });
  if (!sent.ok()) end.problem = sent.message();
  return end;
}

WeightPublisher::Ends WeightPublisher::OverLinks(
    const std::vector<int64_t>& workers, const std::function<LinkEnd(int64_t worker)>& send) {
  std::vector<LinkEnd> ends(workers.size());
  // All ranks take links in the same order: the first one that is not done is under way on each.
  std::atomic<size_t> next{0};
  const auto take = [&] {
    for (size_t i = next++; i < workers.size(); i = next++) ends[i] = send(workers[i]);
  };
  {
    const size_t most = job_.device().is_cpu() ? kLinksAtATime : 1;
    std::vector<std::jthread> others;
    for (size_t i = 1; i < std::min(most, workers.size()); ++i) others.emplace_back(take);
    take();
  }
  Ends all;
  for (size_t i = 0; i < workers.size(); ++i) all[workers[i]] = std::move(ends[i]);
  return all;
}

WeightPublisher::Outcome WeightPublisher::Push(parallel::ProcessGroup& group,
                                               const std::vector<int64_t>& workers, int64_t number,
                                               const ShardTable& table) {
  Outcome outcome;
  if (workers.empty()) return outcome;
  std::future<Ends> sent = parallel::Beside(job_.device(), [&] {
    return OverLinks(workers, [&](int64_t worker) { return Send(worker, number, table); });
  });
  for (const auto& [worker, end] : Gather(group, Await(std::move(sent), workers))) {
    if (!end.problem.empty()) continue;
    outcome.update.sync.sent_bytes += end.report.sent_bytes;
    outcome.update.sync.rounds += end.report.rounds;
    if (outcome.digest != 0 && outcome.digest != end.digest) {
      throw Error(StatusCode::kDataLoss,
                  fmt::format("the replicas of the trainers send other weights: digests {:016x} "
                              "and {:016x} of version {}",
                              outcome.digest, end.digest, number));
    }
    outcome.digest = end.digest;
  }
  return outcome;
}

WeightPublisher::Outcome WeightPublisher::PushAndCount(parallel::ProcessGroup& group,
                                                       const std::vector<int64_t>& workers,
                                                       int64_t number, uint64_t expected,
                                                       const ShardTable& table,
                                                       const desk::Desk::StepCounts& steps) {
  const Stopwatch watch;
  Outcome outcome = Push(group, workers, number, table);
  if (outcome.digest == 0) outcome.digest = WeightsDigest(table, job_.device(), group);
  if (expected != 0 && outcome.digest != expected) {
    throw Error(StatusCode::kDataLoss,
                fmt::format("weights of version {}: digest {:016x}, the checkpoint says {:016x}; "
                            "they are not those that were saved",
                            number, outcome.digest, expected));
  }
  const Status published =
      desk_ == nullptr ? Status::Ok() : desk_->Publish(number, outcome.digest, steps);
  ThrowIfError(ShareStatus(group, published, job_.device()));
  outcome.update.sync.digest = outcome.digest;
  outcome.update.seconds = watch.Elapsed();
  return outcome;
}

WeightUpdate WeightPublisher::Publish(int64_t number, uint64_t expected) {
  Settle();
  const Stopwatch watch;
  const std::vector<int64_t> workers = Linked();
  Residency& residency = actor_.residency();
  const Place before = residency.place(StateClass::kParams);
  const double load = AtHand() ? 0.0 : residency.LoadToRead(StateClass::kParams);
  const desk::Desk::StepCounts steps = desk_ == nullptr ? desk::Desk::StepCounts() : desk_->Steps();
  Outcome outcome =
      PushAndCount(job_.context().world(), workers, number, expected, TablesHere().own, steps);
  version_ = proved_ = {number, outcome.digest};
  last_ = outcome.update;
  last_.param_load = load;
  last_.param_offload = residency.Restore(StateClass::kParams, before);
  last_.seconds = watch.Elapsed();
  last_.blocked = std::exchange(blocked_s_, 0.0) + last_.seconds;
  return last_;
}

WeightUpdate WeightPublisher::Start(int64_t number) {
  Settle();
  if (!AtHand()) return Publish(number, 0);
  const Stopwatch watch;
  std::vector<int64_t> workers = Linked();
  version_ = {number, 0};
  const desk::Desk::StepCounts steps = desk_ == nullptr ? desk::Desk::StepCounts() : desk_->Steps();
  push_ = parallel::Beside(
      job_.device(), [this, number, workers = std::move(workers), table = TablesHere().own, steps,
                      spans = job_.context().spans()] {
        const ScopedSpan span(spans, "push weights", {.lane = SpanLane::kWeights, .step = number});
        return PushAndCount(*beside_, workers, number, 0, table, steps);
      });
  last_.blocked = std::exchange(blocked_s_, 0.0) + watch.Elapsed();
  return last_;
}

void WeightPublisher::Settle() {
  if (!push_.valid()) return;
  const Stopwatch watch;
  Outcome outcome = push_.get();
  blocked_s_ += watch.Elapsed();
  last_ = outcome.update;
  version_.digest = outcome.digest;
  proved_ = version_;
}

void WeightPublisher::BeforeWrite(const void* begin, size_t bytes) {
  if (!push_.valid()) return;
  const at::Tensor& flat = actor_.weights().flat();
  const auto touches = [&](const at::Tensor& memory) {
    const auto* const first = static_cast<const std::byte*>(memory.const_data_ptr());
    const auto* const at = static_cast<const std::byte*>(begin);
    return at < first + memory.nbytes() && first < at + bytes;
  };
  if (!touches(flat) && !(job_.device().is_cpu() && touches(actor_.residency().HostView(flat))))
    return;
  const Stopwatch watch;
  push_.wait();
  blocked_s_ += watch.Elapsed();
}

}  // namespace keel::trainer::rl
