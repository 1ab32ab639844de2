#include "checkpoint/records.h"

#include <string>

namespace keel::checkpoint {

Status AppendRecord(FileSystem& fs, std::string_view path, const Json& record) {
  return fs.Append(path, record.dump() + "\n");
}

}  // namespace keel::checkpoint
