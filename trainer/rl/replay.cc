#include "trainer/rl/replay.h"

#include <fmt/format.h>

#include <span>
#include <utility>
#include <vector>

#include "common/hash.h"
#include "common/json.h"
#include "trainer/sync/group_bytes.h"

namespace keel::trainer::rl {

RolloutBatch ReplayDump(parallel::ProcessGroup& world, at::Device device, const std::string& path,
                        const DumpShape& shape) {
  Result<RolloutBatch> batch = ReadDump(path, shape);
  Json mine = {{"path", path}};
  if (batch.ok()) {
    Hasher128 hasher;
    for (const Response& response : batch->responses) {
      const std::vector<uint8_t> bytes = Json::to_cbor(response.ToJson());
      hasher.Update(std::as_bytes(std::span(bytes)));
    }
    mine["digest"] = hasher.Finish().ToHex();
  } else {
    mine["problem"] = batch.status().message();
    mine["code"] = static_cast<int>(batch.status().code());
    mine["cause"] = static_cast<int>(batch.status().cause());
  }
  const std::string text = mine.dump(-1, ' ', false, Json::error_handler_t::replace);
  Json first;
  int rank = 0;
  for (const std::string& one : AllGatherBytes(world, text, device)) {
    const Json theirs = ValueOrThrow(ParseJson(one, "a peer's trainer.rollout_replay_dir"));
    if (theirs.contains("problem")) {
      throw Error(Status(static_cast<StatusCode>(theirs["code"].get<int>()),
                         static_cast<StatusCause>(theirs["cause"].get<int>()),
                         fmt::format("trainer.rollout_replay_dir, on rank {}: {}", rank,
                                     theirs["problem"].get<std::string>())));
    }
    if (rank == 0) first = theirs;
    if (theirs["digest"] != first["digest"]) {
      throw Error(
          StatusCode::kInvalidData,
          fmt::format("trainer.rollout_replay_dir: {} of rank {} holds other responses than "
                      "{} of rank 0: give every node the same files",
                      theirs["path"].get<std::string>(), rank, first["path"].get<std::string>()));
    }
    ++rank;
  }
  return std::move(*batch);
}

}  // namespace keel::trainer::rl
