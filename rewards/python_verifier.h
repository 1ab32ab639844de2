// A verifier that is a function of a Python file, as verl's users write them: called for one sample
// at a time in a child process, which is started again after one that it did not survive.
// Torch-free.
//
// The child is `<python> -u -c <python_runner.py> <path> <name>`. Nothing of Python is in this
// process; what the function does to its own ends at the child's process group.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"
#include "rewards/command_verifier.h"

namespace keel::rewards {

struct PythonFunction {
  std::string python;  // program, searched in PATH
  std::string path;    // of the file
  std::string name = "compute_score";
  Json kwargs = Json::object();
  std::chrono::milliseconds start_limit{60'000};  // of the import
  std::string key = "reward.";                    // what stands before its keys in messages
};

class PythonVerifier : public CommandVerifier {
 public:
  // The batch size of `options` is not used: a limit is that of one call.
  PythonVerifier(const PythonFunction& function, const RequestOptions& options);

  // kConfig with the end of the traceback where the file cannot be imported, or the function is not
  // there or cannot be called so.
  using CommandVerifier::Start;

 protected:
  Status Request(std::span<const RewardSample> samples,
                 std::chrono::steady_clock::time_point deadline,
                 std::vector<RewardResult>* results) override;

 private:
  const std::chrono::milliseconds limit_;
};

// The interpreter of reward.python, else of $KEEL_PYTHON, else python3.
std::string PythonProgram(const std::optional<std::string>& configured);

}  // namespace keel::rewards
