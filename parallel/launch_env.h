// LaunchEnv: who am I in the job, read once from the environment of whatever launched the process.
//
// Precedence: torch's variables, then MPI's, then srun's (only with more than one task), then a
// single process. Torch-free.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "common/enum_names.h"
#include "common/status.h"

namespace keel::parallel {

// Who serves the job's store.
enum class StoreHost {
  kRankZero,  // no launcher does (srun, mpirun)
  kLauncher,  // node 0's keel launch
  kAgent,     // torchrun's: a TCPStore of c10d
};

enum class Launcher { kNone, kKeelLaunch, kTorchrun, kMpi, kSlurm };
constexpr auto NamesOf(Launcher) {
  using enum Launcher;
  return EnumNames<Launcher>({{kNone, "single"},
                              {kKeelLaunch, "keel launch"},
                              {kTorchrun, "torchrun"},
                              {kMpi, "mpi"},
                              {kSlurm, "slurm"}});
}

struct LaunchEnv {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;  // GROUP_RANK
  // KEEL_TRAINERS of keel launch --roles: how many of the ranks, the first ones, train; 0: it says
  // nothing of it.
  int trainers = 0;
  std::string master_addr;  // empty: single process, no network
  int master_port = 0;
  StoreHost store_host = StoreHost::kRankZero;
  std::string job_secret;       // KEEL_JOB_SECRET, to be proved to the store; empty: none
  std::string run_id = "none";  // TORCHELASTIC_RUN_ID, Slurm job id, …
  int restart_count = 0;
  int requeue_count = 0;  // SLURM_RESTART_COUNT, where Slurm is not the launcher: of all of this
  // KEEL_JOB_START of keel launch: when the job began, by the monotonic clock. That is the same for
  // all processes of a node, and never set back, but on each node another: of use to those alone
  // that decide for all.
  std::optional<std::chrono::seconds> job_start;
  std::string error_file;   // TORCHELASTIC_ERROR_FILE, empty when none
  std::string status_file;  // KEEL_STATUS_FILE of keel launch, see RankStatus
  int columns = 0;          // COLUMNS: of the terminal that its output ends on; 0: not said
  Launcher launcher = Launcher::kNone;
};

using EnvLookup = std::function<std::optional<std::string>(const std::string& name)>;
EnvLookup ProcessEnvironment();

// KEEL_JOB_SECRET; empty: none. kUsage when it is too short to be one.
Result<std::string> JobSecret(const EnvLookup& env);

// kUsage with the variable's name and value on nonsense (RANK=3 WORLD_SIZE=2, port "abc", …).
Result<LaunchEnv> DetectLaunchEnv(const EnvLookup& env);

}  // namespace keel::parallel
