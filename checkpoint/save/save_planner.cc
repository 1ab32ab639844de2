#include "checkpoint/save/save_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "checkpoint/format/names.h"
#include "checkpoint/format/safetensors.h"
#include "common/compress.h"
#include "common/fail_point.h"
#include "common/guarded.h"
#include "common/hash.h"
#include "common/tensors/transfer_plan.h"
#include "common/wire.h"

namespace keel::checkpoint {
namespace {

// Of one rank, in bytes: far more than millions of boxes take.
constexpr size_t kLargestTables = size_t{1} << 32;

struct ScopeTable {
  std::string role;
  FileRole kind = FileRole::kModel;
  const ShardTable* table = nullptr;
  std::string scope() const { return fmt::format("{}/{}", role, FileRoleName(kind)); }
};

std::vector<ScopeTable> Selected(std::span<const RoleState> roles, const Contents& contents) {
  std::vector<ScopeTable> selected;
  for (const RoleState& role : roles) {
    if (contents.model || contents.hf_model)
      selected.push_back({role.name, FileRole::kModel, &role.model});
    if (contents.optimizer) selected.push_back({role.name, FileRole::kOptimizer, &role.optimizer});
  }
  return selected;
}

uint64_t KeyOf(std::span<const ScopeTable> scopes) {
  WireWriter words;
  for (const ScopeTable& one : scopes) {
    words.Text(one.scope()).U64(one.table->Fingerprint());
  }
  return Hash64(words.bytes());
}

// Adds tensors to a plan, each once, though thousands of ranks have it.
class TensorNumbers {
 public:
  explicit TensorNumbers(SavePlan* plan) : plan_(*plan) {}

  // The number in the plan of each tensor of a rank's table.
  Result<std::span<const int>> Of(const std::string& scope, const ShardTable& table) {
    std::vector<int>& numbers = last_[scope];
    const size_t known = numbers.size();
    numbers.resize(table.tensors().size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      const TensorInfo& info = table.tensors()[i];
      // Ranks of one pipeline stage have the same tensors in the same order.
      if (i < known && plan_.tensors[static_cast<size_t>(numbers[i])].info == info) continue;
      const auto [found, is_new] =
          numbers_.try_emplace({scope, info.name}, static_cast<int>(plan_.tensors.size()));
      if (is_new) plan_.tensors.push_back({scope, info});
      numbers[i] = found->second;
      if (!(plan_.tensors[static_cast<size_t>(found->second)].info == info)) {
        return Status(
            StatusCode::kInternal,
            fmt::format("{}: '{}' has another shape or dtype on another rank", scope, info.name));
      }
    }
    return std::span<const int>(numbers);
  }

 private:
  SavePlan& plan_;
  std::map<std::pair<std::string, std::string>, int> numbers_;  // by scope and name
  std::map<std::string, std::vector<int>> last_;                // by scope: the last table's
};

// Splits the boxes of a scope that one rank writes into files in which no tensor appears twice,
// since a safetensors file has one entry per name. `numbers`: of the table's tensors in the plan.
std::vector<PlannedFile> FilesOf(const std::string& role, FileRole kind, int rank,
                                 const ShardTable& table, std::span<const int> numbers,
                                 std::span<const ShardPart> writes) {
  std::vector<PlannedFile> files;
  std::vector<size_t> counts;  // by file
  std::vector<size_t> seen(table.tensors().size(), 0);
  const auto part_of = [&](int source) {
    return seen[static_cast<size_t>(table.shards()[static_cast<size_t>(source)].tensor)]++;
  };
  for (const ShardPart& one : writes) {
    const size_t part = part_of(one.shard);
    if (part == counts.size()) counts.push_back(0);
    ++counts[part];
  }
  for (size_t part = 0; part < counts.size(); ++part) {
    PlannedFile& file = files.emplace_back();
    file.role = role;
    file.kind = kind;
    file.scope = fmt::format("{}/{}", role, FileRoleName(kind));
    file.path = ShardFileName(file.scope, rank, static_cast<int>(part));
    file.rank = rank;
    file.shards.reserve(counts[part]);
  }
  seen.assign(seen.size(), 0);
  for (const ShardPart& one : writes) {
    const Shard& shard = table.shards()[static_cast<size_t>(one.shard)];
    files[part_of(one.shard)].shards.push_back(
        {numbers[static_cast<size_t>(shard.tensor)], one.shard, BoxOf(shard, one), 0});
  }
  return files;
}

Status LayOut(const SavePlan& plan, PlannedFile& file) {
  std::vector<SafetensorsPart> parts;
  parts.reserve(file.shards.size());
  for (const PlannedShard& shard : file.shards) {
    const TensorInfo& tensor = plan.tensor_of(shard);
    parts.push_back({tensor.name, tensor.dtype, shard.box.size, shard.box.offset});
  }
  KEEL_ASSIGN_OR_RETURN(file.header, BuildShardedSafetensorsHeader(parts));
  int64_t at = static_cast<int64_t>(file.header.size());
  for (PlannedShard& shard : file.shards) {
    shard.begin = at;
    at += shard.box.elements() * DTypeSize(plan.tensor_of(shard).dtype);
  }
  file.size = at;
  return Status::Ok();
}

// What each rank has of each scope, and what it writes of that.
struct Scope {
  std::vector<ShardTable> tables;
  std::vector<std::vector<ShardPart>> writes;
};
using Scopes = std::map<std::pair<std::string, FileRole>, Scope>;

std::string Encode(std::span<const ScopeTable> scopes) {
  WireWriter out;
  for (const ScopeTable& one : scopes) {
    out.Text(one.role).U64(static_cast<uint64_t>(one.kind)).Text(one.table->Serialize());
  }
  return Compress(out.bytes());
}

Result<Scopes> DecodeTables(std::vector<std::string> all) {
  Scopes scopes;
  for (size_t r = 0; r < all.size(); ++r) {
    KEEL_ASSIGN_OR_RETURN(const std::string tables, Decompress(all[r], kLargestTables));
    for (WireReader in(tables); !in.AtEnd();) {
      std::string role;
      std::string_view table;
      uint64_t kind = 0;
      if (!in.Text(&role) || !in.U64(&kind) || !in.View(&table)) {
        return Status(StatusCode::kInternal, fmt::format("rank {} sent malformed tables", r));
      }
      Scope& scope = scopes[{role, static_cast<FileRole>(kind)}];
      scope.tables.resize(all.size());
      KEEL_ASSIGN_OR_RETURN(scope.tables[r], ShardTable::Deserialize(table));
    }
    all[r] = {};  // of a million boxes this is a good part of the memory
  }
  return scopes;
}

// What rank 0 tells a rank: size and roles of the whole, and which shards it is to write.
std::string EncodeShare(const SavePlan& plan, const Scopes& scopes, size_t rank) {
  WireWriter out;
  out.Texts(plan.roles).I64(plan.total_bytes).I64(plan.largest_rank_bytes);
  for (const auto& [key, scope] : scopes) {
    out.Text(key.first).U64(static_cast<uint64_t>(key.second)).Count(scope.writes[rank].size());
    for (const ShardPart& part : scope.writes[rank]) {
      out.U32(static_cast<uint32_t>(part.shard) << 1 | (part.rows > 0 ? 1 : 0));
      if (part.rows == 0) continue;
      out.I64(part.first).I64(part.rows);
    }
  }
  return std::move(out).Take();
}

// Rank 0's plan without the files.
Result<SavePlan> ChooseAll(Scopes* scopes, size_t world, int64_t smallest_part) {
  SavePlan plan;
  std::vector<WriterScope> parts;
  for (const auto& [key, scope] : *scopes) {
    const auto& [role, kind] = key;
    if (plan.roles.empty() || plan.roles.back() != role) plan.roles.push_back(role);  // sorted
    parts.push_back({fmt::format("{}/{}", role, FileRoleName(kind)), scope.tables});
  }
  KEEL_ASSIGN_OR_RETURN(Writers writers, ChooseWriters(parts, smallest_part));
  std::vector<int64_t> bytes_of_rank(world, 0);
  size_t next = 0;
  for (auto& [key, scope] : *scopes) {
    scope.writes = std::move(writers[next++]);
    for (size_t r = 0; r < world; ++r) {
      const ShardTable& table = scope.tables[r];
      for (const ShardPart& part : scope.writes[r]) {
        const Shard& shard = table.shards()[static_cast<size_t>(part.shard)];
        bytes_of_rank[r] += BoxOf(shard, part).elements() * DTypeSize(table.tensor_of(shard).dtype);
      }
    }
  }
  plan.total_bytes = std::accumulate(bytes_of_rank.begin(), bytes_of_rank.end(), int64_t{0});
  plan.largest_rank_bytes = *std::max_element(bytes_of_rank.begin(), bytes_of_rank.end());
  return plan;
}

// Adds the files of one rank in one scope.
Status AddFiles(const std::string& role, FileRole kind, int rank, const ShardTable& table,
                std::span<const ShardPart> writes, TensorNumbers* tensors, SavePlan* plan) {
  KEEL_ASSIGN_OR_RETURN(const std::span<const int> numbers,
                        tensors->Of(fmt::format("{}/{}", role, FileRoleName(kind)), table));
  for (PlannedFile& file : FilesOf(role, kind, rank, table, numbers, writes)) {
    KEEL_RETURN_IF_ERROR(LayOut(*plan, file));
    plan->files.push_back(std::move(file));
  }
  return Status::Ok();
}

// Another rank's plan, from what rank 0 tells it.
Result<SavePlan> DecodeShare(std::string_view bytes, std::span<const ScopeTable> own, int rank) {
  const Status malformed(StatusCode::kInternal, "rank 0 sent a malformed plan");
  WireReader in(bytes);
  SavePlan plan;
  TensorNumbers tensors(&plan);
  uint64_t roles = 0;
  if (!in.U64(&roles) || roles > in.remaining()) return malformed;
  plan.roles.resize(roles);
  for (std::string& role : plan.roles) {
    if (!in.Text(&role)) return malformed;
  }
  if (!in.I64(&plan.total_bytes) || !in.I64(&plan.largest_rank_bytes)) return malformed;
  while (!in.AtEnd()) {
    std::string role;
    uint64_t kind = 0, count = 0;
    if (!in.Text(&role) || !in.U64(&kind) || !in.U64(&count) ||
        count > in.remaining() / sizeof(uint32_t))
      return malformed;
    const auto scope = std::find_if(own.begin(), own.end(), [&](const ScopeTable& one) {
      return one.role == role && one.kind == static_cast<FileRole>(kind);
    });
    std::vector<ShardPart> writes(count);
    for (ShardPart& part : writes) {
      uint32_t word = 0;
      if (!in.U32(&word) || scope == own.end() || word / 2 >= scope->table->shards().size())
        return malformed;
      part.shard = static_cast<int>(word / 2);
      if (word % 2 == 0) continue;
      const Box& box = scope->table->shards()[word / 2].box;
      if (!in.I64(&part.first) || !in.I64(&part.rows) || part.first < 0 || part.rows < 1 ||
          !box.Contains(BoxOf({0, box, 0, {}}, part)))
        return malformed;
    }
    if (writes.empty()) continue;
    KEEL_RETURN_IF_ERROR(AddFiles(role, scope->kind, rank, *scope->table, writes, &tensors, &plan));
  }
  return plan;
}

}  // namespace

std::shared_ptr<const SavePlan> SavePlanner::Likely(std::span<const RoleState> roles,
                                                    const Contents& contents) const {
  return cached_ != nullptr && own_key_ == KeyOf(Selected(roles, contents)) ? cached_ : nullptr;
}

void SavePlanner::Forget() {
  cached_.reset();
  cached_key_ = 0;
}

Result<std::shared_ptr<const SavePlan>> SavePlanner::Plan(std::string_view tag,
                                                          std::span<const RoleState> roles,
                                                          const Contents& contents,
                                                          std::chrono::milliseconds deadline) {
  const uint64_t mine = KeyOf(Selected(roles, contents));
  // One verdict from rank 0: the key of the state of all, and whether all have the plan for it.
  struct Verdict {
    uint64_t key = 0;
    uint64_t reuse = 0;
  } verdict;
  WireWriter words;
  words.U64(mine).U64(cached_key_);
  const auto judge = [](std::vector<std::string> all) -> Result<std::vector<std::string>> {
    WireWriter keys;
    std::vector<uint64_t> cached;
    for (const std::string& one : all) {
      WireReader in(one);
      uint64_t theirs = 0, theirs_cached = 0;
      if (!in.U64(&theirs) || !in.U64(&theirs_cached)) {
        return Status(StatusCode::kInternal, "a peer sent a malformed plan key");
      }
      keys.U64(theirs);
      cached.push_back(theirs_cached);
    }
    const uint64_t key = std::max<uint64_t>(1, Hash64(keys.bytes()));
    const bool reuse =
        std::all_of(cached.begin(), cached.end(), [&](uint64_t c) { return c == key; });
    WireWriter out;
    out.Pod(Verdict{key, reuse ? 1U : 0U});
    return std::vector<std::string>(all.size(), out.bytes());
  };
  KEEL_ASSIGN_OR_RETURN(const std::string told, Consult(coordinator_, fmt::format("{}/key", tag),
                                                        words.bytes(), judge, deadline));
  if (!WireReader(told).Pod(&verdict)) {
    return Status(StatusCode::kInternal, "rank 0 sent a malformed plan key");
  }
  const uint64_t key = verdict.key;
  if (cached_ != nullptr && verdict.reuse != 0) return cached_;
  Forget();
  SavePlan plan;
  const Status made = Guarded([&] {
    KEEL_ASSIGN_OR_RETURN(plan, Make(tag, roles, contents, deadline));
    return Status::Ok();
  });
  KEEL_RETURN_IF_ERROR(AgreeOn(coordinator_, fmt::format("{}/agree", tag), made, deadline));
  cached_ = std::make_shared<const SavePlan>(std::move(plan));
  cached_key_ = key;
  own_key_ = mine;
  return cached_;
}

Result<SavePlan> SavePlanner::Make(std::string_view tag, std::span<const RoleState> roles,
                                   const Contents& contents, std::chrono::milliseconds deadline) {
  // Rank 0 plans for all, and tells each rank its share; what it has thought of a million boxes is
  // not thought again by everyone.
  const int rank = coordinator_.rank();
  const auto world = static_cast<size_t>(coordinator_.world());
  const std::vector<ScopeTable> own = Selected(roles, contents);
  const Status ready = FailPoint("plan.make");
  Scopes scopes;
  SavePlan plan;
  const auto choose = [&](std::vector<std::string> all) -> Result<std::vector<std::string>> {
    KEEL_RETURN_IF_ERROR(ready);
    KEEL_ASSIGN_OR_RETURN(scopes, DecodeTables(std::move(all)));
    KEEL_ASSIGN_OR_RETURN(plan, ChooseAll(&scopes, world, smallest_part_));
    std::vector<std::string> shares(world);
    for (size_t r = 1; r < world; ++r) shares[r] = EncodeShare(plan, scopes, r);
    return shares;
  };
  KEEL_ASSIGN_OR_RETURN(
      const std::string share,
      Consult(coordinator_, fmt::format("{}/tables", tag), Encode(own), choose, deadline));
  KEEL_RETURN_IF_ERROR(ready);
  if (rank != 0) return DecodeShare(share, own, rank);
  TensorNumbers tensors(&plan);
  for (auto& [key, scope] : scopes) {
    for (size_t r = 0; r < world; ++r) {
      const size_t first = plan.files.size();
      KEEL_RETURN_IF_ERROR(AddFiles(key.first, key.second, static_cast<int>(r), scope.tables[r],
                                    scope.writes[r], &tensors, &plan));
      scope.tables[r] = {};
      for (size_t f = first; r != 0 && f < plan.files.size(); ++f) plan.files[f].header = {};
    }
  }
  std::sort(plan.files.begin(), plan.files.end(),
            [](const PlannedFile& a, const PlannedFile& b) { return a.path < b.path; });
  return plan;
}

}  // namespace keel::checkpoint
