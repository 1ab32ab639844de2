#include "checkpoint/format/records.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

#include "checkpoint/format/names.h"

namespace keel::checkpoint {

Status AppendRecord(FileSystem& fs, std::string_view path, const Json& record) {
  // Messages may quote bytes of damaged files, which need not be UTF-8.
  return fs.Append(path, record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::vector<Json> ReadRecords(const FileSystem& fs) {
  constexpr int64_t kMaxRecords = int64_t{1} << 30;
  std::vector<Json> records;
  const Result<std::string> text = ReadFile(fs, kRecordsName, kMaxRecords);
  if (!text.ok()) return records;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    Result<Json> record = ParseJson(line, kRecordsName);
    if (record.ok() && record->is_object()) records.push_back(std::move(record).value());
  }
  return records;
}

double LongestOfLastSaves(const FileSystem& fs, size_t count) {
  std::vector<double> seconds;
  for (const Json& record : ReadRecords(fs)) {
    const Result<std::string> event = GetString(record, "event", "");
    const Result<double> total = GetDouble(record, "total_s", "");
    if (event.ok() && *event == "save" && total.ok()) seconds.push_back(*total);
  }
  const auto first = seconds.end() - static_cast<int64_t>(std::min(seconds.size(), count));
  return first == seconds.end() ? 0 : *std::max_element(first, seconds.end());
}

}  // namespace keel::checkpoint
