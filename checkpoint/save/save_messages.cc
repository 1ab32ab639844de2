#include "checkpoint/save/save_messages.h"

#include "common/wire.h"

namespace keel::checkpoint {
namespace {

Status Malformed(std::string_view what) {
  return Status(StatusCode::kInternal, "a peer sent a malformed " + std::string(what));
}

}  // namespace

std::string SaveOrder::Encode() const {
  WireWriter out;
  out.Text(temporary).Text(save_id).U64(static_cast<uint64_t>(io)).U64(read_back);
  return std::move(out).Take();
}

Result<SaveOrder> SaveOrder::Decode(std::string_view bytes) {
  SaveOrder order;
  uint64_t io = 0, read_back = 0;
  WireReader in(bytes);
  if (!in.Text(&order.temporary) || !in.Text(&order.save_id) || !in.U64(&io) ||
      !in.U64(&read_back) || !in.AtEnd() || io > static_cast<uint64_t>(IoBackend::kIoUring)) {
    return Malformed("save order");
  }
  order.io = static_cast<IoBackend>(io);
  order.read_back = read_back != 0;
  return order;
}

std::string SaveReport::Encode() const {
  WireWriter out;
  out.U64(weights_digest).I64(record.bytes);
  out.Pod(record.staged_s).Pod(record.written_s).Pod(record.fsync_s);
  out.Count(files.size());
  for (const auto& [path, digest] : files)
    out.Text(path).I64(digest.size).Count(digest.chunks.size()).Pods(digest.chunks);
  out.Count(copies.size());
  for (const CopyDigest& copy : copies) out.Text(copy.name).U64(copy.part).U64(copy.values);
  return std::move(out).Take();
}

Result<SaveReport> SaveReport::Decode(std::string_view bytes) {
  SaveReport report;
  WireReader in(bytes);
  uint64_t count = 0;
  if (!in.U64(&report.weights_digest) || !in.I64(&report.record.bytes) ||
      !in.Pod(&report.record.staged_s) || !in.Pod(&report.record.written_s) ||
      !in.Pod(&report.record.fsync_s) || !in.U64(&count)) {
    return Malformed("report of a save");
  }
  for (uint64_t i = 0; i < count; ++i) {
    std::string path;
    ChunkedDigest digest;
    uint64_t chunks = 0;
    if (!in.Text(&path) || !in.I64(&digest.size) || !in.U64(&chunks) ||
        !in.Pods(chunks, &digest.chunks))
      return Malformed("report of a save");
    digest.whole = DigestOfChunks(digest.size, digest.chunks);
    report.files.emplace_back(std::move(path), std::move(digest));
  }
  if (!in.U64(&count)) return Malformed("report of a save");
  for (uint64_t i = 0; i < count; ++i) {
    CopyDigest copy;
    if (!in.Text(&copy.name) || !in.U64(&copy.part) || !in.U64(&copy.values))
      return Malformed("report of a save");
    report.copies.push_back(std::move(copy));
  }
  if (!in.AtEnd()) return Malformed("report of a save");
  return report;
}

std::string SaveOutcome::Encode() const {
  WireWriter out;
  out.I64(total_bytes).Pod(seconds);
  return std::move(out).Take();
}

Result<SaveOutcome> SaveOutcome::Decode(std::string_view bytes) {
  SaveOutcome outcome;
  WireReader in(bytes);
  if (!in.I64(&outcome.total_bytes) || !in.Pod(&outcome.seconds) || !in.AtEnd()) {
    return Malformed("outcome of a save");
  }
  return outcome;
}

}  // namespace keel::checkpoint
