// keel launch: torchrun's flags; what follows them is a keel command, or any program after "--".

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "tools/command.h"
#include "tools/launch/job_link.h"
#include "tools/launch/launch_flags.h"
#include "tools/launch/launcher.h"
#ifdef KEEL_WITH_TORCH
#include "parallel/store.h"
#include "parallel/store_server.h"
#endif

namespace keel::tools {

namespace {

#ifdef KEEL_WITH_TORCH
constexpr std::chrono::milliseconds kConnectDeadline{2'000};

class TorchStoreHost final : public StoreHost {
 public:
  explicit TorchStoreHost(parallel::StoreServer server) : server_(std::move(server)) {}
  int port() const override { return server_.port(); }

 private:
  parallel::StoreServer server_;
};

class TorchJobStore final : public JobStore {
 public:
  explicit TorchJobStore(parallel::Store store) : store_(std::move(store)) {}
  Status Set(const std::string& key, const std::string& value) override {
    return store_.Set(key, value);
  }
  Result<std::optional<std::string>> TryGet(const std::string& key) override {
    auto value = store_.Get(key, std::chrono::milliseconds(0));
    if (value.ok()) return std::optional<std::string>(std::move(value).value());
    if (value.status().code() == StatusCode::kDeadlineExceeded) return std::optional<std::string>();
    return value.status();
  }
  Result<int64_t> Add(const std::string& key, int64_t amount) override {
    return store_.Add(key, amount);
  }

 private:
  parallel::Store store_;
};

StoreAccess TorchStoreAccess() {
  parallel::SilenceStoreWarnings();
  StoreAccess access;
  access.serve = [](const std::string& host, int port) -> Result<std::unique_ptr<StoreHost>> {
    KEEL_ASSIGN_OR_RETURN(auto server, parallel::StoreServer::Start(host, port));
    return std::unique_ptr<StoreHost>(std::make_unique<TorchStoreHost>(std::move(server)));
  };
  access.connect = [](const std::string& host, int port,
                      const std::string& run_id) -> Result<std::unique_ptr<JobStore>> {
    parallel::LaunchEnv env;
    env.master_addr = host;
    env.master_port = port;
    env.agent_store = true;
    env.run_id = run_id;
    KEEL_ASSIGN_OR_RETURN(const auto store, parallel::Store::Connect(env, kConnectDeadline));
    return std::unique_ptr<JobStore>(std::make_unique<TorchJobStore>(store.WithPrefix("launch")));
  };
  return access;
}
#else
StoreAccess TorchStoreAccess() {
  StoreAccess access;
  access.serve = [](const std::string&, int) -> Result<std::unique_ptr<StoreHost>> {
    return Status(StatusCode::kUnavailable, "this build has no torch, and so no store to host");
  };
  access.connect = [](const std::string&, int,
                      const std::string&) -> Result<std::unique_ptr<JobStore>> {
    return Status(StatusCode::kUnavailable, "this build has no torch, and so no store to reach");
  };
  return access;
}
#endif

std::string SelfPath() {
  std::array<char, 4096> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return std::string(path.data(), size > 0 ? static_cast<size_t>(size) : 0);
}

std::string Footer() {
  return LaunchFlagHelp() +
         "Examples:\n"
         "  keel launch --nproc-per-node 4 train configs/quickstart.yaml\n"
         "  keel launch --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --nproc-per-node 8 train "
         "run.yaml\n"
         "  keel launch --nproc-per-node 2 --log-dir logs -- ./program argument";
}

}  // namespace

void AddLaunchCommand(CLI::App& app, CommandContext& context) {
  CLI::App* launch =
      app.add_subcommand("launch", "Start a command on several ranks, as torchrun does");
  launch->footer(Footer());
  launch->callback([&context] {
    // After "keel launch".
    const std::vector<std::string> arguments(context.arguments.begin() + 2,
                                             context.arguments.end());
    const LaunchOptions options =
        ValueOrThrow(ParseLaunchFlags(arguments, SelfPath(), parallel::ProcessEnvironment()));
    context.exit_code = ValueOrThrow(Launch(options, TorchStoreAccess()));
  });
}

}  // namespace keel::tools
