// RankStatus: the step and phase a rank is in, and whether it was told to stop, where its launcher
// can read them even after SIGKILL.
//
// A small mapped file named by the launch environment; without one all is a no-op. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace keel::parallel {

class RankStatus {
 public:
  // Empty path: nothing is recorded.
  explicit RankStatus(const std::string& path);
  ~RankStatus();
  RankStatus(const RankStatus&) = delete;
  RankStatus& operator=(const RankStatus&) = delete;

  // `phase` is cut to 23 bytes: "train", "save", "load".
  void Set(int64_t step, std::string_view phase);
  // It ends because it was told to, not by a fault that a restart might heal. Safe in a signal
  // handler.
  void SetStopped();

  struct Reading {
    int64_t step = -1;
    std::string phase;
    bool stopped = false;
  };
  // Nothing when the file is missing or was never set.
  static std::optional<Reading> Read(const std::string& path);

 private:
  struct Record;
  Record* record_ = nullptr;
};

}  // namespace keel::parallel
