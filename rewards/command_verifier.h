// A verifier that is another program: a JSON object a line to its standard input, one a line from
// its standard output, in any order. It is started again after a request that failed (LineProcess).
// Torch-free.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/programs/line_process.h"
#include "rewards/retrying_verifier.h"

namespace keel::rewards {

class CommandVerifier : public RetryingVerifier {
 public:
  // `command`: program and arguments; the program is searched in PATH.
  CommandVerifier(std::vector<std::string> command, const RequestOptions& options)
      : CommandVerifier("reward.command", "reward.timeout_seconds", std::move(command), options) {}

  Status Start() override { return program_.Start(); }

  // See LineProcess::SetCheck.
  void SetCheck(std::function<void()> check) { program_.SetCheck(std::move(check)); }
  pid_t process() const { return program_.process(); }  // -1 while none runs

 protected:
  // A program by another name, with another limit: see LineProcess.
  CommandVerifier(std::string name, std::string limit, std::vector<std::string> command,
                  const RequestOptions& options);
  LineProcess& program() { return program_; }
  Status Request(std::span<const RewardSample> samples,
                 std::chrono::steady_clock::time_point deadline,
                 std::vector<RewardResult>* results) override;
  void Interrupt() override { program_.Cancel(); }

 private:
  LineProcess program_;
};

}  // namespace keel::rewards
