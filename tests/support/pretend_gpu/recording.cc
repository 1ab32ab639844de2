#include "tests/support/pretend_gpu/recording.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/pretend_gpu/arena.h"

namespace keel::testing::pretend {

namespace {

class Kept final : public parallel::Recording {
 public:
  void Replay() override {
    for (const auto& again : works) again();
  }
  std::vector<std::function<void()>> works;
  std::vector<at::Tensor> without_value;
  const std::shared_ptr<RecordedMemory> memory = std::make_shared<RecordedMemory>();
};

thread_local Kept* recording = nullptr;

}  // namespace

RecordedMemory::~RecordedMemory() {
  for (void* const memory : all_) Free(memory);
}

bool Recording() { return recording != nullptr; }

std::shared_ptr<RecordedMemory> MemoryOfRecording() {
  return recording != nullptr ? recording->memory : nullptr;
}

void Remember(std::function<void()> again) {
  if (recording != nullptr) recording->works.push_back(std::move(again));
}

void Perform(const std::function<void()>& work) {
  Remember(work);
  work();
}

void HasNoValueYet(const at::Tensor& t) {
  if (recording != nullptr && t.defined()) recording->without_value.push_back(t);
}

void NotWhileRecording(const char* what) {
  TORCH_CHECK(recording == nullptr, "pretend GPU: ", what, " within a recording");
}

Result<std::unique_ptr<parallel::Recording>> Record(const std::function<void()>& work) {
  if (const char* way = std::getenv("KEEL_PRETEND_RECORDINGS"); way && std::string(way) == "0")
    return Status(StatusCode::kUnavailable, "pretend GPU: nothing is recorded");
  work();
  auto kept = std::make_unique<Kept>();
  recording = kept.get();
  Status status;
  try {
    work();
  } catch (const std::exception& e) {
    status = Status(StatusCode::kUnavailable, e.what());
  }
  recording = nullptr;
  KEEL_RETURN_IF_ERROR(status);
  for (const at::Tensor& t : kept->without_value) {
    if (t.storage().nbytes() > 0)
      std::memset(Behind(t.storage().mutable_data()), 0xff, t.storage().nbytes());
  }
  kept->without_value.clear();
  return std::unique_ptr<parallel::Recording>(std::move(kept));
}

}  // namespace keel::testing::pretend
