#include "checkpoint/save/io_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "checkpoint/save/snapshot_writer.h"
#include "common/memory/page_memory.h"

namespace keel::checkpoint {
namespace {

constexpr int kRounds = 2;
constexpr int64_t kChunk = int64_t{4} << 20;

// Seconds of one write of `piece`; nothing when it fails.
std::optional<double> Measure(FileSystem& fs, IoBackend backend, const std::string& directory,
                              const std::string& name, const WritePiece& piece) {
  SnapshotWriter writer(fs, backend, kChunk);
  WriteTimes times;
  const bool ok = writer.Write(directory, {{name, "", {piece}}}, {}, &times).ok();
  (void)fs.Remove(directory + "/" + name);
  if (!ok) return std::nullopt;
  return std::max(1e-9, times.written_s + times.fsync_s);
}

}  // namespace

std::vector<BackendSpeed> MeasureBackends(FileSystem& fs, std::string_view directory,
                                          int64_t bytes) {
  const int64_t size = (bytes + kChunk - 1) / kChunk * kChunk;
  std::vector<BackendSpeed> speeds;
  if (const PageMemory buffer = AllocatePages(size); buffer != nullptr) {
    std::memset(buffer.get(), 0, static_cast<size_t>(size));
    WritePiece piece;
    piece.size = Dims{size};
    piece.view = {buffer.get(), Dims{1}};
    piece.stable = true;
    for (const auto& [backend, name] : kEnumNames<IoBackend>) speeds.push_back({backend, 0});
    for (int round = 0; round < kRounds; ++round) {
      for (auto speed = speeds.begin(); speed != speeds.end();) {
        const std::string name = fmt::format(".io-probe-{}-{}", NameOf(speed->backend), round);
        const std::optional<double> seconds =
            Measure(fs, speed->backend, std::string(directory), name, piece);
        if (seconds) {
          speed->bytes_per_s = std::max(speed->bytes_per_s, static_cast<double>(size) / *seconds);
          ++speed;
        } else {
          speed = speeds.erase(speed);
        }
      }
    }
  }
  if (speeds.empty()) speeds.push_back({IoBackend::kBuffered, 0});
  std::stable_sort(speeds.begin(), speeds.end(), [](const BackendSpeed& a, const BackendSpeed& b) {
    return a.bytes_per_s > b.bytes_per_s;
  });
  return speeds;
}

}  // namespace keel::checkpoint
