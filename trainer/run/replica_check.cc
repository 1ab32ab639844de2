#include "trainer/run/replica_check.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/json.h"
#include "common/process/host_name.h"
#include "common/tensors/tensor_digest.h"
#include "trainer/run/rank_agreement.h"
#include "trainer/sync/group_bytes.h"

namespace keel::trainer {

namespace {

using parallel::Parameter;
using parallel::ParameterPiece;

// A box of a canonical tensor, of which several ranks have a copy.
struct Copy {
  const ParameterPiece* piece = nullptr;
  uint64_t digest = 0;
  // Times this the digest enters a sum over ranks that is 0 when all copies are the same: one of n
  // copies counts n - 1, the others -1 each.
  uint64_t weight = 0;
};

// Rows of a parameter in host memory, where the weights lie: in the arena, or on the device.
at::Tensor HostRows(TrainEngine& engine, const Parameter& parameter, const ParameterPiece& piece) {
  Residency& residency = engine.residency();
  const bool in_host_memory = !residency.apart() || residency.HostHas(parameter.value);
  const at::Tensor value =
      in_host_memory ? residency.HostView(parameter.value) : parameter.value.detach();
  return value.narrow(0, piece.row_begin, parameter.RowsOf(piece)).contiguous().cpu();
}

std::vector<Copy> CopiesOf(TrainEngine& engine, parallel::ParallelContext& context) {
  const at::NoGradGuard no_grad;
  std::vector<Copy> copies;
  for (const Parameter* parameter : engine.decoder().parameters()) {
    const auto n = static_cast<uint64_t>(Copies(*parameter, context.layout()));
    if (n == 1) continue;
    const bool first = CopyNumber(*parameter, context.seat()) == 0;
    const bool bf16 = parameter->value.scalar_type() == at::kBFloat16;
    const DType dtype = bf16 ? DType::kBF16 : DType::kF32;
    for (const ParameterPiece& piece : parameter->pieces) {
      if (piece.box.empty()) continue;
      const at::Tensor rows = HostRows(engine, *parameter, piece);
      const StridedView view{static_cast<std::byte*>(rows.data_ptr()),
                             parameter->StridesOf(piece, piece.box.size)};
      copies.push_back({&piece, BoxDigest(piece.shape, dtype, piece.box, piece.box, view),
                        first ? n - 1 : ~uint64_t{0}});
    }
  }
  return copies;
}

std::vector<int64_t> SumOverRanks(std::vector<int64_t> values, TrainEngine& engine,
                                  parallel::ProcessGroup& world) {
  at::Tensor tensor = at::tensor(values, at::kLong).to(engine.options().device);
  world.AllReduce(tensor);
  tensor = tensor.cpu();
  world.CheckAlive();
  return {tensor.data_ptr<int64_t>(), tensor.data_ptr<int64_t>() + tensor.numel()};
}

// "model.norm.weight [0..64]: 0123… on rank 0; 4567… on rank 1 (host b)": for each box whose copies
// differ.
std::vector<std::string> Differences(const std::vector<std::string>& reports) {
  std::map<std::string, std::map<std::string, std::vector<int>>> digests;  // box, digest, ranks
  std::map<int, std::string> hosts;
  for (size_t r = 0; r < reports.size(); ++r) {
    const Json report = ValueOrThrow(ParseJson(reports[r], "replica report"));
    hosts[static_cast<int>(r)] = report["host"].get<std::string>();
    for (const auto& [box, digest] : report["copies"].items())
      digests[box][digest.get<std::string>()].push_back(static_cast<int>(r));
  }
  std::vector<std::string> lines;
  for (const auto& [box, kinds] : digests) {
    if (kinds.size() == 1) continue;
    std::map<int, std::string> by_rank;
    for (const auto& [digest, ranks] : kinds) {
      by_rank[ranks.front()] =
          fmt::format("{} on {} {} (host {})", digest, ranks.size() == 1 ? "rank" : "ranks",
                      RankRanges(ranks), hosts[ranks.front()]);
    }
    std::vector<std::string> parts;
    for (auto& [rank, part] : by_rank) parts.push_back(std::move(part));
    lines.push_back(fmt::format("{}: {}", box, fmt::join(parts, "; ")));
  }
  return lines;
}

// Which tensors differ is told by sums for 64 Ki kinds of names, so that no rank's list of all its
// tensors has to travel.
std::vector<std::string> FindDifferences(const std::vector<Copy>& copies, TrainEngine& engine,
                                         parallel::ProcessGroup& world) {
  constexpr uint64_t kKinds = 1 << 16;
  std::vector<int64_t> sums(kKinds, 0);
  const auto kind = [](const Copy& copy) { return (DigestWeight(copy.piece->name) >> 1) % kKinds; };
  for (const Copy& copy : copies)
    sums[kind(copy)] += static_cast<int64_t>(copy.weight * copy.digest);
  sums = SumOverRanks(std::move(sums), engine, world);
  Json mine = {{"host", HostName()}, {"copies", Json::object()}};
  for (const Copy& copy : copies) {
    if (sums[kind(copy)] == 0) continue;
    const std::string where = fmt::format("{} {}", copy.piece->name, copy.piece->box.ToString());
    mine["copies"][where] = fmt::format("{:016x}", copy.digest);
  }
  return Differences(AllGatherBytes(world, mine.dump(), engine.options().device));
}

}  // namespace

void CheckReplicas(TrainEngine& engine, std::string_view role, parallel::ParallelContext& context,
                   std::string_view when) {
  if (context.layout().world() == 1) return;
  const std::vector<Copy> copies = CopiesOf(engine, context);
  uint64_t sum = 0;
  for (const Copy& copy : copies) sum += DigestWeight(copy.piece->name) * copy.weight * copy.digest;
  if (SumOverRanks({static_cast<int64_t>(sum)}, engine, context.world())[0] == 0) return;

  const std::vector<std::string> lines = FindDifferences(copies, engine, context.world());
  constexpr size_t kShown = 8;
  std::string text = fmt::format(
      "{}: {} of the {}'s weights that several ranks hold differ from rank to rank: a bit has "
      "flipped "
      "in memory, a core computes wrongly, or the ranks began with other weights. Nothing of this "
      "state is saved; start again from the newest checkpoint, without the host that is alone with "
      "its "
      "values:",
      when, lines.size(), role);
  for (size_t i = 0; i < std::min(kShown, lines.size()); ++i) text += "\n  " + lines[i];
  if (lines.size() > kShown) text += fmt::format("\n  and {} more", lines.size() - kShown);
  throw Error(StatusCode::kDataLoss, text);
}

}  // namespace keel::trainer
