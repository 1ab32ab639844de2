#include "checkpoint/format/records.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/format/names.h"

namespace keel::checkpoint {

namespace {

// Two records that run into one would both be lost.
bool EndsWithinALine(const FileSystem& fs, std::string_view path) {
  const Result<std::unique_ptr<File>> file = fs.Open(path);
  if (!file.ok()) return false;
  const Result<int64_t> size = (*file)->Size();
  if (!size.ok() || *size <= 0) return false;
  char last = '\n';
  const Result<int64_t> got =
      (*file)->ReadAt(*size - 1, std::as_writable_bytes(std::span(&last, 1)));
  return got.ok() && *got == 1 && last != '\n';
}

}  // namespace

Status AppendRecord(FileSystem& fs, std::string_view path, const Json& record) {
  // Messages may quote bytes of damaged files, which need not be UTF-8.
  const std::string line = record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return fs.Append(path, EndsWithinALine(fs, path) ? "\n" + line : line);
}

Status VisitRecords(const FileSystem& fs, const std::function<void(const Json&)>& visit) {
  const Result<std::unique_ptr<File>> file = fs.Open(kRecordsName);
  if (!file.ok()) {
    return file.status().code() == StatusCode::kNotFound ? Status::Ok() : file.status();
  }
  const auto take = [&](std::string_view line) {
    const Result<Json> record = ParseJson(line, kRecordsName);
    if (record.ok() && record->is_object()) visit(*record);
  };
  constexpr size_t kBlock = 1 << 20;
  std::string block(kBlock, '\0');
  std::string begun;  // a line whose end is in a later block
  for (int64_t offset = 0;;) {
    KEEL_ASSIGN_OR_RETURN(const int64_t got,
                          (*file)->ReadAt(offset, std::as_writable_bytes(std::span(block))));
    if (got == 0) break;
    offset += got;
    std::string_view rest = std::string_view(block).substr(0, static_cast<size_t>(got));
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      begun.append(rest.substr(0, end));
      rest.remove_prefix(end + 1);
      take(begun);
      begun.clear();
    }
    begun.append(rest);
  }
  if (!begun.empty()) take(begun);
  return Status::Ok();
}

double LongestOfLastSaves(const FileSystem& fs, size_t count) {
  std::vector<double> seconds;
  (void)VisitRecords(fs, [&](const Json& record) {
    const Result<std::string> event = GetString(record, "event", "");
    const Result<double> total = GetDouble(record, "total_s", "");
    if (event.ok() && *event == "save" && total.ok()) seconds.push_back(*total);
  });
  const auto first = seconds.end() - static_cast<int64_t>(std::min(seconds.size(), count));
  return first == seconds.end() ? 0 : *std::max_element(first, seconds.end());
}

}  // namespace keel::checkpoint
