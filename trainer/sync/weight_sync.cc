#include "trainer/sync/weight_sync.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "common/clock.h"
#include "common/fail_point.h"
#include "common/tensors/tensor_digest.h"
#include "parallel/groups/cuda_module.h"
#include "trainer/engine/shard_tensor.h"
#include "trainer/sync/group_bytes.h"

namespace keel::trainer {

namespace {

// Parts of `box` of at most `most` bytes each (one element at least), cut along the first dims.
void Cut(const Box& box, int64_t element_size, int64_t most, int dim, std::vector<Box>* out) {
  const int64_t bytes = box.elements() * element_size;
  if (bytes <= most || dim == box.dims()) {
    out->push_back(box);
    return;
  }
  const int64_t slice = bytes / box.size[dim];
  const int64_t each = std::max<int64_t>(1, most / slice);
  for (int64_t at = 0; at < box.size[dim]; at += each) {
    Box part = box;
    part.offset[dim] += at;
    part.size[dim] = std::min(each, box.size[dim] - at);
    Cut(part, element_size, most, dim + 1, out);
  }
}

// Slots of pieces begin where values of any dtype may stand.
constexpr int64_t kSlot = 8;
int64_t SlotOf(int64_t bytes) { return (bytes + kSlot - 1) / kSlot * kSlot; }

}  // namespace

WeightSync::WeightSync(parallel::ProcessGroup& world, const ShardTable& trainer,
                       const ShardTable& rollout, int replica, int replicas,
                       const WeightSyncOptions& options)
    : world_(world),
      options_(options),
      replica_(replica),
      replicas_(replicas),
      trainer_layout_(trainer.Fingerprint()),
      rollout_layout_(rollout.Fingerprint()) {
  // 1. What everybody has, and belongs to.
  std::vector<ShardTable> sources, destinations;
  for (const std::string& text : AllGatherBytes(world, trainer.Serialize(), options.device))
    sources.push_back(ValueOrThrow(ShardTable::Deserialize(text)));
  for (const std::string& text : AllGatherBytes(world, rollout.Serialize(), options.device))
    destinations.push_back(ValueOrThrow(ShardTable::Deserialize(text)));
  std::vector<int> replica_of;
  for (const std::string& text : AllGatherBytes(world, std::to_string(replica), options.device))
    replica_of.push_back(std::stoi(text));

  // 2. The plan. A trainer's tensor that no rollout wants is as wrong as one that is missing.
  TransferOptions plan_options;
  plan_options.allow_unused = false;
  const TransferPlan plan = ValueOrThrow(PlanTransfer(sources, destinations, plan_options));
  std::set<std::string> names;
  for (const ShardTable& table : sources)
    for (const TensorInfo& tensor : table.tensors()) names.insert(tensor.name);
  names_.assign(names.begin(), names.end());

  // 3. Who takes the digest of what.
  const auto me = static_cast<size_t>(world.rank());
  trainer_share_ = ValueOrThrow(AssignWriters(sources))[me];
  std::vector<ShardTable> mates;
  size_t place = 0;
  for (size_t r = 0; r < destinations.size(); ++r) {
    if (replica_of[r] != replica) continue;
    if (r == me) place = mates.size();
    mates.push_back(destinations[r].WithoutViews());
  }
  rollout_share_ = ValueOrThrow(AssignWriters(mates))[place];

  // 4. Pieces and rounds.
  CutIntoRounds(plan, destinations);
  coincides_ = rounds_.empty();
  for (size_t r = 0; coincides_ && r < sources.size(); ++r) {
    for (const Shard& shard : destinations[r].shards()) {
      coincides_ =
          coincides_ && sources[r].FindShard(destinations[r].tensor_of(shard).name, shard.box) >= 0;
    }
  }
}

void WeightSync::CutIntoRounds(const TransferPlan& plan,
                               const std::vector<ShardTable>& destinations) {
  const int64_t bucket = options_.bucket_bytes / kSlot * kSlot;
  std::map<std::pair<int, int>, std::deque<Piece>> waiting;  // by source and destination
  for (const Transfer& transfer : plan.transfers) {
    if (transfer.box.empty()) continue;
    const ShardTable& table = destinations[static_cast<size_t>(transfer.destination)];
    const Shard& shard = table.shards()[static_cast<size_t>(transfer.destination_shard)];
    const auto element_size = static_cast<int64_t>(DTypeSize(table.tensor_of(shard).dtype));
    Piece piece{transfer.source,
                transfer.destination,
                transfer.source_shard,
                transfer.destination_shard,
                transfer.box,
                transfer.box.elements() * element_size,
                0,
                -1};
    if (transfer.source == transfer.destination) {
      if (transfer.source == world_.rank()) local_.push_back(piece);
      continue;
    }
    std::vector<Box> parts;
    Cut(transfer.box, element_size, std::max(kSlot, bucket), 0, &parts);
    for (const Box& part : parts) {
      piece.box = part;
      piece.bytes = part.elements() * element_size;
      piece.slot = SlotOf(piece.bytes);
      waiting[{transfer.source, transfer.destination}].push_back(piece);
    }
  }
  // A round takes from every pair what still fits both sides' buckets. Pairs take turns at being
  // the first, so that none waits for the end.
  std::vector<std::pair<int, int>> pairs;
  for (const auto& [pair, pieces] : waiting) pairs.push_back(pair);
  const auto world = static_cast<size_t>(world_.size());
  int64_t messages = 0;
  for (size_t turn = 0; !pairs.empty(); ++turn) {
    std::vector<int64_t> sent(world, 0), received(world, 0);
    Round round;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const auto& pair = pairs[(turn + i) % pairs.size()];
      std::deque<Piece>& pieces = waiting[pair];
      int64_t& out = sent[static_cast<size_t>(pair.first)];
      int64_t& in = received[static_cast<size_t>(pair.second)];
      while (!pieces.empty() && out + pieces.front().slot <= bucket &&
             in + pieces.front().slot <= bucket) {
        out += pieces.front().slot;
        in += pieces.front().slot;
        round.push_back(pieces.front());
        pieces.pop_front();
      }
    }
    if (round.empty()) {  // an element larger than the bucket
      throw Error(
          StatusCode::kConfig,
          fmt::format("a bucket of {} bytes is too small to sync weights", options_.bucket_bytes));
    }
    std::erase_if(pairs, [&](const auto& pair) { return waiting[pair].empty(); });
    std::stable_sort(round.begin(), round.end(), [](const Piece& a, const Piece& b) {
      return std::pair(a.source, a.destination) < std::pair(b.source, b.destination);
    });
    for (Piece& piece : round) {
      if (options_.device.is_cpu() && piece.bytes >= options_.direct_bytes)
        piece.message = messages++;
    }
    rounds_.push_back(std::move(round));
  }
}

at::Tensor WeightSync::ViewOf(const ShardTable& table, int shard_index, const Box& box) const {
  const Shard& shard = table.shards()[static_cast<size_t>(shard_index)];
  return TensorOf(shard, box, table.tensor_of(shard).dtype, options_.device);
}

std::pair<int64_t, int64_t> WeightSync::BufferBytes(const ShardTable& trainer,
                                                    const ShardTable& rollout) const {
  const int me = world_.rank();
  int64_t most_sent = 0;
  int64_t most_received = 0;
  for (const Round& round : rounds_) {
    int64_t sent = 0;
    int64_t received = 0;
    const auto needs = [&](const Piece& piece, const ShardTable& table, int shard) {
      return piece.message < 0 || !ViewOf(table, shard, piece.box).is_contiguous();
    };
    for (const Piece& piece : round) {
      if (piece.source == me && needs(piece, trainer, piece.source_shard)) sent += piece.slot;
      if (piece.destination == me && needs(piece, rollout, piece.destination_shard))
        received += piece.slot;
    }
    most_sent = std::max(most_sent, sent);
    most_received = std::max(most_received, received);
  }
  return {most_sent, most_received};
}

int WeightSync::TagOf(const Piece& piece) const {
  constexpr int64_t kMessages = int64_t{1} << 20;
  return static_cast<int>((runs_ % 1024) * kMessages + piece.message % kMessages);
}

void WeightSync::Exchange(const Round& round, const ShardTable& trainer, const ShardTable& rollout,
                          const at::Tensor& in, const at::Tensor& out, WeightSyncReport* report) {
  const auto world = static_cast<size_t>(world_.size());
  const int me = world_.rank();
  // Pieces of every dtype lie behind one another, each as if it were a tensor of its own.
  const auto slot = [](const at::Tensor& buffer, int64_t at, const Piece& piece,
                       const at::Tensor& view) {
    return buffer.narrow(0, at, piece.bytes).view(view.scalar_type()).view(view.sizes());
  };
  const auto as_bytes = [](const at::Tensor& run) { return run.view({-1}).view(at::kByte); };
  std::vector<std::pair<at::Tensor, at::Tensor>> unpacked;  // to, from
  int64_t sent = 0;
  int64_t received = 0;

  // 1. What goes by all-to-all, packed in the order of peers.
  std::vector<int64_t> out_sizes(world, 0), in_sizes(world, 0);
  bool together = false;
  for (const Piece& piece : round) {
    if (piece.source == me) report->sent_bytes += piece.bytes;
    if (piece.message >= 0) continue;
    together = true;
    if (piece.source == me) {
      const at::Tensor view = ViewOf(trainer, piece.source_shard, piece.box);
      slot(in, sent, piece, view).copy_(view);
      in_sizes[static_cast<size_t>(piece.destination)] += piece.slot;
      sent += piece.slot;
    }
    if (piece.destination == me) {
      const at::Tensor view = ViewOf(rollout, piece.destination_shard, piece.box);
      unpacked.emplace_back(view, slot(out, received, piece, view));
      out_sizes[static_cast<size_t>(piece.source)] += piece.slot;
      received += piece.slot;
    }
  }
  const at::Tensor packed = in.narrow(0, 0, sent);
  at::Tensor arrived = out.narrow(0, 0, received);

  // 2. Messages: all receives are posted before the first send.
  std::vector<std::unique_ptr<parallel::Work>> works;
  for (const Piece& piece : round) {
    if (piece.message < 0 || piece.destination != me) continue;
    at::Tensor into = ViewOf(rollout, piece.destination_shard, piece.box);
    if (!into.is_contiguous()) {
      const at::Tensor view = into;
      into = slot(out, received, piece, view);
      unpacked.emplace_back(view, into);
      received += piece.slot;
    }
    at::Tensor bytes = as_bytes(into);
    works.push_back(world_.RecvAsync(bytes, piece.source, TagOf(piece)));
  }
  for (const Piece& piece : round) {
    if (piece.message < 0 || piece.source != me) continue;
    at::Tensor from = ViewOf(trainer, piece.source_shard, piece.box);
    if (!from.is_contiguous()) {
      const at::Tensor view = from;
      from = slot(in, sent, piece, view).copy_(view);
      sent += piece.slot;
    }
    works.push_back(world_.SendAsync(as_bytes(from), piece.destination, TagOf(piece)));
  }
  if (together) works.push_back(world_.AllToAllAsync(arrived, packed, out_sizes, in_sizes));
  for (const auto& work : works) work->Wait();

  // 3. Unpack what was not received in place.
  for (const auto& [to, from] : unpacked) to.copy_(from);
  ++report->rounds;
}

void WeightSync::AddDigests(const ShardTable& assigned, const ShardTable& views,
                            int64_t* sums) const {
  for (const Shard& share : assigned.shards()) {
    const TensorInfo& tensor = assigned.tensor_of(share);
    const int shard = views.FindShard(tensor.name, share.box);
    TORCH_CHECK(shard >= 0, "WeightSync: ", tensor.name, " has no view");
    const auto column = std::lower_bound(names_.begin(), names_.end(), tensor.name);
    sums[column - names_.begin()] += static_cast<int64_t>(
        ShardDigest(tensor, views.shards()[static_cast<size_t>(shard)], options_.device));
  }
}

Result<WeightSyncReport> WeightSync::Run(const ShardTable& trainer, const ShardTable& rollout) {
  if (trainer.Fingerprint() != trainer_layout_ || rollout.Fingerprint() != rollout_layout_) {
    return Status(StatusCode::kInternal, "weight sync: tables of other shards than the plan's");
  }
  const at::NoGradGuard no_grad;
  const Stopwatch watch;
  WeightSyncReport report;
  ++runs_;
  try {
    for (const Piece& piece : local_) {
      const at::Tensor from = ViewOf(trainer, piece.source_shard, piece.box);
      at::Tensor to = ViewOf(rollout, piece.destination_shard, piece.box);
      if (from.const_data_ptr() == to.const_data_ptr()) continue;
      to.copy_(from);
      report.copied_bytes += piece.bytes;
    }
    {
      const auto bytes = at::TensorOptions().dtype(at::kByte).device(options_.device);
      const auto [sent, received] = BufferBytes(trainer, rollout);
      const at::Tensor in = at::empty({sent}, bytes);
      const at::Tensor out = at::empty({received}, bytes);
      report.buffer_bytes = sent + received;
      for (const Round& round : rounds_) {
        ThrowIfError(FailPoint("sync.round"));
        Exchange(round, trainer, rollout, in, out, &report);
      }
    }
    report.exchange_seconds = watch.Elapsed();
    // The proof: what the receivers' memory holds now. Also the vote, since all must come here.
    const auto tensors = static_cast<int64_t>(names_.size());
    at::Tensor sums = at::zeros({1 + replicas_, tensors}, at::kLong);
    int64_t* const rows = sums.data_ptr<int64_t>();
    AddDigests(trainer_share_, trainer, rows);
    AddDigests(rollout_share_, rollout, rows + (1 + replica_) * tensors);
    at::Tensor all = sums.to(options_.device);
    world_.AllReduce(all);
    sums = all.cpu();
    world_.CheckAlive();  // else these are no sums
    const int64_t* const found = sums.const_data_ptr<int64_t>();
    for (int64_t r = 1; r <= replicas_; ++r) {
      for (int64_t t = 0; t < tensors; ++t) {
        if (found[r * tensors + t] == found[t]) continue;
        return Status(
            StatusCode::kDataLoss,
            fmt::format(
                "weight sync: {} of rollout replica {} has digest {:016x}, the trainer's is "
                "{:016x}: what arrived is not what was sent",
                names_[static_cast<size_t>(t)], r - 1,
                static_cast<uint64_t>(found[r * tensors + t]), static_cast<uint64_t>(found[t])));
      }
    }
    for (int64_t t = 0; t < tensors; ++t)
      report.digest +=
          DigestWeight(names_[static_cast<size_t>(t)]) * static_cast<uint64_t>(found[t]);
    if (!options_.device.is_cpu()) ValueOrThrow(parallel::LoadCudaModule())->SynchronizeStream();
  } catch (const Error& error) {
    return error.status().WithContext("weight sync");
  }
  report.seconds = watch.Elapsed();
  report.digest_seconds = report.seconds - report.exchange_seconds;
  return report;
}

}  // namespace keel::trainer
