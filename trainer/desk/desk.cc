#include "trainer/desk/desk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "common/guarded.h"
#include "parallel/store/sockets.h"
#include "trainer/desk/worker_connection.h"

namespace keel::trainer::desk {

namespace {

using Clock = std::chrono::steady_clock;
using parallel::Socket;

// Between two looks at who is silent.
constexpr std::chrono::milliseconds kTick{200};
// For workers to leave at the end of the run.
constexpr std::chrono::milliseconds kFarewell{2'000};
constexpr size_t kMostConnections = 4096;
constexpr int64_t kMostRanks = 4096;  // of a worker
// Of time that goes by while this thread stands still nothing more is held against workers.
constexpr std::chrono::milliseconds kMostTick{1'000};

}  // namespace

class Desk::Impl {
 public:
  Impl(DeskSettings settings, Logger& log, Socket listener, Socket wake)
      : settings_(std::move(settings)),
        log_(log),
        listener_(std::move(listener)),
        wake_(std::move(wake)),
        next_rank_(settings_.first_rank) {}

  void Start() {
    thread_ = std::thread([this] { Serve(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      for (auto& [id, worker] : workers_) Say(worker, Bye{finished_});
      ending_ = true;
    }
    Wake();
    if (thread_.joinable()) thread_.join();
  }

  int port() const { return parallel::PortOf(listener_); }

  Status Open(Stream which, StreamOptions options, Ledger ledger) {
    const std::lock_guard lock(mutex_);
    KEEL_RETURN_IF_ERROR(streams_.Open(which, std::move(options), std::move(ledger), version_));
    for (const auto& [id, worker] : workers_) {
      if (worker.linked) Enter(which, id, worker);
    }
    AssignAll();
    Wake();
    return Status::Ok();
  }

  void Close(Stream which) {
    const std::lock_guard lock(mutex_);
    streams_.Close(which);
  }

  bool Has(Stream which) const {
    const std::lock_guard lock(mutex_);
    return streams_.Has(which);
  }

  void More(Stream which) {
    const std::lock_guard lock(mutex_);
    if (const Status more = streams_.More(which); fatal_.ok()) fatal_ = more;
    AssignAll();
    Wake();
  }

  Batch Take(Stream which) {
    const std::lock_guard lock(mutex_);
    Batch taken = streams_.Take(which);
    AssignAll();
    Wake();
    return taken;
  }

  void Finish() {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }

  Ledger LedgerOf(Stream which) const {
    const std::lock_guard lock(mutex_);
    return streams_.LedgerOf(which);
  }

  std::vector<Newcomer> Newcomers() const {
    const std::lock_guard lock(mutex_);
    std::vector<Newcomer> found;
    for (const auto& [id, worker] : workers_) {
      if (worker.hello && !worker.linked)
        found.push_back({id, worker.hello->name, worker.hello->ranks});
    }
    return found;
  }

  std::vector<int64_t> Linked() const {
    const std::lock_guard lock(mutex_);
    std::vector<int64_t> found;
    for (const auto& [id, worker] : workers_)
      if (worker.linked) found.push_back(id);
    return found;
  }

  bool IsThere(int64_t id) const {
    const std::lock_guard lock(mutex_);
    const auto found = workers_.find(id);
    return found != workers_.end() && found->second.hello;
  }

  void TellLink(int64_t id, const LinkUp& link) {
    const std::lock_guard lock(mutex_);
    const auto found = workers_.find(id);
    // It may have been lost since it was new.
    if (found == workers_.end() || !found->second.hello) return;
    found->second.linked = true;
    for (const Stream which : streams_.All()) Enter(which, id, found->second);
    Say(found->second, link);
    Wake();
  }

  void TellPush(int64_t id, int64_t version) {
    const std::lock_guard lock(mutex_);
    if (const auto found = workers_.find(id); found != workers_.end())
      Say(found->second, Push{version});
    Wake();
  }

  void Drop(int64_t id, const std::string& why) {
    const std::lock_guard lock(mutex_);
    GiveUp(id, Status(StatusCode::kUnavailable, why));
    AssignAll();
    Wake();
  }

  StepCounts Steps() const {
    const std::lock_guard lock(mutex_);
    return streams_.Steps();
  }

  Status Publish(int64_t version, uint64_t digest, const StepCounts& steps) {
    const std::lock_guard lock(mutex_);
    version_ = version;
    digest_ = digest;
    KEEL_RETURN_IF_ERROR(streams_.Publish(version, steps));
    for (const int64_t id : Ids()) TakeVersion(id);
    AssignAll();
    Wake();
    return Status::Ok();
  }

  Event Wait(Stream which, For what, std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    Event event = Event::kNothing;
    changed_.wait_for(lock, patience, [&] {
      ThrowIfError(fatal_);
      // A newcomer first: it may be what the batch waits for.
      for (const auto& [id, worker] : workers_) {
        if (worker.hello && !worker.linked) event = Event::kNewcomer;
      }
      if (event == Event::kNothing && IsThere(which, what)) event = Event::kReady;
      return event != Event::kNothing;
    });
    return event;
  }

  std::chrono::milliseconds alone() const {
    const std::lock_guard lock(mutex_);
    const bool one = std::any_of(workers_.begin(), workers_.end(), [this](const auto& entry) {
      return entry.second.linked && entry.second.version == version_;
    });
    if (one) {
      alone_since_ = Clock::now();
      return {};
    }
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - alone_since_);
  }

  Counts counts(Stream which) const {
    const std::lock_guard lock(mutex_);
    Counts counts;
    counts.samples = streams_.CountsOf(which);
    for (const auto& [id, worker] : workers_) counts.workers += worker.linked ? 1 : 0;
    counts.lost = lost_;
    counts.up_s = static_cast<double>(spent_.up_us) / 1e6;
    counts.idle_s = static_cast<double>(spent_.idle_us) / 1e6;
    counts.tokens = spent_.tokens;
    counts.recomputed_tokens = spent_.again;
    counts.reassigned_tokens = streams_.reassigned_tokens();
    return counts;
  }

 private:
  struct Worker {
    explicit Worker(WorkerConnection its) : connection(std::move(its)) {}
    WorkerConnection connection;
    std::optional<Hello> hello;  // it was taken
    bool linked = false;
    int64_t said = 0;  // the version that it says to serve
    uint64_t said_digest = 0;
    int64_t version = 0;       // that it serves, once that was published
    std::deque<Message> held;  // that it said since, of tokens that may be that version's
    Heartbeat beat;            // its last
  };

  bool IsThere(Stream which, For what) const {
    if (what == For::kWorkers) {
      return std::count_if(workers_.begin(), workers_.end(), [](const auto& entry) {
               return entry.second.linked;
             }) >= settings_.min_workers;
    }
    return what == For::kBatch ? streams_.Ready(which) : streams_.Settled(which);
  }

  void Wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.fd(), &one, sizeof one);
    changed_.notify_all();
  }

  std::vector<int64_t> Ids() const {
    std::vector<int64_t> ids;
    for (const auto& [id, worker] : workers_) ids.push_back(id);
    return ids;
  }

  static void Say(Worker& worker, const Message& message) {
    worker.connection.Say(Encode(message));
  }

  static const std::string& NameOf(const Worker& worker) {
    return worker.hello ? worker.hello->name : worker.connection.peer();
  }

  // One that is still at an older version serves this stream with its next.
  void Enter(Stream which, int64_t id, const Worker& worker) {
    streams_.Join(which, id, worker.hello->capacity,
                  worker.version == version_ ? worker.version : 0);
  }

  // What it says to serve counts once that is published.
  void TakeVersion(int64_t id) {
    const auto found = workers_.find(id);
    if (found == workers_.end()) return;
    Worker& worker = found->second;
    if (!worker.linked || worker.said != version_ || worker.version == version_) return;
    if (worker.said_digest != digest_) {
      return GiveUp(id, Status(StatusCode::kDataLoss,
                               fmt::format("its weights of version {} have digest {:016x}, those "
                                           "that were sent {:016x}",
                                           version_, worker.said_digest, digest_)));
    }
    worker.version = version_;
    if (const Status status = streams_.Serve(id, version_); !status.ok()) return GiveUp(id, status);
    while (!worker.held.empty() && !worker.connection.closing()) {
      Message message = std::move(worker.held.front());
      worker.held.pop_front();
      if (const Status status = Hear(id, worker, std::move(message)); !status.ok())
        return GiveUp(id, status);
    }
  }

  // It is told, and its samples are free for others.
  void GiveUp(int64_t id, const Status& why) {
    const auto found = workers_.find(id);
    if (found == workers_.end() || found->second.connection.closing()) return;
    Worker& worker = found->second;
    const std::string name = NameOf(worker);
    if (worker.linked) {
      ++lost_;
      log_.Warning("rollout worker {} is given up: {}; others take its samples", name,
                   why.message());
    } else {
      log_.Warning("{} is turned away: {}", name, why.message());
    }
    streams_.Leave(id);
    Say(worker, Refused{why.code(), why.message()});
    worker.connection.Close();
    worker.hello.reset();
    worker.linked = false;
  }

  void AssignAll() {
    for (auto& [id, order] : streams_.AssignAll()) Say(workers_.at(id), std::move(order));
  }

  // 1. The thread.
  void Serve() {
    while (true) {
      std::vector<pollfd> polled = {{wake_.fd(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
      std::vector<int64_t> ids;
      {
        const std::lock_guard lock(mutex_);
        for (auto& [id, worker] : workers_) {
          polled.push_back({worker.connection.fd(), worker.connection.events(), 0});
          ids.push_back(id);
        }
        // What they say until they have heard the end must find somebody who listens.
        if (ending_ && (workers_.empty() || Clock::now() > end_by_)) return;
        if (ending_ && end_by_ == Clock::time_point::max()) end_by_ = Clock::now() + kFarewell;
      }
      poll(polled.data(), polled.size(), static_cast<int>(kTick.count()));
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t drained = read(wake_.fd(), &count, sizeof count);
      Socket arrived;
      if ((polled[1].revents & POLLIN) != 0) arrived = parallel::AcceptOne(listener_);
      const std::lock_guard lock(mutex_);
      // Nothing is thrown here where nobody would catch it: such as a prompt that cannot be read.
      // It is the run's error, which hears of it in Wait.
      const Status served = Guarded([&] {
        Take(std::move(arrived));
        for (size_t i = 0; i < ids.size(); ++i) Move(ids[i], polled[i + 2].revents);
        LookForSilence();
        if (fatal_.ok()) {
          Elapse();
          AssignAll();
        }
        return Status::Ok();
      });
      if (fatal_.ok()) fatal_ = served;
      changed_.notify_all();
    }
  }

  void LookForSilence() {
    for (const int64_t id : Ids()) {
      Worker& worker = workers_.at(id);
      const auto silence = worker.connection.silence();
      if (silence > settings_.worker_timeout) {
        GiveUp(id, Status(StatusCode::kUnavailable,
                          fmt::format("nothing was heard of it for {} s",
                                      settings_.worker_timeout.count() / 1000)));
      }
      if (worker.connection.closing() &&
          (worker.connection.all_sent() || silence > 2 * settings_.worker_timeout))
        workers_.erase(id);
    }
  }

  // Responses that take too long.
  void Elapse() {
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - then_);
    if (passed < kTick) return;
    then_ = Clock::now();
    for (const Stream which : streams_.All()) {
      const DeskStreams::Overdue overdue =
          streams_.Elapse(which, std::min(passed, kMostTick).count());
      for (const auto& [id, conclude] : overdue.ask) Say(workers_.at(id), conclude);
      for (const SampleId& id : overdue.ended) {
        log_.Warning("sample {} of position {} takes too long and ends without a score", id.sample,
                     id.position);
      }
      for (const int64_t id : overdue.stuck) {
        GiveUp(id, Status(StatusCode::kUnavailable,
                          "of a response it was asked to end nothing has come for "
                          "async_training.max_response_seconds"));
      }
    }
  }

  void Take(Socket arrived) {
    if (arrived.fd() < 0 || workers_.size() >= kMostConnections) return;
    workers_.emplace(next_id_++, WorkerConnection(std::move(arrived), settings_.secret));
  }

  void Move(int64_t id, short events) {
    const auto found = workers_.find(id);
    if (events == 0 || found == workers_.end()) return;
    Worker& worker = found->second;
    if (!worker.connection.Move(events)) return End(id);
    const Status status = Guarded([&] { return Read(id, worker); });
    if (!status.ok()) GiveUp(id, status);
  }

  // The connection is gone.
  void End(int64_t id) {
    Worker& worker = workers_.at(id);
    if (worker.linked && !ending_) {
      ++lost_;
      log_.Warning("rollout worker {} is gone; others take its samples", worker.hello->name);
    }
    streams_.Leave(id);
    workers_.erase(id);
  }

  Status Read(int64_t id, Worker& worker) {
    while (!worker.connection.closing()) {
      KEEL_ASSIGN_OR_RETURN(const std::optional<std::string> frame, worker.connection.Next());
      if (!frame) return Status::Ok();
      KEEL_ASSIGN_OR_RETURN(Message message, Decode(*frame));
      KEEL_RETURN_IF_ERROR(Hear(id, worker, std::move(message)));
    }
    return Status::Ok();
  }

  // 2. What workers say.
  Status Hear(int64_t id, Worker& worker, Message message) {
    if (auto* hello = std::get_if<Hello>(&message)) {
      if (worker.hello) return Status(StatusCode::kInvalidData, "it says hello twice");
      KEEL_RETURN_IF_ERROR(CheckFacts(*hello));
      if (hello->capacity < 1 || hello->ranks.empty())
        return Status(StatusCode::kInvalidData, "it has no room for a sample, or no rank");
      worker.hello = std::move(*hello);
      greeted_ = true;
      Say(worker, Welcome{id});
      log_.Info("rollout worker {} is there", worker.hello->name);
      CompareRounding(*worker.hello);
      return Status::Ok();
    }
    if (auto* failed = std::get_if<Failed>(&message)) {
      // What no worker of this run can do ends the run: the next one would say the same. Where
      // others have come as far as hello, what this one lacks before that is its machine's.
      const bool of_the_run =
          failed->code == StatusCode::kConfig || failed->code == StatusCode::kDataLoss;
      if (of_the_run && (worker.hello || !greeted_))
        fatal_ = Status(failed->code,
                        fmt::format("rollout worker {}: {}", NameOf(worker), failed->message));
      return Status(failed->code, failed->message);
    }
    if (const auto* join = std::get_if<Join>(&message)) {
      if (join->ranks < 1 || join->ranks > kMostRanks)
        return Status(StatusCode::kInvalidData, "it wants to be no rank, or too many");
      Say(worker, Joined{next_rank_, settings_.job});
      next_rank_ += join->ranks;
      return Status::Ok();
    }
    if (const auto* beat = std::get_if<Heartbeat>(&message)) return HearBeat(worker, *beat);
    if (std::holds_alternative<Ask>(message)) {
      Say(worker, Told{Describe().dump(-1, ' ', false, Json::error_handler_t::replace)});
      return Status::Ok();
    }
    if (!worker.linked)
      return Status(StatusCode::kInvalidData, "it speaks of samples before it has a link");
    if (const auto* serving = std::get_if<Serving>(&message)) {
      worker.said = serving->version;
      worker.said_digest = serving->digest;
      TakeVersion(id);
      return Status::Ok();
    }
    if (worker.said > version_) {
      worker.held.push_back(std::move(message));
      return Status::Ok();
    }
    if (const auto* progress = std::get_if<Progress>(&message)) return streams_.Hear(id, *progress);
    if (const auto* back = std::get_if<Back>(&message)) return streams_.Hear(id, *back);
    if (auto* done = std::get_if<Done>(&message)) return streams_.Hear(id, std::move(*done));
    return Status(StatusCode::kInvalidData, "it says what only a desk says");
  }

  Json Describe() const {
    std::map<int64_t, int64_t> samples = streams_.Held();
    Json workers = Json::array();
    for (const auto& [id, worker] : workers_) {
      if (!worker.hello || worker.connection.closing()) continue;
      const double up = std::max<double>(1, static_cast<double>(worker.beat.up_us));
      const std::chrono::duration<double> silent = worker.connection.silence();
      workers.push_back({{"name", worker.hello->name},
                         {"state", !worker.linked        ? "waits for a link"
                                   : worker.version == 0 ? "waits for weights"
                                                         : "serves"},
                         {"version", worker.version},
                         {"samples", samples[id]},
                         {"tokens", worker.beat.tokens},
                         {"idle", static_cast<double>(worker.beat.idle_us) / up},
                         {"silent_s", silent.count()}});
    }
    return {{"version", version_},
            {"digest", fmt::format("{:016x}", digest_)},
            {"streams", streams_.Describe()},
            {"workers", std::move(workers)},
            {"lost", lost_},
            {"reassigned_tokens", streams_.reassigned_tokens()}};
  }

  Status HearBeat(Worker& worker, const Heartbeat& beat) {
    const Heartbeat& last = worker.beat;
    if (beat.up_us < last.up_us || beat.idle_us < last.idle_us || beat.tokens < last.tokens ||
        beat.again < last.again || beat.idle_us > beat.up_us)
      return Status(StatusCode::kInvalidData, "its clock goes backwards");
    spent_.up_us += beat.up_us - last.up_us;
    spent_.idle_us += beat.idle_us - last.idle_us;
    spent_.tokens += beat.tokens - last.tokens;
    spent_.again += beat.again - last.again;
    worker.beat = beat;
    return Status::Ok();
  }

  Status CheckFacts(const Hello& hello) const {
    for (const auto& [name, value] : settings_.facts) {
      const auto theirs = hello.facts.find(name);
      if (theirs != hello.facts.end() && theirs->second == value) continue;
      return Status(StatusCode::kConfig,
                    fmt::format("it is not of this run: {} is {} there and {} here", name,
                                theirs == hello.facts.end() ? "nothing" : theirs->second, value));
    }
    return Status::Ok();
  }

  void CompareRounding(const Hello& hello) {
    for (const auto& [name, value] : settings_.rounding) {
      const auto theirs = hello.facts.find(name);
      if (theirs == hello.facts.end() || theirs->second == value) continue;
      log_.Warning(
          "the ranks round in different ways: last bits are not those of one machine's: {} is {} "
          "on rollout worker {} and {} on the ranks that train",
          name, theirs->second, hello.name, value);
    }
  }

  const DeskSettings settings_;
  Logger& log_;
  Socket listener_, wake_;
  std::thread thread_;
  mutable std::mutex mutex_;  // guards all that follows
  std::condition_variable changed_;
  std::map<int64_t, Worker> workers_;  // by connection
  int64_t next_id_ = 1;
  int64_t next_rank_;
  DeskStreams streams_;
  int64_t version_ = 0;  // the newest that was published
  uint64_t digest_ = 0;
  int64_t lost_ = 0;
  bool greeted_ = false;                   // a worker has said hello, and was taken
  Heartbeat spent_;                        // by all workers
  Clock::time_point then_ = Clock::now();  // of the last Elapse
  Status fatal_;
  mutable Clock::time_point alone_since_ = Clock::now();
  bool finished_ = false;  // the run
  bool ending_ = false;
  Clock::time_point end_by_ = Clock::time_point::max();
};

Desk::Desk(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Desk::~Desk() = default;

Result<std::unique_ptr<Desk>> Desk::Start(DeskSettings settings, Logger& log) {
  KEEL_ASSIGN_OR_RETURN(Socket listener, parallel::Listen(settings.host, settings.port));
  const int flags = fcntl(listener.fd(), F_GETFL);
  Socket wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.fd() < 0 || flags < 0 || fcntl(listener.fd(), F_SETFL, flags | O_NONBLOCK) != 0)
    return Status::FromErrno(errno, "listening of", "the desk");
  auto impl =
      std::make_unique<Impl>(std::move(settings), log, std::move(listener), std::move(wake));
  impl->Start();
  return std::unique_ptr<Desk>(new Desk(std::move(impl)));
}

int Desk::port() const { return impl_->port(); }
Status Desk::Open(Stream stream, StreamOptions options, Ledger ledger) {
  return impl_->Open(stream, std::move(options), std::move(ledger));
}
void Desk::Close(Stream stream) { impl_->Close(stream); }
bool Desk::Has(Stream stream) const { return impl_->Has(stream); }
Desk::Batch Desk::Take(Stream stream) { return impl_->Take(stream); }
void Desk::More(Stream stream) { impl_->More(stream); }
void Desk::Finish() { impl_->Finish(); }
Ledger Desk::LedgerOf(Stream stream) const { return impl_->LedgerOf(stream); }
std::vector<Desk::Newcomer> Desk::Newcomers() const { return impl_->Newcomers(); }
std::vector<int64_t> Desk::Linked() const { return impl_->Linked(); }
bool Desk::IsThere(int64_t worker) const { return impl_->IsThere(worker); }
void Desk::TellLink(int64_t worker, const LinkUp& link) { impl_->TellLink(worker, link); }
void Desk::TellPush(int64_t worker, int64_t version) { impl_->TellPush(worker, version); }
void Desk::Drop(int64_t worker, const std::string& why) { impl_->Drop(worker, why); }
Desk::StepCounts Desk::Steps() const { return impl_->Steps(); }
Status Desk::Publish(int64_t version, uint64_t digest, const StepCounts& steps) {
  return impl_->Publish(version, digest, steps);
}
Desk::Event Desk::Wait(Stream stream, For what, std::chrono::milliseconds patience) {
  return impl_->Wait(stream, what, patience);
}
std::chrono::milliseconds Desk::alone() const { return impl_->alone(); }
Desk::Counts Desk::counts(Stream stream) const { return impl_->counts(stream); }

}  // namespace keel::trainer::desk
