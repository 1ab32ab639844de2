// AppendFile: a file of a run's metrics that is only added to. Torch-free.
//
// Rank 0's; not thread-safe. A piece is there as a whole or not at all. One that cannot be written,
// as on a full disk, does not end a run that has its state: it is counted, and said when that
// begins, when it is over, and by Close().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/files/posix_file.h"
#include "common/log.h"
#include "common/status.h"

namespace keel::trainer {

class AppendFile {
 public:
  // `pieces` is what messages call them: "lines". Nothing is opened. `log` must outlive this.
  AppendFile(std::string path, std::string pieces, Logger& log)
      : path_(std::move(path)), pieces_(std::move(pieces)), log_(&log) {}

  // Makes the file where there is none. Write tries it again as long as it has not succeeded.
  Status Open();
  // Adds a piece, which is of `step`; false where it is lost.
  bool Write(int64_t step, std::string_view piece);
  // At the end: says how many pieces were lost, if any were. May be called again.
  void Close();

  const std::string& path() const { return path_; }

 private:
  Status Append(std::string_view piece);

  Descriptor fd_;  // none while there is no room for the file
  std::string path_, pieces_;
  Logger* log_;
  int64_t all_ = 0;
  int64_t lost_ = 0;         // of all
  int64_t lost_in_row_ = 0;  // up to the last
  std::string because_;
};

}  // namespace keel::trainer
