#include "library/state_description.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "checkpoint/run/catalog.h"
#include "common/tensors/shard_table.h"
#include "common/wire.h"
#include "library/state_tables.h"

namespace keel::library {
namespace {

std::string Encode(const StateDescription& what, const ShardTable& tensors) {
  WireWriter out;
  out.I64(what.step).Text(what.directory).Text(what.extra).Text(tensors.Serialize());
  out.Texts(what.skipped);
  return std::move(out).Take();
}

}  // namespace

Result<std::string> DescribeCheckpoint(const FileSystem& files,
                                       const checkpoint::StepReader& reader,
                                       std::span<const checkpoint::SkippedCheckpoint> skipped) {
  StateDescription what;
  for (const checkpoint::SkippedCheckpoint& one : skipped)
    what.skipped.push_back(one.directory + ": " + one.reason);
  what.step = reader.manifest().step;
  what.directory = reader.directory();
  const std::string scope = fmt::format("{}/model", kRole);
  KEEL_ASSIGN_OR_RETURN(const ShardTable tensors, reader.Tensors(scope));
  if (tensors.tensors().empty())
    return Status(StatusCode::kConfig,
                  fmt::format("{} holds the roles {}, and no '{}': it was saved by a trainer, not "
                              "by this library",
                              files.Describe(reader.directory()),
                              fmt::join(reader.manifest().roles, ", "), kRole));
  if (reader.FindFile(kExtraName) >= 0) {
    KEEL_ASSIGN_OR_RETURN(what.extra, reader.ReadText(kExtraName));
  }
  return Encode(what, tensors);
}

Status NameMissing(const FileSystem& files, int64_t step, const Status& status) {
  KEEL_ASSIGN_OR_RETURN(const std::vector<checkpoint::CatalogEntry> entries,
                        checkpoint::ListCheckpoints(files));
  std::vector<int64_t> there;
  for (const checkpoint::CatalogEntry& entry : entries) there.push_back(entry.step);
  std::sort(there.begin(), there.end());
  if (std::binary_search(there.begin(), there.end(), step)) return status;
  return {StatusCode::kNotFound,
          fmt::format("there is no checkpoint of step {} in {}, {}", step, files.Describe("."),
                      there.empty() ? std::string("and none at all")
                                    : fmt::format("only of {}", fmt::join(there, ", ")))};
}

Result<StateDescription> DecodeDescription(std::string_view text) {
  StateDescription what;
  std::string bytes;
  uint64_t skipped = 0;
  WireReader in(text);
  bool whole = in.I64(&what.step) && in.Text(&what.directory) && in.Text(&what.extra) &&
               in.Text(&bytes) && in.U64(&skipped);
  for (uint64_t i = 0; whole && i < skipped; ++i) whole = in.Text(&what.skipped.emplace_back());
  if (!whole || !in.AtEnd())
    return Status(StatusCode::kInternal, "rank 0 sent a malformed description of a checkpoint");
  KEEL_ASSIGN_OR_RETURN(const ShardTable tensors, ShardTable::Deserialize(bytes));
  for (const TensorInfo& tensor : tensors.tensors())
    what.tensors.push_back({tensor.name, tensor.dtype, tensor.shape});
  return what;
}

}  // namespace keel::library
