#include "checkpoint/read/read_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "common/memory/stream_copy.h"
#include "common/tensors/transfer_check.h"

namespace keel::checkpoint {
namespace {

constexpr int64_t kPrefetched = 512;  // bytes of a run, ahead of it

// The shards of a table by tensor: those of tensor t are order[start[t]] to order[start[t + 1]].
struct ByTensor {
  std::vector<int32_t> start;
  std::vector<int32_t> order;

  explicit ByTensor(const ShardTable& table) : start(table.tensors().size() + 1, 0) {
    for (const Shard& shard : table.shards()) ++start[static_cast<size_t>(shard.tensor) + 1];
    std::partial_sum(start.begin(), start.end(), start.begin());
    order.resize(table.shards().size());
    std::vector<int32_t> next(start.begin(), std::prev(start.end()));
    for (size_t s = 0; s < table.shards().size(); ++s) {
      order[static_cast<size_t>(next[static_cast<size_t>(table.shards()[s].tensor)]++)] =
          static_cast<int32_t>(s);
    }
  }

  std::span<const int32_t> Of(size_t tensor) const {
    return std::span(order).subspan(static_cast<size_t>(start[tensor]),
                                    static_cast<size_t>(start[tensor + 1] - start[tensor]));
  }
};

}  // namespace

BoxRuns ReadPlan::RunsOf(const Piece& piece) const {
  const Shard& shard = ShardOf(piece);
  const Box saved = index_->box(piece.box).box;
  const int64_t element =
      DTypeSize(tables_[static_cast<size_t>(piece.list)]->tensor_of(shard).dtype);
  return BoxRuns(*Intersect(saved, shard.box), saved, shard.box, shard.view.strides, element);
}

void ReadPlan::Scatter(int file, int64_t begin, std::span<const std::byte> bytes) const {
  const int64_t end = begin + static_cast<int64_t>(bytes.size());
  StreamCopy copy;  // the state is large, and is not looked at until all of it is there
  pieces_.ForEachIn(file, begin, end, [&](const Piece& piece) {
    const int64_t base = BaseOf(piece);
    std::byte* const target = TargetOf(piece);
    int64_t last = begin - base;
    RunsOf(piece).ForEach(begin - base, end - base, [&](int64_t from, int64_t to, int64_t size) {
      const std::byte* const run = bytes.data() + (base + from - begin);
      // The next run is likely to be as far on as this one was; the CPU does not see it coming.
      const int64_t ahead = from - last;
      if (ahead > size && from + ahead + kPrefetched <= end - base) {
        for (int64_t at = 0; at < kPrefetched; at += 64) __builtin_prefetch(run + ahead + at);
      }
      last = from;
      copy(target + to, run, size);
    });
  });
}

int64_t ReadPlan::BytesIn(int file, int64_t begin, int64_t end) const {
  int64_t bytes = 0;
  pieces_.ForEachIn(file, begin, end, [&](const Piece& piece) {
    const int64_t base = BaseOf(piece);
    bytes += RunsOf(piece).Within(begin - base, end - base).bytes;
  });
  return bytes;
}

std::byte* ReadPlan::WholeTarget(int file, int64_t begin, int64_t end) const {
  const Piece* only = nullptr;
  int count = 0;
  pieces_.ForEachIn(file, begin, end, [&](const Piece& piece) {
    only = &piece;
    ++count;
  });
  if (count != 1) return nullptr;
  const int64_t base = BaseOf(*only);
  const BoxRuns runs = RunsOf(*only);
  const int64_t i = runs.FirstEndingAfter(begin - base);
  if (i >= runs.count()) return nullptr;
  const auto [from, to] = runs.At(i);
  if (from > begin - base || end - base > from + runs.bytes()) return nullptr;
  return TargetOf(*only) + to + (begin - base - from);
}

Result<ReadPlan> ReadPlan::Make(const Index& index, std::span<const ReadRequest> requests) {
  ReadPlan plan;
  plan.index_ = &index;
  plan.wanted_tensors_.assign(static_cast<size_t>(index.tensors()), false);
  TransferProblems problems;
  std::string another_dtype;  // what all the rest comes from, where a run wants another one
  for (size_t r = 0; r < requests.size(); ++r) {
    const ReadRequest& request = requests[r];
    const ShardTable& table = *request.destination;
    plan.tables_.push_back(&table);
    const int scope = index.FindScope(request.scope);
    const ByTensor by_tensor(table);
    int64_t next = 0;  // record of the tensor that is likely to be asked for now
    for (size_t w = 0; w < table.tensors().size(); ++w) {
      const TensorInfo& wanted = table.tensors()[w];
      const std::span<const int32_t> shards = by_tensor.Of(w);
      const int64_t t = scope < 0 ? -1 : index.FindTensor(scope, wanted.name, next);
      if (t >= 0) next = t + 1;
      // 1. A tensor that is not there, or is another, gives nothing to any of its shards.
      std::optional<Misfit> misfit;
      if (t < 0) {
        misfit = Misfit{TransferProblems::kMissing, wanted.name};
      } else {
        const IndexTensor saved = index.tensor(t);
        misfit = FindMisfit(saved.shape, saved.dtype, wanted);
        plan.wanted_tensors_[static_cast<size_t>(t)] = !misfit;
      }
      // 2. The others each take what they have in common with the saved boxes.
      const bool may_lack = MatchesAny(request.allow_missing, wanted.name);
      for (const int32_t s : shards) {
        if (table.shards()[static_cast<size_t>(s)].box.empty()) continue;
        const Result<bool> whole =
            misfit ? Result<bool>(false)
                   : plan.AddShard(index.tensor(t), static_cast<int32_t>(r), s, may_lack);
        if (whole.ok() && *whole) continue;
        if (whole.ok() && may_lack) {
          plan.uncovered_.emplace_back(static_cast<int>(r), s);
          continue;
        }
        if (t >= 0 && index.tensor(t).dtype != wanted.dtype) {
          another_dtype = fmt::format(
              "its weights are {}, this run's are {}: give the dtype that it was saved with, or "
              "begin anew from its export",
              DTypeName(index.tensor(t).dtype), DTypeName(wanted.dtype));
        }
        problems.Add(
            misfit ? misfit->kind : "tensors that are not covered once",
            fmt::format("{}:{}", request.scope, misfit ? misfit->what : whole.status().message()));
      }
    }
  }
  if (!problems.empty()) {
    const Status status = problems.ToStatus();
    return another_dtype.empty() ? status : status.WithContext(another_dtype);
  }
  plan.pieces_.Seal();
  return plan;
}

Result<bool> ReadPlan::AddShard(const IndexTensor& saved, int32_t request, int32_t shard,
                                bool may_lack) {
  const Shard& wanted = tables_[static_cast<size_t>(request)]->shards()[static_cast<size_t>(shard)];
  std::vector<Box> parts;
  for (int64_t b = saved.first_box; b < saved.first_box + saved.box_count; ++b) {
    const IndexBox box = index_->box(b);
    const std::optional<Box> common = Intersect(box.box, wanted.box);
    if (!common) {
      // Boxes are sorted by offset, the first dim's first.
      if (wanted.box.dims() > 0 && box.box.offset[0] >= wanted.box.offset[0] + wanted.box.size[0])
        break;
      continue;
    }
    parts.push_back(*common);
    const auto [begin, end] =
        BoxRuns(*common, box.box, wanted.box, wanted.view.strides, DTypeSize(saved.dtype))
            .SourceRange();
    pieces_.Add({box.begin + begin, box.begin + end, b, box.file, request, shard});
  }
  return CheckFilled(wanted.box, parts, saved.name, may_lack);
}

std::vector<ChunkNeed> NeedsOf(const ReadPlan& plan, const Index& index) {
  const int64_t chunk_bytes = index.chunk_bytes();
  std::vector<ChunkNeed> needs;
  const std::span<const Piece> pieces = plan.pieces().all();
  std::vector<int64_t> bytes;  // of each chunk of one file
  for (size_t i = 0; i < pieces.size();) {
    const int32_t file = pieces[i].file;
    bytes.assign(static_cast<size_t>(index.file(file).chunk_count), 0);
    for (; i < pieces.size() && pieces[i].file == file; ++i) {
      const Piece& piece = pieces[i];
      const int64_t first = piece.begin / chunk_bytes;
      const int64_t last = (piece.end - 1) / chunk_bytes;
      const BoxRuns runs = plan.RunsOf(piece);
      const int64_t base = plan.BaseOf(piece);
      for (int64_t c = first; c <= last; ++c) {
        bytes[static_cast<size_t>(c)] +=
            runs.Within(c * chunk_bytes - base, (c + 1) * chunk_bytes - base).bytes;
      }
    }
    for (size_t c = 0; c < bytes.size(); ++c) {
      if (bytes[c] == 0) continue;
      const auto eighths = static_cast<int32_t>(
          std::min<int64_t>(8, (bytes[c] * 8 + chunk_bytes - 1) / chunk_bytes));
      const auto chunk = static_cast<int64_t>(c);
      if (!needs.empty() && needs.back().file == file && needs.back().eighths == eighths &&
          needs.back().first + needs.back().count == chunk) {
        ++needs.back().count;
      } else {
        needs.push_back({file, eighths, chunk, 1});
      }
    }
  }
  return needs;
}

}  // namespace keel::checkpoint
