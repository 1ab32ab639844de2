#include "bench/scale_peers.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/format/contents.h"
#include "checkpoint/save/commit_protocol.h"
#include "checkpoint/save/save_messages.h"
#include "checkpoint/save/save_planner.h"
#include "common/clock.h"
#include "common/files/file_system.h"
#include "parallel/store/store_server.h"

namespace keel::bench {
namespace {

using checkpoint::CommitProtocol;
using checkpoint::Message;

constexpr std::chrono::milliseconds kPeersPatience{600'000};
constexpr size_t kStack = size_t{256} << 10;
constexpr int64_t kChunk = int64_t{4} << 20;

// Stacks of all peers; only what is touched takes memory.
class Stacks {
 public:
  explicit Stacks(size_t count) : bytes_(count * kStack) {
    void* const at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw Error(StatusCode::kExhausted, "no memory for the peers' stacks");
    base_ = static_cast<char*>(at);
  }
  ~Stacks() { munmap(base_, bytes_); }
  char* of(size_t i) const { return base_ + i * kStack; }

 private:
  size_t bytes_;
  char* base_ = nullptr;
};

class Peer final : public StoreCoordinator {
 public:
  Peer(parallel::StoreClient& store, FileSystem& fs, const ScaleState& state, int rank,
       const ScalePeersOptions& options, char* stack)
      : StoreCoordinator(store, rank, options.ranks),
        fs_(fs),
        state_(state),
        saves_(options.saves) {
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack;
    own_.uc_stack.ss_size = kStack;
    own_.uc_link = &caller_;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&own_, reinterpret_cast<void (*)()>(&Peer::Enter), 2,
                static_cast<unsigned int>(self >> 32), static_cast<unsigned int>(self));
  }

  // Until it waits again. What it waits for is there, or it has not begun.
  void Resume() { swapcontext(&caller_, &own_); }
  bool ended() const { return ended_; }
  const std::string& awaits() const { return awaits_; }
  const Status& status() const { return status_; }

 private:
  static void Enter(unsigned int high, unsigned int low) {
    Peer* const self = reinterpret_cast<Peer*>((uintptr_t{high} << 32) | low);
    try {
      self->status_ = self->Live();
    } catch (const std::exception& error) {
      self->status_ = Status(StatusCode::kInternal, error.what());
    }
    self->ended_ = true;
  }

  Status Await(const std::string& key, std::chrono::milliseconds /*deadline*/) override {
    awaits_ = key;
    swapcontext(&own_, &caller_);
    return Status::Ok();
  }

  Status Live() {
    const checkpoint::RoleState role = state_.Of(rank());
    const std::span<const checkpoint::RoleState> roles(&role, 1);
    checkpoint::SavePlanner planner(*this, kChunk);
    for (int save = 0; save < saves_; ++save) {
      const std::string tag = SaveTag(save);
      KEEL_ASSIGN_OR_RETURN(const auto plan,
                            planner.Plan(tag, roles, checkpoint::Contents(), kPeersPatience));
      KEEL_RETURN_IF_ERROR(Follow(tag, *plan));
    }
    return Status::Ok();
  }

  // The real protocol, as checkpoint/save/saver.cc performs it.
  Status Follow(const std::string& tag, const checkpoint::SavePlan& plan) {
    CommitProtocol protocol(rank(), world());
    CommitProtocol::Event event;
    Status outcome;
    while (!protocol.finished()) {
      for (const CommitProtocol::Action& action : protocol.On(event)) {
        const auto key = [&](int from, int to) {
          return fmt::format("{}/{}/{}-{}", tag, checkpoint::MessageName(action.message), from, to);
        };
        switch (action.kind) {
          case CommitProtocol::Action::Kind::kSend:
            KEEL_RETURN_IF_ERROR(Put(key(rank(), action.peer),
                                     checkpoint::EncodeResult(action.status, action.payload)));
            break;
          case CommitProtocol::Action::Kind::kReceive: {
            KEEL_ASSIGN_OR_RETURN(const std::string text,
                                  Get(key(action.peer, rank()), kPeersPatience));
            (void)Delete(key(action.peer, rank()));
            event = Answer(CommitProtocol::Event::Kind::kReceived,
                           checkpoint::DecodeResult(text, "message"));
            break;
          }
          case CommitProtocol::Action::Kind::kWrite:
            event = Answer(CommitProtocol::Event::Kind::kWritten, Write(plan, action.payload));
            break;
          default:
            outcome = action.status;
        }
      }
    }
    return outcome;
  }

  static CommitProtocol::Event Answer(CommitProtocol::Event::Kind kind,
                                      Result<std::string> result) {
    return {kind, result.status(), result.ok() ? std::move(result).value() : std::string()};
  }

  // Files with nothing in them, and a report with digests of nothing.
  Result<std::string> Write(const checkpoint::SavePlan& plan, const std::string& text) {
    KEEL_ASSIGN_OR_RETURN(const auto order, checkpoint::SaveOrder::Decode(text));
    checkpoint::SaveReport report;
    for (const checkpoint::PlannedFile& file : plan.files) {
      KEEL_ASSIGN_OR_RETURN(const auto made,
                            fs_.Create(fmt::format("{}/{}", order.temporary, file.path), {}));
      KEEL_RETURN_IF_ERROR(made->Truncate(file.size));
      KEEL_RETURN_IF_ERROR(made->Close());
      checkpoint::ChunkedDigest digest;
      digest.size = file.size;
      digest.chunks.resize(static_cast<size_t>((file.size + kChunk - 1) / kChunk));
      report.record.bytes += file.size;
      report.files.emplace_back(file.path, std::move(digest));
    }
    return report.Encode();
  }

  FileSystem& fs_;
  const ScaleState& state_;
  const int saves_;
  ucontext_t own_{}, caller_{};
  std::string awaits_;
  bool ended_ = false;
  Status status_;
};

}  // namespace

std::string SaveTag(int save) { return fmt::format("s{}", save); }

Status StoreCoordinator::Put(std::string_view key, std::string_view value) {
  ++traffic_.messages;
  traffic_.sent += static_cast<int64_t>(key.size() + value.size());
  return store_.Set(key, value);
}

Result<std::string> StoreCoordinator::Get(std::string_view key,
                                          std::chrono::milliseconds deadline) {
  const std::string name(key);
  for (bool waited = false;; waited = true) {
    ++traffic_.messages;
    traffic_.sent += static_cast<int64_t>(key.size());
    KEEL_ASSIGN_OR_RETURN(std::optional<std::string> value, store_.TryGet(name));
    if (value) {
      traffic_.received += static_cast<int64_t>(value->size());
      return *std::move(value);
    }
    if (waited || deadline.count() == 0) {
      return Status(StatusCode::kDeadlineExceeded,
                    fmt::format("{} did not appear within {} ms", key, deadline.count()));
    }
    ++traffic_.messages;
    const Stopwatch watch;
    const Status status = Await(name, deadline);
    waited_s_ += watch.Elapsed();
    if (!status.ok() && status.code() != StatusCode::kDeadlineExceeded) return status;
  }
}

Status StoreCoordinator::Delete(std::string_view key) {
  ++traffic_.messages;
  traffic_.sent += static_cast<int64_t>(key.size());
  return store_.Delete(key).status();
}

Result<std::vector<std::optional<std::string>>> StoreCoordinator::Look(
    const std::vector<std::string>& keys, std::chrono::milliseconds patience) {
  if (patience.count() > 0) {
    CountTrips(keys);
    const Stopwatch watch;
    const Status status = store_.Wait(keys, patience);
    waited_s_ += watch.Elapsed();
    if (!status.ok() && status.code() != StatusCode::kDeadlineExceeded) return status;
  }
  CountTrips(keys);
  KEEL_ASSIGN_OR_RETURN(auto values, store_.TryGetAll(keys));
  for (const auto& value : values)
    traffic_.received += value ? static_cast<int64_t>(value->size()) : 0;
  return values;
}

Status StoreCoordinator::PutAll(const std::vector<std::string>& keys,
                                const std::vector<std::string>& values) {
  CountTrips(keys);
  for (const std::string& value : values) traffic_.sent += static_cast<int64_t>(value.size());
  constexpr size_t kPart = parallel::StoreClient::kMostAtOnce;
  for (size_t begin = 0; begin < keys.size(); begin += kPart) {
    const auto part = [&](const std::vector<std::string>& of) {
      const auto first = of.begin() + static_cast<std::ptrdiff_t>(begin);
      return std::vector<std::string>(
          first, first + static_cast<std::ptrdiff_t>(std::min(kPart, of.size() - begin)));
    };
    KEEL_RETURN_IF_ERROR(store_.MultiSet(part(keys), part(values)));
  }
  return Status::Ok();
}

Status StoreCoordinator::DeleteAll(const std::vector<std::string>& keys) {
  CountTrips(keys);
  return store_.DeleteAll(keys);
}

void StoreCoordinator::CountTrips(const std::vector<std::string>& keys) {
  constexpr size_t kPart = parallel::StoreClient::kMostAtOnce;
  traffic_.messages += static_cast<int64_t>((keys.size() + kPart - 1) / kPart);
  for (const std::string& key : keys) traffic_.sent += static_cast<int64_t>(key.size());
}

Status StoreCoordinator::Await(const std::string& key, std::chrono::milliseconds deadline) {
  return store_.Wait({key}, deadline);
}

void RunScalePeers(const ScalePeersOptions& options, const std::function<void(int port)>& told) {
  parallel::StoreServerOptions serving;
  serving.host = "127.0.0.1";
  const auto server = ValueOrThrow(parallel::StoreServer::Start(std::move(serving)));
  told(server.port());
  const auto store = ValueOrThrow(parallel::StoreClient::Connect({"127.0.0.1", server.port(), ""},
                                                                 kPeersPatience, kPeersPatience));
  const auto fs = ValueOrThrow(OpenPosixFileSystem(options.directory, false));
  const ScaleState state(ScaleJob::Of(options.ranks));
  const auto count = static_cast<size_t>(options.ranks - 1);
  const Stacks stacks(count);
  std::vector<std::unique_ptr<Peer>> peers;
  for (size_t p = 0; p < count; ++p) {
    peers.push_back(
        std::make_unique<Peer>(*store, *fs, state, static_cast<int>(p) + 1, options, stacks.of(p)));
    peers.back()->Resume();
  }
  ThrowIfError(store->Set(kPeersAreReady, "1"));
  for (bool any = true; any;) {
    any = false;
    for (const auto& peer : peers) {
      if (peer->ended()) continue;
      ThrowIfError(store->Wait({peer->awaits()}, kPeersPatience));
      peer->Resume();
      any = true;
    }
  }
  Traffic all;
  for (const auto& peer : peers) {
    if (!peer->status().ok()) throw Error(peer->status().code(), peer->status().message());
    all.messages += peer->traffic().messages;
    all.sent += peer->traffic().sent;
    all.received += peer->traffic().received;
  }
  const Json json = {{"messages", all.messages}, {"sent", all.sent}, {"received", all.received}};
  ThrowIfError(store->Set(kPeersAreDone, json.dump()));
  ThrowIfError(store->Wait({"bench/end"}, kPeersPatience));
}

}  // namespace keel::bench
