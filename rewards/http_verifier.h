// A verifier behind an HTTP address: POSTs {"samples": [...]}, wants {"results": [...]}.
// Torch-free.
#pragma once

#include "common/programs/http_client.h"
#include "rewards/retrying_verifier.h"

namespace keel::rewards {

class HttpVerifier : public RetryingVerifier {
 public:
  HttpVerifier(const HttpOptions& http, const RequestOptions& options)
      : RetryingVerifier(options), client_(http) {}

  Status Start() override;

 protected:
  Status Request(std::span<const RewardSample> samples,
                 std::chrono::steady_clock::time_point deadline,
                 std::vector<RewardResult>* results) override;
  // A service that is started again is there after some seconds.
  std::chrono::milliseconds pause() const override { return std::chrono::seconds(1); }
  void Interrupt() override { client_.Cancel(); }

 private:
  HttpClient client_;
};

}  // namespace keel::rewards
