#include "common/memory/host_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>

namespace keel {

namespace {

std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text)) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;  // "max"
  return value;
}

// The limit of a control group and those above it, and what they leave of it.
struct GroupLimit {
  int64_t limit = HostMemory::kUnknown;
  int64_t left = HostMemory::kUnknown;
};

GroupLimit LimitOf(const std::string& mount, std::string group, const char* limit_name,
                   const char* usage_name) {
  GroupLimit found;
  while (true) {
    const std::string folder = mount + group + (group.ends_with('/') ? "" : "/");
    if (const auto limit = ReadNumber(folder + limit_name)) {
      const int64_t used = ReadNumber(folder + usage_name).value_or(0);
      found.limit = std::min(found.limit, *limit);
      found.left = std::min(found.left, std::max<int64_t>(0, *limit - used));
    }
    const size_t slash = group.rfind('/');
    if (group.size() <= 1 || slash == std::string::npos) return found;
    group.resize(std::max<size_t>(1, slash));
  }
}

// Lines of /proc/self/cgroup are "0::/path" (version 2) or "4:memory:/path" (version 1).
GroupLimit ReadGroupLimit(const std::string& root) {
  GroupLimit found;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    GroupLimit one;
    if (controllers.empty()) {
      one = LimitOf(root + "/sys/fs/cgroup", group, "memory.max", "memory.current");
    } else if (controllers == "memory") {
      one = LimitOf(root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes",
                    "memory.usage_in_bytes");
    }
    found.limit = std::min(found.limit, one.limit);
    found.left = std::min(found.left, one.left);
  }
  return found;
}

}  // namespace

HostMemory ReadHostMemory(const std::string& root) {
  HostMemory memory;
  std::map<std::string, int64_t> kib;
  std::ifstream info(root + "/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    std::istringstream fields(line);
    std::string name;
    int64_t value = 0;
    if (fields >> name >> value) kib[name] = value;
  }
  if (kib.contains("MemTotal:")) memory.total = (kib["MemTotal:"] + kib["SwapTotal:"]) * 1024;
  if (kib.contains("MemAvailable:"))
    memory.available = (kib["MemAvailable:"] + kib["SwapFree:"]) * 1024;
  const GroupLimit group = ReadGroupLimit(root);
  memory.total = std::min(memory.total, group.limit);
  memory.available = std::min(memory.available, group.left);
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    memory.address_space = static_cast<int64_t>(limit.rlim_cur);
  return memory;
}

std::string FormatBytes(double bytes) {
  constexpr double kMiB = 1 << 20, kGiB = 1 << 30;
  if (bytes < kGiB) return fmt::format("{:.0f} MiB", bytes / kMiB);
  return bytes < 1e15 ? fmt::format("{:.1f} GiB", bytes / kGiB)
                      : fmt::format("{:.1e} bytes", bytes);
}

}  // namespace keel
