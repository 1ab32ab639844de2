#include "checkpoint/format/save_records.h"

namespace keel::checkpoint {

Json SaveRecord::ToJson() const {
  Json json;
  json["event"] = "save";
  json["step"] = step;
  json["save_id"] = save_id;
  json["async"] = async;
  json["bytes"] = bytes;
  json["total_bytes"] = total_bytes;
  json["predicted_bytes"] = predicted_bytes;
  json["io"] = io;
  json["planned_s"] = planned_s;
  json["blocked_s"] = blocked_s;
  json["fence_s"] = fence_s;
  json["staged_s"] = staged_s;
  json["written_s"] = written_s;
  json["fsync_s"] = fsync_s;
  json["commit_s"] = commit_s;
  json["verified_s"] = verified_s;
  json["total_s"] = total_s;
  if (lost_s >= 0) json["lost_s"] = lost_s;
  json["removed"] = removed;
  Json list = Json::array();
  for (const RankRecord& rank : ranks) {
    const double seconds = rank.written_s + rank.fsync_s;
    list.push_back(
        {{"bytes", rank.bytes},
         {"staged_s", rank.staged_s},
         {"written_s", rank.written_s},
         {"fsync_s", rank.fsync_s},
         {"gb_per_s", seconds > 0 ? static_cast<double>(rank.bytes) / seconds / 1e9 : 0}});
  }
  json["ranks"] = std::move(list);
  return json;
}

Json LoadRecord::ToJson() const {
  Json json;
  json["event"] = "load";
  json["step"] = step;
  json["directory"] = directory;
  json["bytes"] = bytes;
  json["received_bytes"] = received;
  json["gb_per_s"] = read_s > 0 ? static_cast<double>(bytes) / read_s / 1e9 : 0;
  json["planned_s"] = planned_s;
  json["read_s"] = read_s;
  json["verified_s"] = verified_s;
  json["applied_s"] = applied_s;
  json["total_s"] = total_s;
  Json list = Json::array();
  for (const SkippedCheckpoint& one : skipped) {
    list.push_back({{"directory", one.directory}, {"reason", one.reason}});
  }
  json["skipped"] = std::move(list);
  if (!kept.empty()) json["kept"] = kept;
  if (!left_out.empty()) json["left_out"] = left_out;
  return json;
}

}  // namespace keel::checkpoint
