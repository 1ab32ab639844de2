#include "tools/serve/next_weights.h"

#include "common/guarded.h"

namespace keel::tools {

NextWeights::~NextWeights() { Drop(); }

void NextWeights::Drop() {
  if (thread_.joinable()) thread_.join();
  twin_.reset();
}

void NextWeights::Read(const std::string& step) {
  Drop();
  twin_ = model_.MakeTwin();
  done_ = false;
  thread_ = std::thread([this, step] {
    status_ = Guarded([&] { return twin_->Read(step); });
    done_ = true;
  });
}

std::optional<Status> NextWeights::Agree() {
  if (model_.relay().Least(done_ ? 1 : 0) == 0) return std::nullopt;
  thread_.join();
  Status status = status_;
  if (model_.relay().Least(status.ok() ? 1 : 0) == 1) return status;
  Drop();
  if (status.ok()) status = Status(StatusCode::kUnavailable, "another rank could not read it");
  return status;
}

void NextWeights::Adopt() {
  model_.Adopt(*twin_);
  engine_.SetWeightVersion(engine_.weight_version() + 1);
  Drop();
}

}  // namespace keel::tools
