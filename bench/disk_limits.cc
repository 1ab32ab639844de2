#include "bench/disk_limits.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "common/clock.h"
#include "common/hash.h"
#include "common/memory/page_memory.h"
#include "common/parallel_for.h"

namespace keel::bench {
namespace {

constexpr int64_t kBlock = int64_t{4} << 20;
// Hashed while it is in a core's own cache: the fastest size there is.
constexpr int64_t kReadBlock = int64_t{256} << 10;

// Incompressible bytes on whole pages; null where there is no memory.
PageMemory RandomBytes(int64_t bytes) {
  PageMemory memory = AllocatePages(bytes);
  if (memory == nullptr) return memory;
  auto* words = reinterpret_cast<uint64_t*>(memory.get());
  uint64_t x = 0x9e3779b97f4a7c15u;
  for (int64_t i = 0; i < bytes / 8; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    words[i] = x;
  }
  return memory;
}

// Block `b` is written from wherever block_of(b) says.
template <typename BlockOf>
Status WriteFile(FileSystem& fs, const std::string& path, int64_t blocks,
                 checkpoint::IoBackend backend, const BlockOf& block_of) {
  CreateOptions create;
  create.direct = checkpoint::WritesBlocks(backend);
  create.preallocate = blocks * kBlock;
  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.Create(path, create));
  if (backend == checkpoint::IoBackend::kIoUring) {
    KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<WriteQueue> queue,
                          fs.MakeWriteQueue(checkpoint::kWritesUnderWay));
    for (int64_t b = 0, done = 0; done < blocks; ++done) {
      for (; b < blocks && b - done < checkpoint::kWritesUnderWay; ++b)
        queue->Begin(static_cast<uint64_t>(b), *file, b * kBlock, block_of(b));
      KEEL_RETURN_IF_ERROR(queue->Wait().status);
    }
  } else {
    for (int64_t b = 0; b < blocks; ++b)
      KEEL_RETURN_IF_ERROR(file->WriteAt(b * kBlock, block_of(b)));
  }
  KEEL_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

}  // namespace

Result<double> WriteSeconds(FileSystem& fs, const std::string& path, int64_t bytes,
                            checkpoint::IoBackend backend, Through through) {
  const int64_t blocks = std::max<int64_t>(1, bytes / kBlock);
  const int64_t held = through == Through::kMemory ? blocks : 1;
  const PageMemory memory = RandomBytes(held * kBlock);
  if (memory == nullptr) return Status(StatusCode::kUnavailable, "no memory to write files from");
  const Stopwatch watch;
  const Status status = WriteFile(fs, path, blocks, backend, [&](int64_t b) {
    return std::span<const std::byte>(memory.get() + b % held * kBlock,
                                      static_cast<size_t>(kBlock));
  });
  const double seconds = watch.Elapsed();
  (void)fs.Remove(path);
  if (!status.ok()) return status;
  return seconds;
}

Result<double> CommitSeconds(FileSystem& fs, const std::string& name, int64_t bytes) {
  const std::string temporary = name + ".tmp";
  const std::string content(static_cast<size_t>(bytes), 'x');
  const Stopwatch watch;
  KEEL_RETURN_IF_ERROR(fs.MakeDirectory(temporary));
  KEEL_RETURN_IF_ERROR(WriteFileDurably(fs, temporary + "/data", content));
  KEEL_RETURN_IF_ERROR(fs.SyncDirectory(temporary));
  KEEL_RETURN_IF_ERROR(fs.Rename(temporary, name, FileSystem::RenameMode::kNoReplace));
  KEEL_RETURN_IF_ERROR(fs.SyncDirectory("."));
  const double seconds = watch.Elapsed();
  KEEL_RETURN_IF_ERROR(RemoveTree(fs, name));
  return seconds;
}

Result<ReadTotal> ReadAndHash(const FileSystem& fs, const std::vector<std::string>& paths,
                              int threads, Through through) {
  struct Block {
    const File* file = nullptr;
    int64_t offset = 0;
    int64_t bytes = 0;
    int64_t at = 0;  // in memory
  };
  std::vector<std::unique_ptr<File>> files;
  std::vector<Block> blocks;
  ReadTotal total;
  for (const std::string& path : paths) {
    KEEL_ASSIGN_OR_RETURN(std::unique_ptr<File> file, fs.Open(path));
    KEEL_ASSIGN_OR_RETURN(const int64_t size, file->Size());
    for (int64_t at = 0; at < size; at += kReadBlock)
      blocks.push_back({file.get(), at, std::min(kReadBlock, size - at), total.bytes + at});
    total.bytes += size;
    files.push_back(std::move(file));
  }
  const int64_t room = through == Through::kMemory ? total.bytes : threads * kReadBlock;
  const PageMemory memory = AllocatePages(room);
  if (memory == nullptr) return Status(StatusCode::kUnavailable, "no memory to read files to");
  std::memset(memory.get(), 1, static_cast<size_t>(room));
  const Stopwatch watch;
  KEEL_RETURN_IF_ERROR(ParallelFor(
      static_cast<int64_t>(blocks.size()), threads, [&](int64_t i, int worker) -> Status {
        const Block& block = blocks[static_cast<size_t>(i)];
        std::byte* to =
            memory.get() + (through == Through::kMemory ? block.at : worker * kReadBlock);
        const std::span bytes(to, static_cast<size_t>(block.bytes));
        KEEL_ASSIGN_OR_RETURN(const int64_t got, block.file->ReadAt(block.offset, bytes));
        if (got != block.bytes) return Status(StatusCode::kDataLoss, "a file has become shorter");
        (void)Hash128(bytes);
        return Status::Ok();
      }));
  total.seconds = watch.Elapsed();
  return total;
}

}  // namespace keel::bench
