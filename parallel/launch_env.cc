#include "parallel/launch_env.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <utility>

namespace keel::parallel {

namespace {

// Reads integers and remembers the first that is none.
class Reader {
 public:
  explicit Reader(const EnvLookup& env) : env_(env) {}

  std::string Text(const std::string& name) { return env_(name).value_or(""); }
  bool Has(const std::string& name) { return env_(name).has_value(); }
  int Int(std::initializer_list<const char*> names, int fallback) {
    for (const char* name : names) {
      const auto text = env_(name);
      if (!text) continue;
      int value = 0;
      const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
      if (error != std::errc() || end != text->data() + text->size() || value < 0) {
        if (status_.ok()) {
          status_ =
              Status(StatusCode::kUsage,
                     fmt::format("environment variable {}=\"{}\": expected a number, 0 or more",
                                 name, *text));
        }
        return fallback;
      }
      return value;
    }
    return fallback;
  }
  const Status& status() const { return status_; }

 private:
  const EnvLookup& env_;
  Status status_;
};

// A shell's variable, of which nonsense is no reason to end.
int Columns(const std::string& text) {
  int columns = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), columns);
  return error == std::errc() && end == text.data() + text.size() && columns > 0 ? columns : 0;
}

// The first host of "node[001-004,7],other" or "rack[1-2]n[3-4]".
std::string FirstHost(const std::string& list) {
  std::string host;
  for (size_t at = 0; at < list.size() && list[at] != ',';) {
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    const size_t first = std::min(list.size(), list.find_first_of("-,]", at));
    host += list.substr(at + 1, first - at - 1);
    const size_t close = list.find(']', first);
    at = close == std::string::npos ? list.size() : close + 1;
  }
  return host;
}

}  // namespace

EnvLookup ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

Result<std::string> JobSecret(const EnvLookup& env) {
  constexpr size_t kShortest = 16;
  std::string secret = env("KEEL_JOB_SECRET").value_or("");
  if (!secret.empty() && secret.size() < kShortest) {
    return Status(StatusCode::kUsage,
                  fmt::format("KEEL_JOB_SECRET has {} characters: expected {} or more, such as of "
                              "`openssl rand -hex 32`, or none",
                              secret.size(), kShortest));
  }
  return secret;
}

namespace {

// torchrun's variables, which are keel launch's, too.
void ReadTorchrun(Reader& env, LaunchEnv& e) {
  e.launcher = env.Has("KEEL_STATUS_FILE") ? Launcher::kKeelLaunch : Launcher::kTorchrun;
  e.rank = env.Int({"RANK"}, 0);
  e.world_size = env.Int({"WORLD_SIZE"}, 1);
  e.local_rank = env.Int({"LOCAL_RANK"}, e.rank);
  e.local_world_size = env.Int({"LOCAL_WORLD_SIZE"}, e.world_size);
  e.node_rank = env.Int({"GROUP_RANK"}, 0);
  e.restart_count = env.Int({"TORCHELASTIC_RESTART_COUNT"}, 0);
  if (e.launcher == Launcher::kKeelLaunch) e.trainers = env.Int({"KEEL_TRAINERS"}, 0);
  if (env.Has("KEEL_JOB_START")) e.job_start = std::chrono::seconds(env.Int({"KEEL_JOB_START"}, 0));
  if (env.Has("TORCHELASTIC_RUN_ID")) e.run_id = env.Text("TORCHELASTIC_RUN_ID");
  if (env.Text("TORCHELASTIC_USE_AGENT_STORE") == "True") e.store_host = StoreHost::kAgent;
}

void ReadMpi(Reader& env, LaunchEnv& e) {
  e.launcher = Launcher::kMpi;
  e.rank = env.Int({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"}, 0);
  e.world_size = env.Int({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"}, 1);
  e.local_rank = env.Int(
      {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK"}, e.rank);
  e.local_world_size = env.Int(
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"}, e.world_size);
  // All ranks on one host need no address.
  if (e.local_world_size == e.world_size) e.master_addr = "127.0.0.1";
  e.master_port = 29500;
}

// A task of srun.
void ReadSlurm(Reader& env, LaunchEnv& e) {
  e.launcher = Launcher::kSlurm;
  e.rank = env.Int({"SLURM_PROCID"}, 0);
  e.world_size = env.Int({"SLURM_STEP_NUM_TASKS"}, 1);
  e.local_rank = env.Int({"SLURM_LOCALID"}, 0);
  e.node_rank = env.Int({"SLURM_NODEID"}, 0);
  // "4(x2),3" counts tasks on each node; ours is not worth decoding beyond the common uniform
  // case.
  const std::string per_node = env.Text("SLURM_STEP_TASKS_PER_NODE").empty()
                                   ? env.Text("SLURM_TASKS_PER_NODE")
                                   : env.Text("SLURM_STEP_TASKS_PER_NODE");
  e.local_world_size = per_node.empty() ? e.world_size : std::atoi(per_node.c_str());
  const std::string nodes = env.Text("SLURM_STEP_NODELIST").empty()
                                ? env.Text("SLURM_NODELIST")
                                : env.Text("SLURM_STEP_NODELIST");
  // All ranks on one host need no name.
  const bool one_node = !per_node.empty() && e.local_world_size == e.world_size;
  e.master_addr = nodes.empty() || one_node ? "127.0.0.1" : FirstHost(nodes);
  e.run_id = env.Has("SLURM_JOB_ID") ? env.Text("SLURM_JOB_ID") : e.run_id;
  e.master_port = 61440 + env.Int({"SLURM_JOB_ID"}, 0) % 4096;
  e.restart_count = std::exchange(e.requeue_count, 0);
}

// The rank of a world whose size nobody gives: each process would train by itself. Of several
// launchers' variables the first counts.
Status CheckHalves(Reader& env) {
  constexpr std::pair<const char*, const char*> kPairs[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
      {"RANK", "WORLD_SIZE"}};
  for (const auto& [rank, size] : kPairs) {
    if (!env.Has(rank)) continue;
    if (env.Has(size)) return Status::Ok();
    return Status(
        StatusCode::kUsage,
        fmt::format("{}={} without {}: a launcher sets both; unset it, or start the ranks "
                    "with keel launch or torchrun",
                    rank, env.Text(rank), size));
  }
  return Status::Ok();
}

Status CheckPlaces(const LaunchEnv& e, bool port_given) {
  if (e.world_size < 1 || e.rank >= e.world_size) {
    return Status(StatusCode::kUsage,
                  fmt::format("rank {} of a world of {} ranks (from {}'s variables)", e.rank,
                              e.world_size, NameOf(e.launcher)));
  }
  // Of port 0 the system makes one that rank 0 alone knows.
  if (e.master_port > 65535 || (port_given && e.master_port < 1 && e.world_size > 1))
    return Status(StatusCode::kUsage,
                  fmt::format("MASTER_PORT={}: expected 1 to 65535", e.master_port));
  if (e.master_addr.empty() && e.world_size > 1) {
    return Status(
        StatusCode::kUsage,
        fmt::format("{} ranks on several hosts without MASTER_ADDR: set it to the host of rank 0",
                    e.world_size));
  }
  return Status::Ok();
}

}  // namespace

Result<LaunchEnv> DetectLaunchEnv(const EnvLookup& lookup) {
  Reader env(lookup);
  LaunchEnv e;
  e.error_file = env.Text("TORCHELASTIC_ERROR_FILE");
  e.status_file = env.Text("KEEL_STATUS_FILE");
  e.columns = Columns(env.Text("COLUMNS"));
  e.requeue_count = env.Int({"SLURM_RESTART_COUNT"}, 0);
  if (env.Has("RANK") && env.Has("WORLD_SIZE")) {
    ReadTorchrun(env, e);
  } else if (env.Has("OMPI_COMM_WORLD_RANK") || env.Has("PMI_RANK") ||
             env.Has("MV2_COMM_WORLD_RANK")) {
    KEEL_RETURN_IF_ERROR(CheckHalves(env));
    ReadMpi(env, e);
  } else if (env.Has("SLURM_PROCID") && env.Int({"SLURM_STEP_NUM_TASKS"}, 1) > 1) {
    // The shell of a batch script has the job's SLURM_NTASKS, and is no task.
    ReadSlurm(env, e);
  } else {
    KEEL_RETURN_IF_ERROR(CheckHalves(env));
    KEEL_ASSIGN_OR_RETURN(e.job_secret, JobSecret(lookup));
    KEEL_RETURN_IF_ERROR(env.status());
    return e;
  }
  if (env.Has("MASTER_ADDR")) e.master_addr = env.Text("MASTER_ADDR");
  e.master_port = env.Int({"MASTER_PORT"}, e.master_port);
  // A launcher says which store is its own: below it another may have put its own variables.
  if (env.Has("KEEL_STORE") &&
      env.Text("KEEL_STORE") == fmt::format("{}:{}", e.master_addr, e.master_port)) {
    e.store_host = StoreHost::kLauncher;
  }
  KEEL_ASSIGN_OR_RETURN(e.job_secret, JobSecret(lookup));
  KEEL_RETURN_IF_ERROR(env.status());
  KEEL_RETURN_IF_ERROR(CheckPlaces(e, env.Has("MASTER_PORT")));
  return e;
}

}  // namespace keel::parallel
