#include "trainer/metrics/metrics_history.h"

#include "common/json.h"
#include "common/status.h"

namespace keel::trainer {

std::string MetricsRewind::Text() const {
  Json head = {{"resumed_step", resumed_step}, {"sequence", sequence}, {"kept", kept}};
  if (!file.empty()) head["file"] = file;
  std::string text = head.dump() + "\n";
  for (const std::string& line : lines) text.append(line).append("\n");
  return text;
}

std::vector<MetricsRewind> ParseRewinds(std::string_view dropped) {
  std::vector<MetricsRewind> rewinds;
  while (!dropped.empty()) {
    const size_t end = dropped.find('\n');
    const std::string_view line = dropped.substr(0, end);
    dropped.remove_prefix(end == std::string_view::npos ? dropped.size() : end + 1);
    const Result<Json> json = ParseJson(line, "");
    if (!json.ok()) continue;
    if (GetInt(*json, "step", "").ok()) {
      if (!rewinds.empty()) rewinds.back().lines.emplace_back(line);
      continue;
    }
    const Result<int64_t> step = GetInt(*json, "resumed_step", "");
    const Result<int64_t> sequence = GetInt(*json, "sequence", "");
    const Result<int64_t> kept = GetInt(*json, "kept", "");
    if (!step.ok() || !sequence.ok() || !kept.ok() || *kept < 0) continue;
    const Result<std::string> file = GetString(*json, "file", "");
    rewinds.push_back({*step, *sequence, *kept, file.ok() ? *file : std::string()});
  }
  return rewinds;
}

}  // namespace keel::trainer
