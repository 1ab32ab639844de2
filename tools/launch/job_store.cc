#include "tools/launch/job_store.h"

#include <utility>

namespace keel::tools {

namespace {

constexpr std::chrono::milliseconds kConnectDeadline{2'000};

class ServedJobStore final : public JobStore {
 public:
  ServedJobStore(std::unique_ptr<parallel::StoreClient> client, std::string prefix)
      : client_(std::move(client)), prefix_(std::move(prefix)) {}
  Status Set(const std::string& key, const std::string& value) override {
    return client_->Set(prefix_ + key, value);
  }
  Result<std::optional<std::string>> TryGet(const std::string& key) override {
    return client_->TryGet(prefix_ + key);
  }
  Result<int64_t> Add(const std::string& key, int64_t amount) override {
    return client_->Add(prefix_ + key, amount);
  }

 private:
  const std::unique_ptr<parallel::StoreClient> client_;
  const std::string prefix_;
};

}  // namespace

Result<std::unique_ptr<JobStore>> ConnectJobStore(const parallel::StoreAddress& address,
                                                  const std::string& run_id,
                                                  std::chrono::milliseconds answer_limit) {
  KEEL_ASSIGN_OR_RETURN(auto client,
                        parallel::StoreClient::Connect(address, kConnectDeadline, answer_limit));
  return std::unique_ptr<JobStore>(
      std::make_unique<ServedJobStore>(std::move(client), run_id + "/launch/"));
}

}  // namespace keel::tools
