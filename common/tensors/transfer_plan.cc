#include "common/tensors/transfer_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "common/tensors/transfer_check.h"

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

// One distinct box and all tables that hold it, in their order.
struct HeldBox {
  const Box* box = nullptr;
  std::span<const Holder> holders;
};

std::string Describe(const TensorInfo& tensor) {
  return fmt::format("{}{}", DTypeName(tensor.dtype), tensor.shape.ToString());
}

// The shards of all tables by tensor and box, without those of no elements. The tables must outlive
// it; of a million boxes it takes a few dozen bytes each.
class Held {
 public:
  Held(std::span<const ShardTable> tables, TransferProblems* problems) {
    // 1. One number for each tensor, whichever tables mention it.
    std::vector<std::vector<int>> numbers(tables.size());  // per table and its tensor; -1: left out
    for (size_t t = 0; t < tables.size(); ++t) {
      for (const TensorInfo& info : tables[t].tensors()) {
        const auto [at, added] = by_name_.emplace(info.name, static_cast<int>(infos_.size()));
        if (added) infos_.push_back(&info);
        numbers[t].push_back(at->second);
        const TensorInfo& known = *infos_[static_cast<size_t>(at->second)];
        if (known == info) continue;
        numbers[t].back() = -1;
        problems->Add("tensors that differ between the parts of one layout",
                      fmt::format("{} ({} and {})", info.name, Describe(known), Describe(info)));
      }
    }
    // 2. Their holders, tensor by tensor, in the order of the tables.
    std::vector<size_t> end(infos_.size() + 1, 0);
    const auto for_each = [&](const auto& body) {
      for (size_t t = 0; t < tables.size(); ++t) {
        const std::vector<Shard>& shards = tables[t].shards();
        for (size_t s = 0; s < shards.size(); ++s) {
          const int number = numbers[t][static_cast<size_t>(shards[s].tensor)];
          if (number < 0 || shards[s].box.empty()) continue;
          body(static_cast<size_t>(number),
               Holder{static_cast<int>(t), static_cast<int>(s), shards[s].replica});
        }
      }
    };
    for_each([&](size_t number, const Holder&) { ++end[number + 1]; });
    std::partial_sum(end.begin(), end.end(), end.begin());
    holders_.resize(end.back());
    for_each([&](size_t number, const Holder& holder) { holders_[end[number]++] = holder; });
    // 3. The distinct boxes of each tensor, by offset.
    const auto box_of = [&](const Holder& holder) -> const Box& {
      return tables[static_cast<size_t>(holder.table)]
          .shards()[static_cast<size_t>(holder.shard)]
          .box;
    };
    first_box_.reserve(infos_.size() + 1);
    boxes_.reserve(holders_.size());
    for (size_t number = 0, begin = 0; number < infos_.size(); ++number) {
      first_box_.push_back(boxes_.size());
      const std::span<Holder> own(holders_.data() + begin, end[number] - begin);
      begin = end[number];
      if (own.size() > 1) {
        std::stable_sort(own.begin(), own.end(), [&](const Holder& a, const Holder& b) {
          return BoxLess(box_of(a), box_of(b));
        });
      }
      for (size_t i = 0; i < own.size();) {
        const Box& box = box_of(own[i]);
        size_t same = i + 1;
        while (same < own.size() && box_of(own[same]) == box) ++same;
        boxes_.push_back({&box, own.subspan(i, same - i)});
        i = same;
      }
    }
    first_box_.push_back(boxes_.size());
  }

  size_t tensors() const { return infos_.size(); }
  const TensorInfo& info(size_t tensor) const { return *infos_[tensor]; }
  std::span<const HeldBox> boxes(size_t tensor) const {
    return std::span(boxes_).subspan(first_box_[tensor],
                                     first_box_[tensor + 1] - first_box_[tensor]);
  }
  // By name.
  std::optional<size_t> Find(std::string_view name) const {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return std::nullopt;
    return static_cast<size_t>(found->second);
  }

 private:
  std::unordered_map<std::string_view, int> by_name_;
  std::vector<const TensorInfo*> infos_;
  std::vector<Holder> holders_;
  std::vector<HeldBox> boxes_;
  std::vector<size_t> first_box_;  // by tensor, and one past the last
};

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

// The transfers of a plan, shard by shard.
class Transfers {
 public:
  Transfers(size_t sources, size_t destinations) : same_ranks_(sources == destinations) {
    plan_.bytes_from.assign(sources, 0);
    plan_.bytes_to.assign(destinations, 0);
  }

  // What is to be filled.
  struct Wanted {
    int table, shard;
    const Box* box;
  };
  // Has the box filled by those who hold some of it. Boxes may overlap (replicas that are cut
  // differently): each takes what no one before it took. Returns a part that nobody has, if there
  // is one.
  std::optional<Box> Fill(const Wanted& wanted, std::span<const HeldBox> boxes, DType from,
                          DType to) {
    std::vector<Box> remaining = {*wanted.box};
    for (const HeldBox* one : OwnFirst(wanted, boxes)) {
      std::vector<Box> next;
      for (const Box& box : remaining) {
        const std::optional<Box> common = Intersect(box, *one->box);
        if (!common) {
          next.push_back(box);
          continue;
        }
        const Holder& holder = HolderFor(wanted, *one);
        plan_.transfers.push_back(
            {holder.table, holder.shard, wanted.table, wanted.shard, *common});
        plan_.bytes_from[static_cast<size_t>(holder.table)] += BytesOf(*common, from);
        plan_.bytes_to[static_cast<size_t>(wanted.table)] += BytesOf(*common, to);
        AppendDifference(box, *common, &next);
      }
      remaining = std::move(next);
      if (remaining.empty()) return std::nullopt;
    }
    return remaining.front();
  }

  TransferPlan InOrder() && {
    std::sort(plan_.transfers.begin(), plan_.transfers.end(),
              [](const Transfer& a, const Transfer& b) {
                if (a.destination != b.destination) return a.destination < b.destination;
                if (a.destination_shard != b.destination_shard)
                  return a.destination_shard < b.destination_shard;
                return Less(a.box.offset, b.box.offset);
              });
    return std::move(plan_);
  }

 private:
  bool IsOwn(const Wanted& wanted, const Holder& holder) const {
    return same_ranks_ && holder.table == wanted.table;
  }

  // Those that have some of it: what its rank holds itself comes first; then by offset.
  std::vector<const HeldBox*> OwnFirst(const Wanted& wanted, std::span<const HeldBox> boxes) const {
    std::vector<const HeldBox*> order;
    for (const HeldBox& one : boxes) {
      if (Intersect(*one.box, *wanted.box)) order.push_back(&one);
    }
    if (same_ranks_) {
      std::stable_partition(order.begin(), order.end(), [&](const HeldBox* one) {
        return std::any_of(one->holders.begin(), one->holders.end(),
                           [&](const Holder& holder) { return IsOwn(wanted, holder); });
      });
    }
    return order;
  }

  // The rank itself, or who sends least so far.
  const Holder& HolderFor(const Wanted& wanted, const HeldBox& box) const {
    const auto own = std::find_if(box.holders.begin(), box.holders.end(),
                                  [&](const Holder& holder) { return IsOwn(wanted, holder); });
    if (own != box.holders.end()) return *own;
    return *std::min_element(box.holders.begin(), box.holders.end(),
                             [&](const Holder& a, const Holder& b) {
                               return plan_.bytes_from[static_cast<size_t>(a.table)] <
                                      plan_.bytes_from[static_cast<size_t>(b.table)];
                             });
  }

  bool same_ranks_;  // source i and destination i are one rank
  TransferPlan plan_;
};

// A rank may write a sixteenth more than the mean before boxes are cut. The parts are smaller: what
// is dealt out last is to be small.
constexpr int64_t kTolerated = 16;
constexpr int64_t kPartsOfAShare = 64;

}  // namespace

Result<TransferPlan> PlanTransfer(std::span<const ShardTable> sources,
                                  std::span<const ShardTable> destinations,
                                  const TransferOptions& options) {
  TransferProblems problems;
  const Held held(sources, &problems);
  Transfers transfers(sources.size(), destinations.size());
  std::vector<char> used(held.tensors(), 0);

  for (size_t d = 0; d < destinations.size(); ++d) {
    const ShardTable& table = destinations[d];
    for (size_t s = 0; s < table.shards().size(); ++s) {
      const Shard& shard = table.shards()[s];
      const TensorInfo& wanted = table.tensor_of(shard);
      const bool may_lack = MatchesAny(options.allow_missing, wanted.name);
      const std::optional<size_t> tensor = held.Find(wanted.name);
      if (!tensor) {
        if (!may_lack) problems.Add(TransferProblems::kMissing, wanted.name);
        continue;
      }
      used[*tensor] = 1;
      const TensorInfo& info = held.info(*tensor);
      const DType dtype = options.allow_dtype_change ? wanted.dtype : info.dtype;
      if (const auto misfit = FindMisfit(info.shape, dtype, wanted)) {
        problems.Add(misfit->kind, misfit->what);
        continue;
      }
      if (shard.box.empty()) continue;
      const auto left = transfers.Fill({static_cast<int>(d), static_cast<int>(s), &shard.box},
                                       held.boxes(*tensor), info.dtype, wanted.dtype);
      if (left && !may_lack) {
        problems.Add("tensors that are not covered",
                     fmt::format("{} (nobody has {})", wanted.name, left->ToString()));
      }
    }
  }
  if (!options.allow_unused) {
    for (size_t i = 0; i < held.tensors(); ++i) {
      if (!used[i]) problems.Add("tensors that nobody wants", held.info(i).name);
    }
  }
  if (!problems.empty()) return problems.ToStatus();
  TransferPlan plan = std::move(transfers).InOrder();
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
      const std::span<const Box> parts =
          found == received.end() ? std::span<const Box>() : found->second;
      KEEL_RETURN_IF_ERROR(
          CheckFilled(shard.box, parts, name, MatchesAny(options.allow_missing, name)).status());
    }
  }
  return Status::Ok();
}

namespace {

// The dim that a box is cut along; -1 when it has one element.
int CutDim(const Box& box) {
  for (int d = 0; d < box.dims(); ++d) {
    if (box.size[d] > 1) return d;
  }
  return -1;
}

// A box that several ranks hold, in one of the scopes.
struct Choice {
  size_t scope;
  const TensorInfo* tensor;
  const HeldBox* box;
  int64_t bytes;
};

// Deals boxes out to the ranks that hold them.
class Dealer {
 public:
  // `load`: what each rank writes in any case.
  Dealer(std::vector<int64_t> load, Writers writers)
      : load_(std::move(load)), writers_(std::move(writers)) {}

  // The largest first, each to the holder with the least to write. One of more than `most` bytes is
  // cut between as many holders as that gives, as far as there are rows and holders.
  Status Deal(std::span<const Choice> choices, int64_t most) {
    for (const Choice& choice : choices) KEEL_RETURN_IF_ERROR(DealOne(choice, most));
    return Status::Ok();
  }
  int64_t largest() const { return *std::max_element(load_.begin(), load_.end()); }
  Writers Take() && {
    for (auto& scope : writers_) {
      for (std::vector<ShardPart>& parts : scope)
        std::sort(parts.begin(), parts.end(),
                  [](const ShardPart& a, const ShardPart& b) { return a.shard < b.shard; });
    }
    return std::move(writers_);
  }

 private:
  Status DealOne(const Choice& choice, int64_t most) {
    const Box& box = *choice.box->box;
    std::vector<Holder> holders(choice.box->holders.begin(), choice.box->holders.end());
    const int dim = CutDim(box);
    const int64_t rows = dim < 0 ? 1 : box.size[dim];
    int64_t parts = std::min({choice.bytes / most + (choice.bytes % most != 0), rows,
                              static_cast<int64_t>(holders.size())});
    const auto key = [&](const Holder& h) { return std::tuple(LoadOf(h), h.replica, h.table); };
    std::partial_sort(holders.begin(), holders.begin() + parts, holders.end(),
                      [&](const Holder& a, const Holder& b) { return key(a) < key(b); });
    // What those with the least to write come to when the box has made them equal; whoever has more
    // already gets nothing of it.
    int64_t level = choice.bytes;
    for (int64_t p = 0; p < parts; ++p) level += LoadOf(holders[static_cast<size_t>(p)]);
    while (parts > 1 && LoadOf(holders[static_cast<size_t>(parts - 1)]) >= level / parts)
      level -= LoadOf(holders[static_cast<size_t>(--parts)]);
    level /= parts;

    const int64_t row_bytes = choice.bytes / rows;
    std::vector<Box> boxes;
    for (int64_t p = 0, first = 0; first < rows; ++p) {
      const Holder& holder = holders[static_cast<size_t>(p)];
      ShardPart part{holder.shard};
      const int64_t wanted = (level - LoadOf(holder) + row_bytes / 2) / row_bytes;
      const int64_t end =
          p + 1 == parts ? rows : std::min(rows, first + std::max<int64_t>(1, wanted));
      if (end - first < rows) {
        part.first = first;
        part.rows = end - first;
      }
      first = end;
      boxes.push_back(BoxOf({0, box, 0, {}}, part));
      load_[static_cast<size_t>(holder.table)] += BytesOf(boxes.back(), choice.tensor->dtype);
      writers_[choice.scope][static_cast<size_t>(holder.table)].push_back(part);
    }
    return boxes.size() > 1 ? CheckExactCover(box, boxes, choice.tensor->name) : Status::Ok();
  }
  int64_t LoadOf(const Holder& holder) const { return load_[static_cast<size_t>(holder.table)]; }

  std::vector<int64_t> load_;
  Writers writers_;
};

}  // namespace

Box BoxOf(const Shard& shard, const ShardPart& part) {
  Box box = shard.box;
  if (part.rows == 0) return box;
  const int dim = CutDim(box);
  box.offset[dim] += part.first;
  box.size[dim] = part.rows;
  return box;
}

Result<Writers> ChooseWriters(std::span<const WriterScope> scopes, int64_t smallest_part) {
  const size_t ranks = scopes.empty() ? 0 : scopes.front().ranks.size();
  Writers writers(scopes.size(), std::vector<std::vector<ShardPart>>(ranks));
  std::vector<int64_t> load(ranks, 0);
  std::deque<Held> held;  // stay where they are: the choices point into them
  std::vector<Choice> choices;
  int64_t total = 0;
  // 1. Boxes with one holder, since there is no choice. The rest is gathered.
  for (size_t s = 0; s < scopes.size(); ++s) {
    const auto gather = [&]() -> Status {
      TransferProblems problems;
      const Held& scope = held.emplace_back(scopes[s].ranks, &problems);
      if (!problems.empty()) return problems.ToStatus();
      std::vector<Box> boxes;
      for (size_t i = 0; i < scope.tensors(); ++i) {
        const TensorInfo& info = scope.info(i);
        boxes.clear();
        for (const HeldBox& one : scope.boxes(i)) {
          boxes.push_back(*one.box);
          const int64_t bytes = BytesOf(*one.box, info.dtype);
          total += bytes;
          if (one.holders.size() > 1) {
            choices.push_back({s, &info, &one, bytes});
            continue;
          }
          const Holder& holder = one.holders.front();
          load[static_cast<size_t>(holder.table)] += bytes;
          writers[s][static_cast<size_t>(holder.table)].push_back({holder.shard});
        }
        KEEL_RETURN_IF_ERROR(CheckWritten(info.shape, boxes, info.name));
      }
      return Status::Ok();
    };
    const Status status = gather();
    if (!status.ok()) return scopes[s].name.empty() ? status : status.WithContext(scopes[s].name);
  }
  if (ranks == 0) return writers;
  // 2. The rest. Names and boxes break ties, so that every rank finds the same.
  std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    if (a.bytes != b.bytes) return a.bytes > b.bytes;
    if (a.scope != b.scope) return a.scope < b.scope;
    if (a.tensor != b.tensor) return a.tensor->name < b.tensor->name;
    return BoxLess(*a.box->box, *b.box->box);
  });
  Dealer whole(load, writers);
  KEEL_RETURN_IF_ERROR(whole.Deal(choices, kNeverCut));
  // 3. Whole boxes are the better files; they are cut where that would make all wait for one rank.
  const int64_t mean = total / static_cast<int64_t>(ranks);
  const int64_t most = std::max(smallest_part, mean / kPartsOfAShare);
  if (whole.largest() - mean <= mean / kTolerated || most >= whole.largest())
    return std::move(whole).Take();
  Dealer cut(std::move(load), std::move(writers));
  KEEL_RETURN_IF_ERROR(cut.Deal(choices, most));
  return std::move(cut).Take();
}

Result<std::vector<ShardTable>> AssignWriters(std::span<const ShardTable> ranks) {
  const WriterScope scope{"", ranks};
  KEEL_ASSIGN_OR_RETURN(const Writers writes, ChooseWriters(std::span(&scope, 1), kNeverCut));
  std::vector<ShardTable> writers(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const ShardPart& part : writes.front()[r]) {
      const Shard& shard = ranks[r].shards()[static_cast<size_t>(part.shard)];
      KEEL_RETURN_IF_ERROR(writers[r].Add(ranks[r].tensor_of(shard), shard.box, shard.view));
    }
  }
  return writers;
}

}  // namespace keel
