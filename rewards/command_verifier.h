// A verifier that is another program: a JSON object a line to its standard input, one a line from
// its standard output, in any order. Torch-free.
//
// The program is started at Start() or the first request and stays; it runs in a process group of
// its own, which is killed as a whole when a request passes its limit, when the program ends or
// talks nonsense, and in the destructor. The next try starts it again. Its standard error is read
// by a thread, and printed on the caller's (LineRelay).
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "rewards/line_relay.h"
#include "rewards/retrying_verifier.h"

namespace keel::rewards {

class CommandVerifier : public RetryingVerifier {
 public:
  // `command`: program and arguments; the program is searched in PATH.
  CommandVerifier(std::vector<std::string> command, const RequestOptions& options)
      : RetryingVerifier(options), command_(std::move(command)) {}
  ~CommandVerifier() override { Stop(); }

  Status Start() override;

  pid_t process() const { return process_; }  // -1 while none runs

 protected:
  Result<std::vector<RewardResult>> Request(
      std::span<const RewardSample> samples,
      std::chrono::steady_clock::time_point deadline) override;

 private:
  Status Spawn();
  void Stop();
  bool EndedByItself() const;
  Result<std::vector<RewardResult>> Exchange(std::span<const RewardSample> samples,
                                             std::chrono::steady_clock::time_point deadline);

  std::vector<std::string> command_;
  pid_t process_ = -1;
  int input_ = -1;   // of the program, our end, non-blocking
  int output_ = -1;  // likewise
  std::string received_;
  std::unique_ptr<LineRelay> errors_;
};

}  // namespace keel::rewards
