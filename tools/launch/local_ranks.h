// LocalRanks: a command that is rank 0 itself, and starts the others beside it on this machine.
//
// So that `keel generate --tp 2` works by itself, with its own standard input and output. The
// others run the same command line, say nothing, and are killed when this process ends. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "parallel/launch_env.h"
#include "parallel/store/store_server.h"
#include "tools/launch/child.h"

namespace keel::tools {

class LocalRanks {
 public:
  // As `--tp` says. 0 or 1 of a single process: none beside it. Below a launcher the ranks are its
  // own: 0 takes all of them, another number must be theirs (kUsage). `arguments`: this program's,
  // argv[0] first.
  static Result<LocalRanks> Start(int64_t tp, const std::vector<std::string>& arguments);
  LocalRanks(LocalRanks&&) noexcept = default;
  ~LocalRanks();

  // Who this process is among the ranks.
  const parallel::LaunchEnv& env() const { return env_; }
  // Does this rank's work, then waits for the others. Throws what it throws; where it lost another
  // rank, what that one has said goes to this one's output first.
  void Run(const std::function<void()>& work);

 private:
  LocalRanks() = default;
  void Wait();
  void ShowOutput();

  parallel::LaunchEnv env_;
  std::unique_ptr<parallel::StoreServer> server_;
  std::vector<std::unique_ptr<Child>> others_;
};

}  // namespace keel::tools
