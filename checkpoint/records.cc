#include "checkpoint/records.h"

#include <string>

namespace keel::checkpoint {

Status AppendRecord(FileSystem& fs, std::string_view path, const Json& record) {
  // Messages may quote bytes of damaged files, which need not be UTF-8.
  return fs.Append(path, record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace keel::checkpoint
