#include "trainer/desk/desk_protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rollout/sequence.h"
#include "turns/tool_use.h"

namespace keel::trainer::desk {

namespace {

std::string NameOf(const SampleId& id) {
  return fmt::format("sample {} of position {}", id.sample, id.position);
}

bool BeginsWith(const std::vector<int32_t>& whole, const std::vector<int32_t>& part) {
  return whole.size() >= part.size() && std::equal(part.begin(), part.end(), whole.begin());
}

}  // namespace

Result<DeskProtocol> DeskProtocol::Make(DeskOptions options, Ledger ledger) {
  DeskProtocol desk(std::move(options), std::move(ledger));
  KEEL_RETURN_IF_ERROR(desk.CheckLedger());
  KEEL_RETURN_IF_ERROR(desk.CheckNewest());
  return desk;
}

Status DeskProtocol::CheckLedger() const {
  const auto bad = [](const std::string& what) {
    return Status(StatusCode::kInvalidData, "the ledger of samples: " + what);
  };
  if (ledger_.frontier < 0 || ledger_.steps < 0)
    return bad(fmt::format("frontier {}, {} steps", ledger_.frontier, ledger_.steps));
  int64_t steps = 0;
  for (const auto& [version, after] : ledger_.versions) {
    if (version <= 0 || after < steps || after > ledger_.steps)
      return bad(fmt::format("version {} after {} of {} steps", version, after, ledger_.steps));
    steps = after;
  }
  for (const auto& [id, entry] : ledger_.samples) {
    const auto& known = options_.samples;
    if (!ledger_.open(id.position) || id.position >= options_.end ||
        !std::binary_search(known.begin(), known.end(), id.sample)) {
      return bad(fmt::format("{} is none of this run's that are open from position {} on",
                             NameOf(id), ledger_.frontier));
    }
    const bool done = entry.finished.has_value();
    const auto& spans = done ? entry.finished->spans : entry.partial.spans;
    const int64_t tokens =
        done ? std::ssize(entry.finished->response.tokens) : entry.partial.size();
    const char* problem = ProblemOf(spans, tokens);
    if (problem == nullptr)
      problem = ProblemOf(done ? entry.finished->response.given : entry.partial.given, tokens);
    for (const VersionSpan& span : spans)
      if (!ledger_.versions.contains(span.version)) problem = "tokens of a version that was not";
    if (problem != nullptr) return bad(fmt::format("{}: {}", NameOf(id), problem));
  }
  if (options_.schedule_reaches) return Status::Ok();
  const Status young = order().CheckAges();
  return young.ok() ? young : bad(young.message());
}

StepOrder::Limits DeskProtocol::LimitsOfBegun() const {
  StepOrder::Limits limits = order().LimitsOfBegun();
  // Of what no token is known yet: the worker's weights, or later ones.
  for (const auto& [number, lease] : leases_) {
    const auto known = ledger_.samples.find(lease.id);
    if (known == ledger_.samples.end() || known->second.partial.spans.empty())
      order().Begin(lease.id.position, lease.version, &limits);
  }
  return limits;
}

Status DeskProtocol::Publish(int64_t version, int64_t steps) {
  const auto newest = ledger_.versions.rbegin();
  const bool first = newest == ledger_.versions.rend();
  if (version < 1 || steps < 0 || steps > ledger_.steps ||
      (!first && (version <= newest->first || steps < newest->second))) {
    return Status(StatusCode::kInternal,
                  fmt::format("version {} of {} steps published after version {}, {} steps taken",
                              version, steps, newest_version(), ledger_.steps));
  }
  ledger_.versions[version] = steps;
  ForgetVersions();
  Status status;
  EachWithinReach([&](const SampleId& id) {
    const Turn turn = NextOf(id);
    if (turn.version == 0 || turn.version == version) return true;
    status = Status(StatusCode::kConfig,
                    fmt::format("the schedule wants version {} for {}, and version {} is there: it "
                                "was recorded with another async_training.max_staleness or "
                                "data.train_batch_size",
                                turn.version, NameOf(id), version));
    return false;
  });
  return status.ok() ? CheckNewest() : status;
}

// Once the weights are there that all steps so far have made, no newer ones come before the next.
Status DeskProtocol::CheckNewest() const {
  if (ledger_.versions.empty() || ledger_.versions.rbegin()->second < ledger_.steps)
    return Status::Ok();
  Status status;
  EachWithinReach([&](const SampleId& id) {
    const int64_t wanted = options_.schedule->NewestOf(id);
    if (Due(id.position) > ledger_.steps || wanted <= newest_version()) return true;
    status = Status(StatusCode::kConfig,
                    fmt::format("the schedule wants version {} for {}, which the step trains "
                                "that has version {}: it was recorded with another "
                                "async_training.max_staleness or data.train_batch_size",
                                wanted, NameOf(id), newest_version()));
    return false;
  });
  return status;
}

Turn DeskProtocol::NextOf(const SampleId& id) const {
  const auto known = ledger_.samples.find(id);
  return options_.schedule->Next(id,
                                 known == ledger_.samples.end() ? Partial() : known->second.partial,
                                 Due(id.position), ledger_.versions);
}

int64_t DeskProtocol::ReachOfSchedule() const {
  const bool reaches = options_.schedule != nullptr && options_.schedule_reaches;
  return reaches ? options_.schedule->ReachOf(newest_version()) : 0;
}

template <typename Look>
void DeskProtocol::EachWithinReach(Look look) const {
  if (options_.schedule == nullptr || ledger_.versions.empty()) return;
  const int64_t steps = ledger_.versions.rbegin()->second;
  const int64_t reach = ReachOfSchedule();
  const auto within = [&](int64_t position) {
    return position < reach || Due(position) - steps <= options_.max_staleness;
  };
  for (int64_t position = ledger_.frontier; position < options_.end && within(position);
       ++position) {
    if (!ledger_.open(position)) continue;
    for (const int sample : options_.samples) {
      const auto known = ledger_.samples.find({position, sample});
      const bool finished = known != ledger_.samples.end() && known->second.finished;
      if (!finished && !look(SampleId{position, sample})) return;
    }
  }
}

bool DeskProtocol::Settled() const {
  bool settled = true;
  EachWithinReach([&](const SampleId& id) {
    settled = NextOf(id).version != newest_version();
    return settled;
  });
  return settled;
}

int64_t DeskProtocol::newest_version() const {
  return ledger_.versions.empty() ? 0 : ledger_.versions.rbegin()->first;
}

int64_t DeskProtocol::Join(int64_t capacity) {
  Worker& worker = workers_[next_worker_];
  worker.capacity = capacity;
  worker.version_floor = newest_version();
  return next_worker_++;
}

Status DeskProtocol::Serve(int64_t worker, int64_t version) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return Status::Ok();  // it was given up
  if (!ledger_.versions.contains(version) || version < found->second.version) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("worker {} says that it serves version {} after {}; the newest is {}",
                              worker, version, found->second.version, newest_version()));
  }
  found->second.version = found->second.version_floor = version;
  ForgetVersions();
  return Status::Ok();
}

void DeskProtocol::Leave(int64_t worker) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  for (const int64_t lease : std::exchange(found->second.leases, {})) {
    leased_.erase(leases_.at(lease).id);
    leases_.erase(lease);
  }
  workers_.erase(found);
}

int64_t DeskProtocol::Room(const Worker& worker, const Load& load) {
  if (worker.version == 0) return 0;
  const int64_t share = (load.samples * worker.capacity + load.capacity - 1) / load.capacity;
  return std::min(share, worker.capacity) - std::ssize(worker.leases);
}

// Whether its weights may begin or go on with a sample. One that was begun with newer weights waits
// for them: then the versions of a response's tokens ascend.
bool DeskProtocol::MayTake(const Worker& worker, const Waiting& sample, const Load& load) const {
  if (Room(worker, load) <= 0) return false;
  if (sample.turn.version != 0 && sample.turn.version != worker.version) return false;
  const auto known = ledger_.samples.find(sample.id);
  const bool has_tokens = known != ledger_.samples.end() && !known->second.partial.spans.empty();
  if (has_tokens && known->second.partial.spans.back().version > worker.version) return false;
  const int64_t steps = ledger_.versions.at(worker.version);
  if (options_.ready_first)
    return has_tokens || order().Fits(sample.id.position, steps, load.limits);
  const bool wanted = options_.schedule_reaches && sample.turn.version != 0;
  return wanted || Due(sample.id.position) - steps <= options_.max_staleness;
}

// The one with most room that may take it; the end: none.
std::map<int64_t, DeskProtocol::Worker>::iterator DeskProtocol::Taker(const Waiting& sample,
                                                                      const Load& load) {
  auto taker = workers_.end();
  for (auto worker = workers_.begin(); worker != workers_.end(); ++worker) {
    if (!MayTake(worker->second, sample, load)) continue;
    if (taker == workers_.end() || Room(worker->second, load) > Room(taker->second, load))
      taker = worker;
  }
  return taker;
}

// Those that weights of the newest version may begin or go on with, oldest positions first.
std::vector<DeskProtocol::Waiting> DeskProtocol::WaitingSamples() const {
  std::vector<Waiting> waiting;
  if (ledger_.versions.empty()) return waiting;
  // Open positions that the newest weights may begin; with ready_first also what is begun behind
  // them.
  const int64_t near = options_.batch * (ledger_.versions.rbegin()->second +
                                         options_.max_staleness - ledger_.steps + 1);
  const int64_t last = options_.ready_first && !ledger_.samples.empty()
                           ? ledger_.samples.rbegin()->first.position
                           : ReachOfSchedule() - 1;
  int64_t open = 0;
  for (int64_t position = ledger_.frontier; position < options_.end; ++position) {
    if (!ledger_.open(position)) continue;
    if (open++ >= near && position > last) break;
    for (const int sample : options_.samples) {
      const SampleId id{position, sample};
      if (leased_.contains(id)) continue;
      const auto known = ledger_.samples.find(id);
      if (known != ledger_.samples.end() && known->second.finished) continue;
      // Version 0 of a schedule: none that is there.
      const Turn turn = options_.schedule == nullptr ? Turn{0, kToTheEnd} : NextOf(id);
      if (options_.schedule == nullptr || turn.version != 0) waiting.push_back({id, turn});
    }
  }
  return waiting;
}

std::map<int64_t, std::vector<Assignment>> DeskProtocol::Assign() {
  std::map<int64_t, std::vector<Assignment>> assignments;
  Load load;
  bool room = false;
  for (const auto& [number, worker] : workers_) {
    load.capacity += worker.capacity;
    room = room || (worker.version > 0 && std::ssize(worker.leases) < worker.capacity);
  }
  if (!room) return assignments;
  const std::vector<Waiting> waiting = WaitingSamples();
  load.samples = std::ssize(waiting) + std::ssize(leases_);
  if (options_.ready_first) load.limits = LimitsOfBegun();
  auto taker = workers_.end();
  for (size_t i = 0; i < waiting.size(); ++i) {
    const Waiting& sample = waiting[i];
    // The next position's samples go to whoever has most room then.
    if (i > 0 && waiting[i - 1].id.position != sample.id.position) taker = workers_.end();
    if (taker == workers_.end() || !MayTake(taker->second, sample, load))
      taker = Taker(sample, load);
    if (taker == workers_.end()) continue;
    Assignment assignment{next_lease_++, sample.id, {}, sample.turn.until};
    if (const auto known = ledger_.samples.find(sample.id); known != ledger_.samples.end())
      assignment.so_far = known->second.partial;
    if (options_.schedule == nullptr) reassigned_tokens_ += assignment.so_far.size();
    leases_[assignment.lease] = {sample.id, taker->first, taker->second.version};
    leased_.insert(sample.id);
    if (options_.ready_first && assignment.so_far.spans.empty())
      order().Begin(sample.id.position, taker->second.version, &load.limits);
    taker->second.leases.insert(assignment.lease);
    assignments[taker->first].push_back(std::move(assignment));
  }
  return assignments;
}

const DeskProtocol::Lease* DeskProtocol::LeaseOf(int64_t worker, int64_t lease) const {
  const auto found = leases_.find(lease);
  return found != leases_.end() && found->second.worker == worker ? &found->second : nullptr;
}

// Of tokens that a worker has chosen: by weights that it served since it has the sample.
Status DeskProtocol::CheckSpans(const std::vector<VersionSpan>& spans, int64_t tokens,
                                const Lease& lease) const {
  const auto bad = [&](const std::string& what) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("worker {}, {}: {}", lease.worker, NameOf(lease.id), what));
  };
  if (const char* problem = ProblemOf(spans, tokens)) return bad(problem);
  for (const VersionSpan& span : spans) {
    const auto published = ledger_.versions.find(span.version);
    if (published == ledger_.versions.end() || span.version < lease.version ||
        span.version > workers_.at(lease.worker).version) {
      return bad(fmt::format("tokens of version {}, which it does not serve", span.version));
    }
    const int64_t due = options_.ready_first ? ledger_.steps : Due(lease.id.position);
    if (!options_.schedule_reaches && due - published->second > options_.max_staleness) {
      return bad(fmt::format("tokens of version {}, of {} steps, for step {}", span.version,
                             published->second, due));
    }
  }
  return Status::Ok();
}

Status DeskProtocol::CheckGiven(const std::vector<TokenRange>& given, int64_t tokens,
                                const Lease& lease) const {
  const char* problem = ProblemOf(given, tokens);
  if (problem == nullptr) return Status::Ok();
  return Status(StatusCode::kInvalidData, fmt::format("worker {}, {}: given tokens: {}",
                                                      lease.worker, NameOf(lease.id), problem));
}

Result<bool> DeskProtocol::Progress(int64_t worker, int64_t lease, int64_t from,
                                    const Partial& more) {
  const Lease* held = LeaseOf(worker, lease);
  if (held == nullptr) return false;
  const auto known = ledger_.samples.find(held->id);
  const int64_t have = known == ledger_.samples.end() ? 0 : known->second.partial.size();
  if (from < have) return false;  // said before
  const bool log_probs = more.log_probs.size() == more.tokens.size() || more.log_probs.empty();
  if (from > have || more.tokens.empty() || !log_probs) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("worker {}, {}: {} tokens with {} log-probabilities from {} on, where "
                    "{} are known",
                    worker, NameOf(held->id), more.tokens.size(), more.log_probs.size(), from,
                    have));
  }
  KEEL_RETURN_IF_ERROR(CheckSpans(more.spans, more.size(), *held));
  KEEL_RETURN_IF_ERROR(CheckGiven(more.given, more.size(), *held));
  ledger_.samples[held->id].partial.Append(more);
  return true;
}

Result<bool> DeskProtocol::GiveBack(int64_t worker, int64_t lease) {
  if (LeaseOf(worker, lease) == nullptr) return false;
  End(lease);
  return true;
}

Result<bool> DeskProtocol::Finish(int64_t worker, int64_t lease, Finished finished) {
  const Lease* held = LeaseOf(worker, lease);
  if (held == nullptr) return false;
  const SampleId id = held->id;
  const rl::Response& response = finished.response;
  const auto begun = ledger_.samples.find(id);
  const Partial known = begun == ledger_.samples.end() ? Partial() : begun->second.partial;
  if (response.position != id.position || response.sample != id.sample ||
      !BeginsWith(response.tokens, known.tokens)) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("worker {}, {}: another response than the one that it was at", worker,
                              NameOf(id)));
  }
  // Its new tokens alone; those before are in the ledger with their versions.
  Partial said;
  said.tokens = response.tokens;
  said.given = response.given;
  Partial more = said.From(known.size());
  more.spans = std::move(finished.spans);
  KEEL_RETURN_IF_ERROR(CheckSpans(more.spans, more.size(), *held));
  KEEL_RETURN_IF_ERROR(CheckGiven(response.given, std::ssize(response.tokens), *held));
  Partial whole = known;
  whole.Append(more);
  if (whole.given != response.given) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("worker {}, {}: other tokens are given than in what it was at",
                              worker, NameOf(id)));
  }
  Ledger::Entry& entry = ledger_.samples[id];
  entry.partial = {};
  entry.spent_ms = 0;
  entry.finished = Finished{std::move(finished.response), std::move(whole.spans)};
  End(lease);
  return true;
}

void DeskProtocol::End(int64_t lease) {
  const auto found = leases_.find(lease);
  workers_.at(found->second.worker).leases.erase(lease);
  leased_.erase(found->second.id);
  leases_.erase(found);
}

DeskProtocol::Overdue DeskProtocol::Elapse(int64_t ms) {
  Overdue overdue;
  const int64_t most = options_.max_response_ms;
  if (most == 0) return overdue;
  std::vector<int64_t> ended;
  for (auto& [number, lease] : leases_) {
    Ledger::Entry& entry = ledger_.samples[lease.id];
    const bool was_overdue = entry.spent_ms >= most;
    entry.spent_ms += ms;
    if (entry.spent_ms < most) continue;
    if (!was_overdue) ++overdue_;
    if (lease.asked_ms < 0) {
      lease.asked_ms = 0;
      overdue.ask.push_back({lease.worker, number});
    } else if ((lease.asked_ms += ms) < most) {
      continue;
    } else if (entry.partial.size() > 0) {
      ended.push_back(number);
    } else {
      overdue.stuck.insert(lease.worker);
    }
  }
  for (const int64_t number : ended) {
    overdue.ended.push_back(leases_.at(number).id);
    EndOverdue(number);
  }
  return overdue;
}

// What is known of it is the response, and nobody has judged it.
void DeskProtocol::EndOverdue(int64_t lease) {
  const SampleId id = leases_.at(lease).id;
  Ledger::Entry& entry = ledger_.samples.at(id);
  // A reward stands on a token that was chosen.
  Partial known = std::move(entry.partial);
  if (!known.given.empty() && known.given.back().end == known.size())
    known = known.Until(known.given.back().begin);
  Finished finished;
  finished.spans = std::move(known.spans);
  rl::Response& response = finished.response;
  response.position = id.position;
  response.sample = id.sample;
  response.tokens = std::move(known.tokens);
  response.log_probs = std::move(known.log_probs);
  response.given = std::move(known.given);
  auto memory = turns::ToolMemory::Parse(known.tool_memory);
  if (memory.ok()) response.tools = std::move(memory->use);
  response.finish = rollout::FinishReasonName(rollout::FinishReason::kLength);
  response.weight_version = finished.spans.front().version;
  response.error = fmt::format(
      "it was not ended and scored within twice async_training.max_response_seconds {}; its {} "
      "tokens are those that its worker had reported",
      static_cast<double>(options_.max_response_ms) / 1000, response.tokens.size());
  if (!memory.ok()) response.error += "; " + memory.status().message();
  entry = {{}, 0, std::move(finished)};
  End(lease);
}

std::vector<int64_t> DeskProtocol::NextBatch() const {
  return options_.ready_first ? order().NextReady(LimitsOfBegun()) : order().NextInOrder();
}

bool DeskProtocol::Ready() const { return !NextBatch().empty(); }

std::vector<Finished> DeskProtocol::Take() {
  std::vector<Finished> taken;
  for (const int64_t position : NextBatch()) {
    for (const int sample : options_.samples)
      taken.push_back(std::move(*ledger_.samples.extract({position, sample}).mapped().finished));
    ledger_.taken.insert(position);
  }
  while (ledger_.taken.erase(ledger_.frontier) > 0) ++ledger_.frontier;
  ++ledger_.steps;
  ForgetVersions();
  return taken;
}

Status DeskProtocol::More() {
  --ledger_.steps;
  return CheckNewest();
}

// Those older than all that a token is of, or may be of that is still to be heard of: of weights
// that a worker has served since it has the sample, or has just taken up.
void DeskProtocol::ForgetVersions() {
  int64_t oldest = newest_version();
  for (const auto& [id, worker] : workers_) oldest = std::min(oldest, worker.version_floor);
  for (const auto& [id, lease] : leases_) oldest = std::min(oldest, lease.version);
  for (const auto& [id, entry] : ledger_.samples) {
    const auto& spans = entry.finished ? entry.finished->spans : entry.partial.spans;
    if (!spans.empty()) oldest = std::min(oldest, spans.front().version);
  }
  ledger_.versions.erase(ledger_.versions.begin(), ledger_.versions.lower_bound(oldest));
}

int64_t DeskProtocol::Held(int64_t worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() ? 0 : std::ssize(found->second.leases);
}

DeskProtocol::Counts DeskProtocol::counts() const {
  Counts counts;
  counts.running = std::ssize(leases_);
  counts.workers = std::ssize(workers_);
  counts.reassigned_tokens = reassigned_tokens_;
  counts.overdue = overdue_;
  counts.used_up = options_.end - ledger_.trained() < options_.batch;
  if (!ledger_.taken.empty()) counts.put_off = *ledger_.taken.rbegin() + 1 - ledger_.trained();
  for (const auto& [id, entry] : ledger_.samples) {
    if (entry.finished) {
      ++counts.finished;
    } else if (!leased_.contains(id)) {
      ++counts.waiting;
    }
  }
  return counts;
}

}  // namespace keel::trainer::desk
