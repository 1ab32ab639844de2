#include "tools/ckpt/counted_reads.h"

#include <unistd.h>

#include <utility>

namespace keel::tools {

namespace {

class CountedFile final : public File {
 public:
  CountedFile(std::unique_ptr<File> file, Progress& bar) : file_(std::move(file)), bar_(bar) {}

  Status WriteAt(int64_t offset, std::span<const std::byte> data) override {
    return file_->WriteAt(offset, data);
  }
  Result<int64_t> ReadAt(int64_t offset, std::span<std::byte> data) const override {
    Result<int64_t> read = file_->ReadAt(offset, data);
    if (read.ok()) bar_.Add(*read);
    return read;
  }
  void Prefetch(int64_t offset, int64_t bytes) const override { file_->Prefetch(offset, bytes); }
  void DropCached() const override { file_->DropCached(); }
  Status Truncate(int64_t size) override { return file_->Truncate(size); }
  Status Sync() override { return file_->Sync(); }
  Status Close() override { return file_->Close(); }
  Result<int64_t> Size() const override { return file_->Size(); }

 private:
  const std::unique_ptr<File> file_;
  Progress& bar_;
};

}  // namespace

Result<std::unique_ptr<File>> CountedReads::Open(std::string_view path) const {
  KEEL_ASSIGN_OR_RETURN(std::unique_ptr<File> file, fs_.Open(path));
  return std::unique_ptr<File>(std::make_unique<CountedFile>(std::move(file), bar_));
}

Progress::Options BytesBar(std::string what, int64_t total) {
  return {std::move(what), total, Progress::Unit::kBytes, "", STDERR_FILENO, &SystemClock()};
}

}  // namespace keel::tools
