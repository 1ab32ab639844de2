// CountedReads: a file system that tells a progress bar of what is read; writes
// are not counted. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/files/forwarding_file_system.h"
#include "common/progress.h"

namespace keel::tools {

class CountedReads final : public ForwardingFileSystem {
 public:
  // Both must outlive this and the files that are opened through it.
  CountedReads(FileSystem& fs, Progress& bar) : ForwardingFileSystem(fs), bar_(bar) {}

  Result<std::unique_ptr<File>> Open(std::string_view path) const override;

 private:
  Progress& bar_;
};

// A bar of bytes on the standard error of the program.
Progress::Options BytesBar(std::string what, int64_t total);
// For work that says itself how far it is; the bar must outlive it.
std::function<void(int64_t done, int64_t total)> ShownBy(Progress& bar);

}  // namespace keel::tools
