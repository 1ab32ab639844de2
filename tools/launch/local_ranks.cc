#include "tools/launch/local_ranks.h"

#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "common/process/shared_module.h"

namespace keel::tools {

namespace {

constexpr std::chrono::milliseconds kLeaving{30'000};

// So that nobody else of this machine takes part.
std::string Secret() {
  std::random_device entropy;
  std::string secret;
  for (int i = 0; i < 8; ++i) secret += fmt::format("{:08x}", entropy());
  return secret;
}

// Cores are shared out, unless the user has said how.
std::string ThreadsOfEach(int64_t ranks) {
  const int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  return std::to_string(std::max<int64_t>(1, cores / ranks));
}

}  // namespace

Result<LocalRanks> LocalRanks::Start(int64_t tp, const std::vector<std::string>& arguments) {
  LocalRanks ranks;
  const auto lookup = parallel::ProcessEnvironment();
  KEEL_ASSIGN_OR_RETURN(ranks.env_, parallel::DetectLaunchEnv(lookup));
  if (ranks.env_.launcher != parallel::Launcher::kNone) {
    if (tp == 0 || tp == ranks.env_.world_size) return ranks;
    return Status(StatusCode::kUsage,
                  fmt::format("--tp {}: {} has started {} ranks, which all share the model: leave "
                              "--tp out, or start as many",
                              tp, NameOf(ranks.env_.launcher), ranks.env_.world_size));
  }
  if (tp <= 1) return ranks;

  parallel::StoreServerOptions store;
  store.host = "127.0.0.1";
  store.secret = Secret();
  ranks.env_.world_size = ranks.env_.local_world_size = static_cast<int>(tp);
  ranks.env_.master_addr = store.host;
  ranks.env_.job_secret = store.secret;
  ranks.env_.store_host = parallel::StoreHost::kLauncher;
  KEEL_ASSIGN_OR_RETURN(auto server, parallel::StoreServer::Start(std::move(store)));
  ranks.server_ = std::make_unique<parallel::StoreServer>(std::move(server));
  ranks.env_.master_port = ranks.server_->port();
  if (!lookup("OMP_NUM_THREADS")) ::setenv("OMP_NUM_THREADS", ThreadsOfEach(tp).c_str(), 0);

  ChildSpec spec;
  spec.command = arguments;
  spec.command[0] = ProgramPath();
  const std::string port = std::to_string(ranks.env_.master_port);
  spec.environment = {{"WORLD_SIZE", std::to_string(tp)},
                      {"LOCAL_WORLD_SIZE", std::to_string(tp)},
                      {"MASTER_ADDR", ranks.env_.master_addr},
                      {"MASTER_PORT", port},
                      {"KEEL_STORE", fmt::format("{}:{}", ranks.env_.master_addr, port)},
                      {"KEEL_JOB_SECRET", ranks.env_.job_secret}};
  for (int rank = 1; rank < tp; ++rank) {
    spec.environment["RANK"] = spec.environment["LOCAL_RANK"] = std::to_string(rank);
    spec.prefix = fmt::format("[rank{}]: ", rank);
    KEEL_ASSIGN_OR_RETURN(Child child, Child::Start(spec));
    ranks.others_.push_back(std::make_unique<Child>(std::move(child)));
  }
  return ranks;
}

LocalRanks::~LocalRanks() {
  for (const auto& child : others_) {
    if (child->ended) continue;
    child->Signal(SIGKILL);
    while (!child->Reap()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void LocalRanks::ShowOutput() {
  for (const auto& child : others_) {
    child->Drain();
    child->Flush();
  }
}

void LocalRanks::Run(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    const StatusCode code = error.status().code();
    if (code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded) ShowOutput();
    throw;
  }
  Wait();
}

void LocalRanks::Wait() {
  const auto end = std::chrono::steady_clock::now() + kLeaving;
  for (const auto& child : others_) {
    while (!child->ended && !child->Reap()) {
      if (std::chrono::steady_clock::now() > end) return;  // its work is done: it is killed
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (child->wait_status == 0) continue;
    ShowOutput();
    throw Error(StatusCode::kUnavailable, "another rank of --tp failed at its end: see above");
  }
}

}  // namespace keel::tools
