#include "bench/scale_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace keel::bench {
namespace {

constexpr int64_t kBucketElements = int64_t{8} << 20;
constexpr ScaleModel k70B{"Llama 70B", 80, 8192, 28672, 1024, 128256};
constexpr ScaleModel k405B{"Llama 405B", 126, 16384, 53248, 1024, 128256};

Dims CompactStrides(const Box& box) { return ContiguousStrides(box.size); }

}  // namespace

ScaleJob ScaleJob::Of(int ranks) {
  struct Known {
    int ranks, tp, pp;
    const ScaleModel& model;
  };
  static constexpr std::array<Known, 4> kKnown = {
      {{128, 8, 4, k70B}, {1024, 8, 8, k70B}, {4096, 8, 16, k405B}, {16384, 8, 16, k405B}}};
  for (const Known& one : kKnown) {
    if (one.ranks == ranks)
      return {one.model, ValueOrThrow(parallel::Layout::Make(ranks, one.tp, one.pp))};
  }
  throw Error(StatusCode::kUsage,
              fmt::format("--ranks {}: there are jobs of 128, 1024, 4096 and 16384 ranks", ranks));
}

ScaleState::ScaleState(const ScaleJob& job) : job_(job) {
  const ScaleModel& model = job.model;
  const int stages = job.layout.pp();
  for (int s = 0; s < stages; ++s) {
    Stage& stage = stages_.emplace_back();
    const auto add = [&](std::string name, Dims shape, int cut) {
      stage.parameters.push_back({std::move(name), shape, cut});
    };
    // As backward finishes them: the last first.
    const Dims table{model.vocabulary, model.hidden};
    if (s == stages - 1) {
      add("lm_head.weight", table, 0);
      add("model.norm.weight", {model.hidden}, -1);
    }
    const parallel::LayerRange range = parallel::LayersOfStage(model.layers, stages, s);
    for (int l = range.end - 1; l >= range.begin; --l) {
      const auto layer = [&](std::string_view what) {
        return fmt::format("model.layers.{}.{}.weight", l, what);
      };
      add(layer("mlp.down_proj"), {model.hidden, model.inner}, 1);
      add(layer("mlp.up_proj"), {model.inner, model.hidden}, 0);
      add(layer("mlp.gate_proj"), {model.inner, model.hidden}, 0);
      add(layer("post_attention_layernorm"), {model.hidden}, -1);
      add(layer("self_attn.o_proj"), {model.hidden, model.hidden}, 1);
      add(layer("self_attn.v_proj"), {model.kv, model.hidden}, 0);
      add(layer("self_attn.k_proj"), {model.kv, model.hidden}, 0);
      add(layer("self_attn.q_proj"), {model.hidden, model.hidden}, 0);
      add(layer("input_layernorm"), {model.hidden}, -1);
    }
    if (s == 0) add("model.embed_tokens.weight", table, 0);
    for (const Parameter& one : stage.parameters) {
      const Box part = PartOf(one, 0);
      stage.extents.push_back({part.size[0], part.elements() / part.size[0]});
    }
    stage.buckets = parallel::PlanBuckets(stage.extents, job.layout.dp(), kBucketElements);
  }
}

Box ScaleState::PartOf(const Parameter& parameter, int tp_rank) const {
  Box box = Box::Whole(parameter.shape);
  if (parameter.cut < 0) return box;
  box.size[parameter.cut] /= job_.layout.tp();
  box.offset[parameter.cut] = tp_rank * box.size[parameter.cut];
  return box;
}

checkpoint::RoleState ScaleState::Of(int rank, std::byte* memory) const {
  const int tp_rank = job_.layout.CoordOf(rank, parallel::Axis::kTp);
  const int dp_rank = job_.layout.CoordOf(rank, parallel::Axis::kDp);
  const Stage& stage = stages_[static_cast<size_t>(job_.layout.CoordOf(rank, parallel::Axis::kPp))];
  checkpoint::RoleState role;
  role.name = "actor";
  for (size_t p = 0; p < stage.parameters.size(); ++p) {
    const Parameter& one = stage.parameters[p];
    const int copy = one.cut < 0 ? tp_rank : 0;
    const Box part = PartOf(one, tp_rank);
    ThrowIfError(role.model.Add({one.name, DType::kBF16, one.shape}, part,
                                {memory, CompactStrides(part)}, dp_rank * job_.layout.tp() + copy));
    const auto rows = stage.buckets.OwnedRows(stage.extents, static_cast<int>(p), dp_rank);
    if (rows.begin == rows.end) continue;
    Box owned = part;
    owned.offset[0] += rows.begin;
    owned.size[0] = rows.end - rows.begin;
    for (const char* kind : {"master", "exp_avg", "exp_avg_sq"}) {
      ThrowIfError(role.optimizer.Add(
          {fmt::format("optimizer.{}.{}", kind, one.name), DType::kF32, one.shape}, owned,
          {memory, CompactStrides(owned)}, copy));
    }
  }
  return role;
}

int64_t ScaleState::LargestShard(const checkpoint::RoleState& role) {
  int64_t largest = 0;
  for (const ShardTable* table : {&role.model, &role.optimizer}) {
    for (const Shard& shard : table->shards())
      largest = std::max(largest, shard.box.elements() * DTypeSize(table->tensor_of(shard).dtype));
  }
  return largest;
}

}  // namespace keel::bench
