#include "parallel/store/store.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "common/process/signal_handler.h"
#include "parallel/store/sockets.h"
#include "parallel/store/store_adapter.h"
#include "parallel/store/store_client.h"
#include "parallel/store/store_impl.h"

namespace keel::parallel {

namespace {

// Of a wait at a time over c10d's own client, which lets nobody else call meanwhile.
constexpr std::chrono::milliseconds kSlice(50);

std::vector<uint8_t> Bytes(std::string_view text) { return {text.begin(), text.end()}; }

// The first line of a c10 error; the rest is a backtrace.
std::string Brief(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// The store that torchrun's agent serves, which is c10d's own.
c10::intrusive_ptr<c10d::Store> JoinAgent(const LaunchEnv& env,
                                          std::chrono::milliseconds deadline) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(env.master_port);
  options.waitWorkers = false;
  options.timeout = deadline;
  return c10::make_intrusive<c10d::TCPStore>(env.master_addr, options);
}

// A c10d::Store of one of Keel's servers. Throws keel::Error.
c10::intrusive_ptr<c10d::Store> JoinKeel(const StoreAddress& address,
                                         std::chrono::milliseconds deadline) {
  return c10::make_intrusive<StoreAdapter>(
      ValueOrThrow(StoreClient::Connect(address, deadline, deadline)), deadline);
}

}  // namespace

Result<Store> Store::Connect(const LaunchEnv& env, std::chrono::milliseconds deadline) {
  if (env.master_addr.empty()) {
    if (env.world_size == 1) return InProcess();
    return Status(StatusCode::kUsage,
                  fmt::format("{} ranks without MASTER_ADDR: set MASTER_ADDR and MASTER_PORT, or "
                              "start with keel launch or torchrun",
                              env.world_size));
  }
  IgnoreBrokenPipes();
  StoreAddress address{env.master_addr, env.master_port, env.job_secret};
  try {
    auto impl = std::make_shared<Impl>();
    if (env.store_host == StoreHost::kRankZero && env.rank == 0) {
      StoreServerOptions options;
      options.host = WhereToListen(env.master_addr, false);
      options.port = env.master_port;
      options.secret = env.job_secret;
      impl->server =
          std::make_shared<StoreServer>(ValueOrThrow(StoreServer::Start(std::move(options))));
      address.port = impl->server->port();
    }
    const bool agent = env.store_host == StoreHost::kAgent;
    const auto store = agent ? JoinAgent(env, deadline) : JoinKeel(address, deadline);
    if (agent) impl->longest_wait = kSlice;
    // A server may outlive an attempt (torchrun's static rendezvous), so attempts get their own
    // keys.
    const std::string prefix = fmt::format("{}/attempt_{}", env.run_id, env.restart_count);
    impl->store = c10::make_intrusive<c10d::PrefixStore>(prefix, store);
    impl->prefix = prefix + "/";
    impl->address = address.ToString();
    return Store(std::move(impl));
  } catch (const std::exception& error) {
    const auto* const known = dynamic_cast<const Error*>(&error);
    // c10d's message does not say it.
    const Status name = CheckResolves(env.master_addr);
    const std::string why = !name.ok() ? name.message()
                            : known    ? known->status().message()
                                       : Brief(error);
    return Status(known != nullptr ? known->status().code() : StatusCode::kUnavailable,
                  fmt::format("rank {}: no connection to the store at {}: {}; check that rank 0's "
                              "launcher runs and that "
                              "MASTER_ADDR and MASTER_PORT name it",
                              env.rank, address.ToString(), why));
  }
}

Store Store::InProcess() {
  auto impl = std::make_shared<Impl>();
  impl->store = c10::make_intrusive<c10d::HashStore>();
  impl->address = "in process";
  return Store(std::move(impl));
}

Store Store::WithPrefix(std::string_view prefix) const {
  auto impl = std::make_shared<Impl>();
  impl->store = c10::make_intrusive<c10d::PrefixStore>(std::string(prefix), impl_->store);
  impl->prefix = fmt::format("{}{}/", impl_->prefix, prefix);
  impl->longest_wait = impl_->longest_wait;
  impl->address = impl_->address;
  impl->server = impl_->server;
  return Store(std::move(impl));
}

Status Store::Set(std::string_view key, std::string_view value) const {
  try {
    impl_->store->set(std::string(key), Bytes(value));
    return Status::Ok();
  } catch (const std::exception& error) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("store {}: set {}: {}", impl_->address, key, Brief(error)));
  }
}

// Keel's own client below the prefixes; null over a store of c10d's.
StoreClient* Store::Impl::Client() const {
  c10::intrusive_ptr<c10d::Store> below = store;
  if (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(below.get()))
    below = prefixed->getUnderlyingNonPrefixStore();
  auto* const adapter = dynamic_cast<StoreAdapter*>(below.get());
  return adapter == nullptr ? nullptr : &adapter->client();  // which `store` keeps
}

std::vector<std::string> Store::Impl::WithPrefix(const std::vector<std::string>& keys) const {
  std::vector<std::string> names;
  for (const std::string& key : keys) names.push_back(prefix + key);
  return names;
}

Result<std::vector<std::optional<std::string>>> Store::Look(
    const std::vector<std::string>& keys, std::chrono::milliseconds patience) const {
  StoreClient* const client = impl_->Client();
  if (client == nullptr) return std::vector<std::optional<std::string>>();
  auto found = client->Look(impl_->WithPrefix(keys), patience);
  if (found.ok()) return found;
  return found.status().WithContext(
      fmt::format("store {}: get {} keys", impl_->address, keys.size()));
}

Status Store::SetAll(const std::vector<std::string>& keys,
                     const std::vector<std::string>& values) const {
  StoreClient* const client = impl_->Client();
  for (size_t begin = 0; begin < keys.size();) {
    if (client == nullptr) {
      KEEL_RETURN_IF_ERROR(Set(keys[begin], values[begin]));
      ++begin;
      continue;
    }
    const size_t end = std::min(keys.size(), begin + StoreClient::kMostAtOnce);
    const auto part = [&](const std::vector<std::string>& of) {
      return std::vector<std::string>(of.begin() + static_cast<std::ptrdiff_t>(begin),
                                      of.begin() + static_cast<std::ptrdiff_t>(end));
    };
    KEEL_RETURN_IF_ERROR(
        client->MultiSet(impl_->WithPrefix(part(keys)), part(values))
            .WithContext(fmt::format("store {}: set {} keys", impl_->address, end - begin)));
    begin = end;
  }
  return Status::Ok();
}

Status Store::DeleteAll(const std::vector<std::string>& keys) const {
  if (StoreClient* const client = impl_->Client()) {
    return client->DeleteAll(impl_->WithPrefix(keys))
        .WithContext(fmt::format("store {}: delete {} keys", impl_->address, keys.size()));
  }
  for (const std::string& key : keys) KEEL_RETURN_IF_ERROR(Delete(key));
  return Status::Ok();
}

Result<Store> Store::Clone() const {
  try {
    auto impl = std::make_shared<Impl>();
    impl->store = impl_->store->clone();
    impl->prefix = impl_->prefix;
    impl->longest_wait = impl_->longest_wait;
    impl->address = impl_->address;
    impl->server = impl_->server;
    return Store(std::move(impl));
  } catch (const std::exception& error) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("store {}: second connection: {}", impl_->address, Brief(error)));
  }
}

Result<std::string> Store::Get(std::string_view key, std::chrono::milliseconds deadline) const {
  const std::string name(key);
  const auto start = std::chrono::steady_clock::now();
  try {
    for (;;) {
      // One trip, where check and get would be three: what is there, or what was expected, since
      // nothing is. Neither changes anything.
      const std::vector<uint8_t> nothing = Bytes(kNoValue);
      const std::vector<uint8_t> value = impl_->store->compareSet(name, nothing, nothing);
      if (value != nothing) return std::string(value.begin(), value.end());
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - (std::chrono::steady_clock::now() - start));
      if (left.count() <= 0) {
        return Status(StatusCode::kDeadlineExceeded,
                      fmt::format("store {}: key {} did not appear within {} ms", impl_->address,
                                  key, deadline.count()));
      }
      // The server answers when the key is set.
      try {
        impl_->store->wait({name}, std::min(left, impl_->longest_wait));
      } catch (const c10::DistStoreError&) {  // it is over, or the next look says what it is
      }
    }
  } catch (const std::exception& error) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("store {}: get {}: {}", impl_->address, key, Brief(error)));
  }
}

Result<int64_t> Store::Add(std::string_view key, int64_t amount) const {
  try {
    return impl_->store->add(std::string(key), amount);
  } catch (const std::exception& error) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("store {}: add {}: {}", impl_->address, key, Brief(error)));
  }
}

Status Store::Delete(std::string_view key) const {
  try {
    impl_->store->deleteKey(std::string(key));
    return Status::Ok();
  } catch (const std::exception& error) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("store {}: delete {}: {}", impl_->address, key, Brief(error)));
  }
}

void SilenceStoreWarnings() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr) return;
  constexpr int kFatal = 3;
  FLAGS_caffe2_log_level = kFatal;
  c10::UpdateLoggingLevelsFromFlags();
}

}  // namespace keel::parallel
