#include "checkpoint/records.h"

#include <sstream>
#include <string>
#include <utility>

#include "checkpoint/names.h"

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

}  // namespace keel::checkpoint
