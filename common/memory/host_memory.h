// How much memory this machine lets a process have.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace keel {

// Bytes; what is not known is the largest number.
struct HostMemory {
  static constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  int64_t total = kUnknown;      // of the machine with its swap, or of the control group if less
  int64_t available = kUnknown;  // of that, without taking from anybody else
  int64_t address_space = kUnknown;  // of this process: RLIMIT_AS
};

// `root` stands before "/proc" and "/sys"; for tests.
HostMemory ReadHostMemory(const std::string& root = "");

// "1.5 GiB", "312 MiB".
std::string FormatBytes(double bytes);

}  // namespace keel
