// InterruptibleReads: a file system that gives nothing more once SIGINT, SIGTERM or SIGHUP has
// come.
//
// For commands that read one whole directory and write another: the read that fails takes them the
// way of every failed read, on which they remove what they have written; then, when this goes, the
// signal ends the program as it would have at once. A second signal does not wait for that. A
// signal that the program takes itself, or ignores, stays as it is. To be made on the main thread,
// one at a time.
#pragma once

#include <memory>
#include <string_view>

#include "common/files/forwarding_file_system.h"

namespace keel::tools {

class InterruptibleReads final : public ForwardingFileSystem {
 public:
  explicit InterruptibleReads(FileSystem& fs);
  ~InterruptibleReads() override;

  // kCancelled names the signal; so does a read of a file that was opened before.
  Result<std::unique_ptr<File>> Open(std::string_view path) const override;
};

}  // namespace keel::tools
