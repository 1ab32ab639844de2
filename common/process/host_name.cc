#include "common/process/host_name.h"

#include <unistd.h>

#include <array>

namespace keel {

std::string HostName() {
  std::array<char, 256> name{};  // its last byte stays 0
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace keel
