#include "common/transfer_plan.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace keel {
namespace {

int64_t BytesOf(const Box& box, DType dtype) { return box.elements() * DTypeSize(dtype); }

bool Less(const Dims& a, const Dims& b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
}

bool BoxLess(const Box& a, const Box& b) {
  if (!(a.offset == b.offset)) return Less(a.offset, b.offset);
  return Less(a.size, b.size);
}

struct Holder {
  int table = 0;
  int shard = 0;
  int replica = 0;
};

// One distinct box and all tables that hold it.
struct HeldBox {
  Box box;
  std::vector<Holder> holders;
};

struct HeldTensor {
  TensorInfo info;
  std::vector<HeldBox> boxes;  // by offset
};

using Held = std::unordered_map<std::string_view, HeldTensor>;

// What is wrong, per kind, so that one message can list it all.
class Problems {
 public:
  void Add(const std::string& kind, std::string what) { by_kind_[kind].insert(std::move(what)); }
  bool empty() const { return by_kind_.empty(); }
  Status ToStatus() const {
    std::string text;
    for (const auto& [kind, names] : by_kind_) {
      if (!text.empty()) text += "; ";
      text += fmt::format("{} ({}): {}", kind, names.size(), fmt::join(names, ", "));
    }
    return Status(StatusCode::kInvalidData, std::move(text));
  }

 private:
  std::map<std::string, std::set<std::string>> by_kind_;
};

std::string Describe(const TensorInfo& tensor) {
  return fmt::format("{}{}", DTypeName(tensor.dtype), tensor.shape.ToString());
}

// Groups the shards of all tables by tensor and box.
Held GroupBoxes(std::span<const ShardTable> tables, Problems* problems) {
  Held held;
  for (size_t t = 0; t < tables.size(); ++t) {
    for (size_t s = 0; s < tables[t].shards().size(); ++s) {
      const Shard& shard = tables[t].shards()[s];
      const TensorInfo& info = tables[t].tensor_of(shard);
      HeldTensor& tensor = held[info.name];
      if (tensor.info.name.empty()) tensor.info = info;
      if (!(tensor.info == info)) {
        problems->Add(
            "tensors that differ between the parts of one layout",
            fmt::format("{} ({} and {})", info.name, Describe(tensor.info), Describe(info)));
        continue;
      }
      if (shard.box.empty()) continue;
      tensor.boxes.push_back(
          {shard.box, {{static_cast<int>(t), static_cast<int>(s), shard.replica}}});
    }
  }
  for (auto& [name, tensor] : held) {
    std::stable_sort(tensor.boxes.begin(), tensor.boxes.end(),
                     [](const HeldBox& a, const HeldBox& b) { return BoxLess(a.box, b.box); });
    std::vector<HeldBox> distinct;
    for (HeldBox& one : tensor.boxes) {
      if (!distinct.empty() && distinct.back().box == one.box) {
        distinct.back().holders.push_back(one.holders.front());
      } else {
        distinct.push_back(std::move(one));
      }
    }
    tensor.boxes = std::move(distinct);
  }
  return held;
}

// Appends `box` without `hole`, which lies in it, as at most two boxes a dim.
void AppendDifference(const Box& box, const Box& hole, std::vector<Box>* out) {
  Box rest = box;
  for (int d = 0; d < box.dims(); ++d) {
    const int64_t before = hole.offset[d] - rest.offset[d];
    if (before > 0) {
      Box part = rest;
      part.size[d] = before;
      out->push_back(part);
    }
    const int64_t end = hole.offset[d] + hole.size[d];
    const int64_t after = rest.offset[d] + rest.size[d] - end;
    if (after > 0) {
      Box part = rest;
      part.offset[d] = end;
      part.size[d] = after;
      out->push_back(part);
    }
    rest.offset[d] = hole.offset[d];
    rest.size[d] = hole.size[d];
  }
}

bool Matches(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

}  // namespace

Result<TransferPlan> PlanTransfer(std::span<const ShardTable> sources,
                                  std::span<const ShardTable> destinations,
                                  const TransferOptions& options) {
  Problems problems;
  const Held held = GroupBoxes(sources, &problems);
  const bool same_ranks = sources.size() == destinations.size();
  TransferPlan plan;
  plan.bytes_from.assign(sources.size(), 0);
  plan.bytes_to.assign(destinations.size(), 0);
  std::set<std::string_view> used;

  for (size_t d = 0; d < destinations.size(); ++d) {
    const ShardTable& table = destinations[d];
    for (size_t s = 0; s < table.shards().size(); ++s) {
      const Shard& shard = table.shards()[s];
      const TensorInfo& wanted = table.tensor_of(shard);
      const bool may_lack = Matches(options.allow_missing, wanted.name);
      const auto found = held.find(wanted.name);
      if (found == held.end()) {
        if (!may_lack) problems.Add("missing tensors", wanted.name);
        continue;
      }
      const HeldTensor& tensor = found->second;
      used.insert(tensor.info.name);
      if (!(tensor.info.shape == wanted.shape)) {
        problems.Add("tensors of another shape",
                     fmt::format("{} (has {}, expected {})", wanted.name,
                                 tensor.info.shape.ToString(), wanted.shape.ToString()));
        continue;
      }
      if (tensor.info.dtype != wanted.dtype && !options.allow_dtype_change) {
        problems.Add("tensors of another dtype",
                     fmt::format("{} (has {}, expected {})", wanted.name,
                                 DTypeName(tensor.info.dtype), DTypeName(wanted.dtype)));
        continue;
      }
      if (shard.box.empty()) continue;

      // What this rank holds itself comes first; then by offset.
      std::vector<const HeldBox*> order;
      for (const HeldBox& one : tensor.boxes) {
        if (Intersect(one.box, shard.box)) order.push_back(&one);
      }
      const auto own = [&](const HeldBox* one) {
        return std::any_of(one->holders.begin(), one->holders.end(),
                           [&](const Holder& h) { return h.table == static_cast<int>(d); });
      };
      if (same_ranks) std::stable_partition(order.begin(), order.end(), own);

      // Boxes may overlap (replicas that are cut differently): each takes what no one before it
      // took.
      std::vector<Box> remaining = {shard.box};
      for (const HeldBox* one : order) {
        std::vector<Box> next;
        for (const Box& box : remaining) {
          const std::optional<Box> common = Intersect(box, one->box);
          if (!common) {
            next.push_back(box);
            continue;
          }
          const Holder* from = nullptr;
          for (const Holder& holder : one->holders) {
            if (same_ranks && holder.table == static_cast<int>(d)) {
              from = &holder;
              break;
            }
            const auto load = [&](const Holder& h) {
              return plan.bytes_from[static_cast<size_t>(h.table)];
            };
            if (from == nullptr || load(holder) < load(*from)) from = &holder;
          }
          plan.transfers.push_back(
              {from->table, from->shard, static_cast<int>(d), static_cast<int>(s), *common});
          plan.bytes_from[static_cast<size_t>(from->table)] += BytesOf(*common, tensor.info.dtype);
          plan.bytes_to[d] += BytesOf(*common, wanted.dtype);
          AppendDifference(box, *common, &next);
        }
        remaining = std::move(next);
        if (remaining.empty()) break;
      }
      if (!remaining.empty() && !may_lack) {
        problems.Add("tensors that are not covered",
                     fmt::format("{} (nobody has {})", wanted.name, remaining.front().ToString()));
      }
    }
  }
  if (!options.allow_unused) {
    for (const auto& [name, tensor] : held) {
      if (!used.contains(name)) problems.Add("tensors that nobody wants", std::string(name));
    }
  }
  if (!problems.empty()) return problems.ToStatus();
  std::sort(plan.transfers.begin(), plan.transfers.end(), [](const Transfer& a, const Transfer& b) {
    if (a.destination != b.destination) return a.destination < b.destination;
    if (a.destination_shard != b.destination_shard)
      return a.destination_shard < b.destination_shard;
    return Less(a.box.offset, b.box.offset);
  });
  KEEL_RETURN_IF_ERROR(CheckPlan(plan, sources, destinations, options));
  return plan;
}

Status CheckPlan(const TransferPlan& plan, std::span<const ShardTable> sources,
                 std::span<const ShardTable> destinations, const TransferOptions& options) {
  const auto bug = [](std::string what) {
    return Status(StatusCode::kInternal, "transfer plan: " + std::move(what));
  };
  std::map<std::pair<int, int>, std::vector<Box>> received;
  for (const Transfer& one : plan.transfers) {
    if (one.source < 0 || one.source >= static_cast<int>(sources.size()) || one.destination < 0 ||
        one.destination >= static_cast<int>(destinations.size())) {
      return bug("a transfer names a table that does not exist");
    }
    const ShardTable& source = sources[static_cast<size_t>(one.source)];
    const ShardTable& destination = destinations[static_cast<size_t>(one.destination)];
    if (one.source_shard < 0 || one.source_shard >= static_cast<int>(source.shards().size()) ||
        one.destination_shard < 0 ||
        one.destination_shard >= static_cast<int>(destination.shards().size())) {
      return bug("a transfer names a shard that does not exist");
    }
    const Shard& from = source.shards()[static_cast<size_t>(one.source_shard)];
    const Shard& to = destination.shards()[static_cast<size_t>(one.destination_shard)];
    if (source.tensor_of(from).name != destination.tensor_of(to).name ||
        !from.box.Contains(one.box) || !to.box.Contains(one.box)) {
      return bug(fmt::format("{} of '{}' is not in both shards", one.box.ToString(),
                             source.tensor_of(from).name));
    }
    received[{one.destination, one.destination_shard}].push_back(one.box);
  }
  for (size_t d = 0; d < destinations.size(); ++d) {
    for (size_t s = 0; s < destinations[d].shards().size(); ++s) {
      const Shard& shard = destinations[d].shards()[s];
      const std::string& name = destinations[d].tensor_of(shard).name;
      if (shard.box.empty()) continue;
      const auto found = received.find({static_cast<int>(d), static_cast<int>(s)});
      if (Matches(options.allow_missing, name)) {
        if (found != received.end() && FindOverlap(found->second)) {
          return bug(
              fmt::format("{} of '{}' receives an element twice", shard.box.ToString(), name));
        }
        continue;
      }
      if (found == received.end())
        return bug(fmt::format("{} of '{}' receives nothing", shard.box.ToString(), name));
      KEEL_RETURN_IF_ERROR(CheckExactCover(shard.box, found->second, name));
    }
  }
  return Status::Ok();
}

Result<std::vector<ShardTable>> AssignWriters(std::span<const ShardTable> ranks) {
  Problems problems;
  const Held held = GroupBoxes(ranks, &problems);
  if (!problems.empty()) return problems.ToStatus();

  struct Choice {
    const HeldTensor* tensor;
    const HeldBox* box;
    int64_t bytes;
  };
  std::vector<Choice> choices;
  for (const auto& [name, tensor] : held) {
    std::vector<Box> boxes;
    for (const HeldBox& one : tensor.boxes) {
      boxes.push_back(one.box);
      choices.push_back({&tensor, &one, BytesOf(one.box, tensor.info.dtype)});
    }
    const Box whole = Box::Whole(tensor.info.shape);
    if (!whole.empty()) KEEL_RETURN_IF_ERROR(CheckExactCover(whole, boxes, name));
  }
  // Those with one holder first, since there is no choice; then the largest first, each to the
  // holder with the least to write. Names and boxes break ties, so that every rank finds the same.
  std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    const bool a_fixed = a.box->holders.size() == 1;
    const bool b_fixed = b.box->holders.size() == 1;
    if (a_fixed != b_fixed) return a_fixed;
    if (a.bytes != b.bytes) return a.bytes > b.bytes;
    if (a.tensor->info.name != b.tensor->info.name)
      return a.tensor->info.name < b.tensor->info.name;
    return BoxLess(a.box->box, b.box->box);
  });
  std::vector<int64_t> load(ranks.size(), 0);
  std::vector<std::vector<char>> writes(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) writes[r].assign(ranks[r].shards().size(), 0);
  for (const Choice& choice : choices) {
    const Holder* best = nullptr;
    for (const Holder& holder : choice.box->holders) {
      const auto key = [&](const Holder& h) {
        return std::tuple(load[static_cast<size_t>(h.table)], h.replica, h.table);
      };
      if (best == nullptr || key(holder) < key(*best)) best = &holder;
    }
    load[static_cast<size_t>(best->table)] += choice.bytes;
    writes[static_cast<size_t>(best->table)][static_cast<size_t>(best->shard)] = 1;
  }
  std::vector<ShardTable> writers(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (size_t s = 0; s < ranks[r].shards().size(); ++s) {
      if (!writes[r][s]) continue;
      const Shard& shard = ranks[r].shards()[s];
      KEEL_RETURN_IF_ERROR(writers[r].Add(ranks[r].tensor_of(shard), shard.box, shard.view));
    }
  }
  return writers;
}

}  // namespace keel
