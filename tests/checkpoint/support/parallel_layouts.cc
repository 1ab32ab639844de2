#include "tests/checkpoint/support/parallel_layouts.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace keel::checkpoint::testing {
namespace {

constexpr int64_t kHidden = 24;
constexpr int64_t kVocab = 61;
constexpr int64_t kHeads = 8, kKvHeads = 2, kHeadSize = 3;
constexpr int64_t kIntermediate = 40;
constexpr int64_t kExpertSize = 16;
constexpr int kLayers = 8;
constexpr int kExperts = 5;
constexpr int64_t kLoraRank = 2;

// How a weight is divided over the ranks of one pipeline stage.
enum class Split {
  kNone,
  kRows,     // over tensor-parallel ranks, the last ones with less when it does not divide
  kColumns,  // likewise
  kKvRows,   // by heads, of which there may be fewer than ranks
};

struct Weight {
  TensorInfo info;
  Split split = Split::kNone;
  int layer = 0;  // -1: embeddings, kLayers: what follows the last layer
  int expert = -1;
  std::string storage;  // weights of the same name share one block of memory
};

std::vector<Weight> Weights() {
  std::vector<Weight> weights;
  weights.push_back({{"model.embed_tokens.weight", DType::kBF16, Dims{kVocab, kHidden}},
                     Split::kRows,
                     -1,
                     -1,
                     ""});
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const auto add = [&](const std::string& name, DType dtype, Dims shape, Split split,
                         const std::string& storage = "", int expert = -1) {
      weights.push_back({{prefix + name, dtype, shape},
                         split,
                         layer,
                         expert,
                         storage.empty() ? "" : prefix + storage});
    };
    add("input_layernorm.weight", DType::kF32, Dims{kHidden}, Split::kNone);
    add("self_attn.q_proj.weight", DType::kBF16, Dims{kHeads * kHeadSize, kHidden}, Split::kRows,
        "qkv");
    add("self_attn.k_proj.weight", DType::kBF16, Dims{kKvHeads * kHeadSize, kHidden},
        Split::kKvRows, "qkv");
    add("self_attn.v_proj.weight", DType::kBF16, Dims{kKvHeads * kHeadSize, kHidden},
        Split::kKvRows, "qkv");
    add("self_attn.q_proj.lora_A.weight", DType::kF32, Dims{kLoraRank, kHidden}, Split::kNone);
    add("self_attn.q_proj.lora_B.weight", DType::kF32, Dims{kHeads * kHeadSize, kLoraRank},
        Split::kRows);
    add("self_attn.o_proj.weight", DType::kBF16, Dims{kHidden, kHeads * kHeadSize},
        Split::kColumns);
    if (layer % 2 == 0) {
      add("mlp.gate_proj.weight", DType::kBF16, Dims{kIntermediate, kHidden}, Split::kRows,
          "gate_up");
      add("mlp.up_proj.weight", DType::kBF16, Dims{kIntermediate, kHidden}, Split::kRows,
          "gate_up");
      add("mlp.down_proj.weight", DType::kBF16, Dims{kHidden, kIntermediate}, Split::kColumns);
      continue;
    }
    add("mlp.router.weight", DType::kF32, Dims{kExperts, kHidden}, Split::kNone);
    for (int e = 0; e < kExperts; ++e) {
      const std::string expert = "mlp.experts." + std::to_string(e) + ".";
      add(expert + "up_proj.weight", DType::kBF16, Dims{kExpertSize, kHidden}, Split::kRows, "", e);
      add(expert + "down_proj.weight", DType::kBF16, Dims{kHidden, kExpertSize}, Split::kColumns,
          "", e);
    }
  }
  weights.push_back(
      {{"model.norm.weight", DType::kF32, Dims{kHidden}}, Split::kNone, kLayers, -1, ""});
  return weights;
}

constexpr const char* kKinds[] = {"master", "exp_avg", "exp_avg_sq"};

TensorInfo OptimizerTensor(const char* kind, const TensorInfo& weight) {
  return {std::string("optimizer.") + kind + "." + weight.name, DType::kF32, weight.shape};
}

// What tensor-parallel rank `rank` of `size` holds; empty when there is nothing left for it.
Box TensorParallelBox(const Weight& weight, int rank, int size) {
  Box box = Box::Whole(weight.info.shape);
  if (weight.split == Split::kNone || size == 1) return box;
  const int d = weight.split == Split::kColumns ? 1 : 0;
  const int64_t whole = weight.info.shape[d];
  if (weight.split == Split::kKvRows) {
    // Ranks beyond the number of heads share a head.
    const int64_t heads = std::max<int64_t>(1, kKvHeads / size);
    box.offset[d] = rank * kKvHeads / size * kHeadSize;
    box.size[d] = heads * kHeadSize;
    return box;
  }
  const int64_t each = (whole + size - 1) / size;  // padded at the end
  box.offset[d] = std::min(whole, rank * each);
  box.size[d] = std::min(whole, (rank + 1) * each) - box.offset[d];
  return box;
}

struct Place {
  int dp, cp, tp, stage;
};

bool Holds(const ParallelLayout& layout, const Place& place, const Weight& weight) {
  if (weight.expert >= 0 && weight.expert * layout.ep / kExperts != place.dp % layout.ep)
    return false;
  const bool first = place.stage == 0;
  const bool last = place.stage == layout.pp - 1;
  if (weight.layer < 0) return first || last;  // tied to the output layer
  if (weight.layer == kLayers) return last;
  const int chunks = layout.pp * layout.vpp;
  return weight.layer * chunks / kLayers % layout.pp == place.stage;
}

// The rows of each of these boxes that replica `rank` of `size` owns when they are laid out one
// after the other and cut into equal parts, each cut moved to the start of a row.
std::vector<Box> FlatShare(const std::vector<Box>& boxes, int rank, int size) {
  int64_t total = 0;
  for (const Box& box : boxes) total += box.elements();
  const int64_t begin = total * rank / size;
  const int64_t end = total * (rank + 1) / size;
  std::vector<Box> mine;
  int64_t at = 0;
  for (Box box : boxes) {
    const int64_t elements = box.elements();
    if (elements > 0) {
      const int64_t row = elements / box.size[0];
      const auto row_of = [&](int64_t element) {
        return std::clamp<int64_t>((element - at + row - 1) / row, 0, box.size[0]);
      };
      const int64_t from = row_of(begin);
      const int64_t to = row_of(end);
      box.offset[0] += from;
      box.size[0] = to - from;
    }
    mine.push_back(box);
    at += elements;
  }
  return mine;
}

// Boxes of one block of memory, one below the other, with some padding after each row.
void AddFused(RankPart& part, const std::vector<std::pair<TensorInfo, Box>>& boxes, int replica) {
  constexpr int64_t kPadding = 2;
  int64_t rows = 0;
  for (const auto& [info, box] : boxes) rows += box.size[0];
  const int64_t stride = boxes.front().second.size[1] + kPadding;
  const int64_t element = DTypeSize(boxes.front().first.dtype);
  part.memory.push_back(
      std::make_unique<std::vector<std::byte>>(static_cast<size_t>(rows * stride * element + 1)));
  std::byte* data = part.memory.back()->data();
  for (const auto& [info, box] : boxes) {
    ThrowIfError(part.table.Add(info, box, {data, Dims{stride, 1}}, replica));
    data += box.size[0] * stride * element;
  }
}

}  // namespace

std::string ParallelLayout::ToString() const {
  const auto text = [](const char* name, int degree) {
    return degree == 1 ? std::string() : " " + std::string(name) + std::to_string(degree);
  };
  return "dp" + std::to_string(dp) + text("tp", tp) + text("pp", pp) + text("vpp", vpp) +
         text("ep", ep) + text("cp", cp);
}

TrainingState DecoderState(uint64_t seed) {
  std::vector<TensorInfo> model, optimizer;
  for (const Weight& weight : Weights()) {
    model.push_back(weight.info);
    for (const char* kind : kKinds) optimizer.push_back(OptimizerTensor(kind, weight.info));
  }
  return {MakeState(model, seed), MakeState(optimizer, seed + 1)};
}

Cut CutDecoder(const ParallelLayout& layout) {
  const std::vector<Weight> weights = Weights();
  Cut cut({layout.world()}, 0, ModelSize::kTiny);
  for (int rank = 0; rank < layout.world(); ++rank) {
    const Place place{rank / layout.tp / layout.cp % layout.dp, rank / layout.tp % layout.cp,
                      rank % layout.tp, rank / (layout.tp * layout.cp * layout.dp)};
    const auto r = static_cast<size_t>(rank);
    RankPart& model = cut.model[r] = RankPart();
    RankPart& optimizer = cut.optimizer[r] = RankPart();
    const int replica = place.dp * layout.cp + place.cp;
    // 1. Weights, fused ones together.
    std::vector<std::pair<TensorInfo, Box>> fused;
    std::string storage;
    const auto flush = [&] {
      if (!fused.empty()) AddFused(model, fused, replica);
      fused.clear();
    };
    // 2. What the optimizer divides: dense weights over all replicas, experts over those of their
    //    own group.
    std::vector<const Weight*> divided[2];
    std::vector<Box> boxes[2];
    for (const Weight& weight : weights) {
      if (!Holds(layout, place, weight)) continue;
      const Box box = TensorParallelBox(weight, place.tp, layout.tp);
      if (weight.storage != storage) flush();
      storage = weight.storage;
      if (box.empty()) continue;
      if (storage.empty()) {
        model.AddBox(weight.info, box, replica);
      } else {
        fused.emplace_back(weight.info, box);
      }
      // The embeddings' copy on the last stage, and key-value heads that ranks share, are updated
      // by one of those who hold them.
      const bool copy = (weight.layer < 0 && place.stage != 0) ||
                        (weight.split == Split::kKvRows && layout.tp > kKvHeads &&
                         place.tp % (layout.tp / kKvHeads) != 0) ||
                        (weight.split == Split::kNone && place.tp != 0);
      if (copy) continue;
      divided[weight.expert >= 0].push_back(&weight);
      boxes[weight.expert >= 0].push_back(box);
    }
    flush();
    for (const int experts : {0, 1}) {
      const int groups = experts != 0 ? layout.ep : 1;
      const std::vector<Box> share = FlatShare(
          boxes[experts], place.dp / groups * layout.cp + place.cp, layout.dp / groups * layout.cp);
      for (const char* kind : kKinds) {
        for (size_t i = 0; i < share.size(); ++i) {
          if (!share[i].empty())
            optimizer.AddBox(OptimizerTensor(kind, divided[experts][i]->info), share[i]);
        }
      }
    }
  }
  return cut;
}

}  // namespace keel::checkpoint::testing
