#include "bench/worker_protocol.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <utility>

namespace keel::bench {

namespace {

uint64_t SplitMix64(uint64_t x) {
  uint64_t z = (x + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

}  // namespace

double CpuSeconds() {
  rusage usage{};
  (void)getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

int64_t StatusBytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, key.size(), key) == 0)
      return std::atoll(line.c_str() + key.size() + 1) * 1024;
  }
  return 0;
}

void Answer(const Json& json) {
  fmt::print("{}\n", json.dump());
  std::fflush(stdout);
}

void Serve(const Commands& commands) {
  std::string line;
  while (std::getline(std::cin, line) && line != "quit") {
    std::istringstream words(line);
    std::string name;
    words >> name;
    const auto command = commands.find(name);
    if (command == commands.end()) {
      Answer({{"error", "unknown command " + line}});
    } else {
      Answer(command->second(words));
    }
  }
}

Json ReadConfig(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return ValueOrThrow(ParseJson(text.str(), path));
}

Json WithMemory(Json json) {
  json["rss_bytes"] = StatusBytes("VmRSS:");
  json["peak_rss_bytes"] = StatusBytes("VmHWM:");
  return json;
}

int64_t MadeToken(int64_t n, int64_t p, int64_t length, int64_t vocabulary) {
  return static_cast<int64_t>(SplitMix64(static_cast<uint64_t>(n * (length + 1) + p)) %
                              static_cast<uint64_t>(vocabulary));
}

}  // namespace keel::bench
