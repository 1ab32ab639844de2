#include "tools/counted_reads.h"

#include <unistd.h>

#include <utility>

namespace keel::tools {

namespace {

class CountedFile final : public ForwardingFile {
 public:
  CountedFile(std::unique_ptr<File> file, Progress& bar)
      : ForwardingFile(std::move(file)), bar_(bar) {}

  Result<int64_t> ReadAt(int64_t offset, std::span<std::byte> data) const override {
    Result<int64_t> read = ForwardingFile::ReadAt(offset, data);
    if (read.ok()) bar_.Add(*read);
    return read;
  }

 private:
  Progress& bar_;
};

}  // namespace

Result<std::unique_ptr<File>> CountedReads::Open(std::string_view path) const {
  KEEL_ASSIGN_OR_RETURN(std::unique_ptr<File> file, below().Open(path));
  return std::unique_ptr<File>(std::make_unique<CountedFile>(std::move(file), bar_));
}

Progress::Options BytesBar(std::string what, int64_t total) {
  return {std::move(what), total, Progress::Unit::kBytes, "", STDERR_FILENO, &SystemClock()};
}

std::function<void(int64_t done, int64_t total)> ShownBy(Progress& bar) {
  return [&bar](int64_t done, int64_t total) {
    bar.SetTotal(total);
    bar.Set(done);
  };
}

}  // namespace keel::tools
