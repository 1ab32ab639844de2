#include "bench/weight_sync_peers.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <utility>

#include "common/status.h"
#include "common/tensors/transfer_plan.h"
#include "trainer/sync/group_bytes.h"

namespace keel::bench {

namespace {

std::vector<ShardTable> TablesOfAll(parallel::ProcessGroup& world, const ShardTable& mine) {
  std::vector<ShardTable> tables;
  for (const std::string& text : trainer::AllGatherBytes(world, mine.Serialize(), at::kCPU))
    tables.push_back(ValueOrThrow(ShardTable::Deserialize(text)));
  return tables;
}

int64_t BytesOf(const TensorInfo& tensor, const Box& box) {
  return box.elements() * static_cast<int64_t>(DTypeSize(tensor.dtype));
}

at::Tensor Bytes(int64_t bytes) { return at::empty({bytes}, at::kByte); }

at::Tensor BytesAt(std::byte* data, int64_t bytes) {
  return at::from_blob(
      data, {bytes}, [](void*) {}, at::kByte);
}

std::byte* DataOf(const at::Tensor& bytes) { return static_cast<std::byte*>(bytes.data_ptr()); }

StridedView Contiguous(const at::Tensor& bytes, const Dims& shape) {
  return {DataOf(bytes), ContiguousStrides(shape)};
}

void Copy(const TensorInfo& tensor, const Box& box, const Box& from_box, const StridedView& from,
          const Box& to_box, const StridedView& to) {
  CopyBox(box, from_box, from, to_box, to, static_cast<int64_t>(DTypeSize(tensor.dtype)));
}

// A shard as one run of bytes: itself, or a copy.
at::Tensor AsRun(const TensorInfo& tensor, const Shard& shard) {
  const int64_t bytes = BytesOf(tensor, shard.box);
  if (shard.view.strides == ContiguousStrides(shard.box.size)) {
    return BytesAt(shard.view.data, bytes);
  }
  at::Tensor run = Bytes(bytes);
  Copy(tensor, shard.box, shard.box, shard.view, shard.box, Contiguous(run, shard.box.size));
  return run;
}

// A box of whole rows is a run of the tensor's memory.
bool IsRun(const Box& box, const Dims& shape) {
  for (int d = 1; d < box.dims(); ++d) {
    if (box.size[d] != shape[d]) return false;
  }
  return true;
}

void TakeSlices(const TensorInfo& tensor, const at::Tensor& whole, const ShardTable& rollout) {
  const int index = rollout.Find(tensor.name);
  for (const Shard& shard : rollout.shards()) {
    if (shard.tensor != index) continue;
    Copy(tensor, shard.box, Box::Whole(tensor.shape), Contiguous(whole, tensor.shape), shard.box,
         shard.view);
  }
}

}  // namespace

GatherBroadcast::GatherBroadcast(parallel::ProcessGroup& world, const ShardTable& trainer)
    : world_(world) {
  const std::vector<ShardTable> tables = TablesOfAll(world, trainer);
  const std::vector<ShardTable> owners = ValueOrThrow(AssignWriters(tables));
  std::map<std::string, Whole> by_name;
  for (size_t r = 0; r < owners.size(); ++r) {
    for (const Shard& owned : owners[r].shards()) {
      const TensorInfo& tensor = owners[r].tensor_of(owned);
      const int index = tables[r].Find(tensor.name);
      const std::vector<Shard>& shards = tables[r].shards();
      int place = 0;
      while (shards[static_cast<size_t>(place)].tensor != index ||
             !(shards[static_cast<size_t>(place)].box == owned.box))
        ++place;
      Whole& whole = by_name[tensor.name];
      whole.tensor = tensor;
      whole.parts.push_back({static_cast<int>(r), place, owned.box});
    }
  }
  for (auto& [name, whole] : by_name) tensors_.push_back(std::move(whole));
}

void GatherBroadcast::Run(const ShardTable& trainer, const ShardTable& rollout) {
  const at::NoGradGuard no_grad;
  const int me = world_.rank();
  for (const Whole& each : tensors_) {
    const TensorInfo& tensor = each.tensor;
    const Box all = Box::Whole(tensor.shape);
    at::Tensor whole = Bytes(BytesOf(tensor, all));
    if (me == 0) {
      std::vector<std::unique_ptr<parallel::Work>> works;
      std::vector<std::pair<const Part*, at::Tensor>> received;
      for (const Part& part : each.parts) {
        if (part.rank == 0) continue;
        const int64_t bytes = BytesOf(tensor, part.box);
        const int64_t row = tensor.shape.size() == 0 ? 0 : whole.numel() / tensor.shape[0];
        const bool in_place = tensor.shape.size() > 0 && IsRun(part.box, tensor.shape);
        at::Tensor into =
            in_place ? whole.narrow(0, part.box.offset[0] * row, bytes) : Bytes(bytes);
        works.push_back(world_.RecvAsync(into, part.rank, 0));
        if (!in_place) received.emplace_back(&part, into);
      }
      for (const Part& part : each.parts) {
        if (part.rank != 0) continue;
        const Shard& shard = trainer.shards()[static_cast<size_t>(part.shard)];
        Copy(tensor, part.box, part.box, shard.view, all, Contiguous(whole, tensor.shape));
      }
      for (const auto& work : works) work->Wait();
      for (const auto& [part, bytes] : received) {
        Copy(tensor, part->box, part->box, Contiguous(bytes, part->box.size), all,
             Contiguous(whole, tensor.shape));
      }
    } else {
      for (const Part& part : each.parts) {
        if (part.rank != me) continue;
        const at::Tensor run = AsRun(tensor, trainer.shards()[static_cast<size_t>(part.shard)]);
        world_.SendAsync(run, 0, 0)->Wait();
      }
    }
    world_.Broadcast(whole, 0);
    TakeSlices(tensor, whole, rollout);
  }
}

StageBroadcast::StageBroadcast(parallel::ParallelContext& context, const ShardTable& trainer)
    : context_(context) {
  const parallel::Layout& layout = context.layout();
  if (layout.dp() != 1) {
    throw Error(StatusCode::kUsage, "the stage-broadcast peer knows no data parallelism");
  }
  const std::vector<ShardTable> tables = TablesOfAll(context.world(), trainer);
  std::map<std::string, Whole> by_name;
  for (int stage = layout.pp() - 1; stage >= 0; --stage) {  // the first stage stays
    std::map<std::string, std::vector<Box>> boxes;
    for (int tp_rank = 0; tp_rank < layout.tp(); ++tp_rank) {
      const auto rank = static_cast<size_t>(stage * layout.tp() + tp_rank);
      const std::vector<Shard>& shards = tables[rank].shards();
      for (size_t i = 0; i < shards.size(); ++i) {
        const TensorInfo& tensor = tables[rank].tensor_of(shards[i]);
        Whole& whole = by_name[tensor.name];
        whole.tensor = tensor;
        whole.stage = stage;
        if (static_cast<int>(rank) == context.rank()) whole.shard = static_cast<int>(i);
        boxes[tensor.name].push_back(shards[i].box);
      }
    }
    for (auto& [name, found] : boxes) by_name[name].boxes = std::move(found);
  }
  for (auto& [name, whole] : by_name) {
    for (const Box& box : whole.boxes) {
      if (box.elements() == whole.boxes[0].elements()) continue;
      throw Error(StatusCode::kUsage,
                  fmt::format("the stage-broadcast peer needs equal parts, not those of {}", name));
    }
    tensors_.push_back(std::move(whole));
  }
}

void StageBroadcast::Run(const ShardTable& trainer, const ShardTable& rollout) {
  const at::NoGradGuard no_grad;
  const auto tp = static_cast<int64_t>(context_.layout().tp());
  for (const Whole& each : tensors_) {
    const TensorInfo& tensor = each.tensor;
    const Box& mine = each.boxes[static_cast<size_t>(context_.tp_rank())];
    const bool owner = context_.pp_rank() == each.stage;
    at::Tensor part = owner ? AsRun(tensor, trainer.shards()[static_cast<size_t>(each.shard)])
                            : Bytes(BytesOf(tensor, mine));
    if (context_.layout().pp() > 1) context_.pp_forward().Broadcast(part, each.stage);
    if (mine.elements() == tensor.shape.elements()) {  // the same on all
      TakeSlices(tensor, part, rollout);
      continue;
    }
    at::Tensor gathered = Bytes(tp * part.numel());
    context_.tp().AllGather(gathered, part);
    if (IsRun(mine, tensor.shape)) {
      TakeSlices(tensor, gathered, rollout);
      continue;
    }
    const at::Tensor whole = Bytes(gathered.numel());
    for (size_t r = 0; r < each.boxes.size(); ++r) {
      const Box& box = each.boxes[r];
      const at::Tensor piece =
          gathered.narrow(0, static_cast<int64_t>(r) * part.numel(), part.numel());
      Copy(tensor, box, box, Contiguous(piece, box.size), Box::Whole(tensor.shape),
           Contiguous(whole, tensor.shape));
    }
    TakeSlices(tensor, whole, rollout);
  }
}

}  // namespace keel::bench
