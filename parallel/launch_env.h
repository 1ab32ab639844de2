// LaunchEnv: who am I in the job, read once from the environment of whatever launched the process.
//
// Precedence: torch's variables, then MPI's, then Slurm's (only with more than one task), then a
// single process. Torch-free. The only place besides the launcher that reads the environment.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "common/status.h"

namespace keel::parallel {

struct LaunchEnv {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;        // GROUP_RANK
  std::string master_addr;  // empty: single process, no network
  int master_port = 0;
  bool agent_store = false;     // TORCHELASTIC_USE_AGENT_STORE=True: every rank is a client
  std::string run_id = "none";  // TORCHELASTIC_RUN_ID, Slurm job id, …
  int restart_count = 0;
  // KEEL_JOB_START of keel launch: when the job began, by the monotonic clock. That is the same for
  // all processes of a node, and never set back, but on each node another: of use to those alone
  // that decide for all.
  std::optional<std::chrono::seconds> job_start;
  std::string error_file;   // TORCHELASTIC_ERROR_FILE, empty when none
  std::string status_file;  // KEEL_STATUS_FILE of keel launch, see RankStatus
  std::string launcher;     // "torchrun", "keel launch", "mpi", "slurm", "single"
};

using EnvLookup = std::function<std::optional<std::string>(const std::string& name)>;
EnvLookup ProcessEnvironment();

// kUsage with the variable's name and value on nonsense (RANK=3 WORLD_SIZE=2, port "abc", …).
Result<LaunchEnv> DetectLaunchEnv(const EnvLookup& env);

}  // namespace keel::parallel
