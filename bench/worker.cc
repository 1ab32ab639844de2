#include "bench/worker.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/usage.h"

namespace keel::bench {

const WorkerEntry* FindWorker(std::span<const WorkerEntry> workers, std::string_view name) {
  const auto found = std::find_if(workers.begin(), workers.end(),
                                  [&](const WorkerEntry& worker) { return worker.name == name; });
  return found != workers.end() ? &*found : nullptr;
}

int RunWorker(const WorkerEntry& worker, int argc, char** argv) {
  CLI::App app("", fmt::format("keel_bench worker {}", worker.name));
  worker.add(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return tools::AnswerParseError(app, argc, argv, error);
  }
  return 0;
}

}  // namespace keel::bench
