#include "checkpoint/save_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "checkpoint/names.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/wire.h"
#include "common/fail_point.h"
#include "common/hash.h"
#include "common/transfer_plan.h"

namespace keel::checkpoint {
namespace {

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
    words.Text(one.scope());
    words.U64(one.table->Fingerprint());
  }
  return Hash64(words.bytes());
}

// Splits one rank's boxes of a scope into files in which no tensor appears twice, since a
// safetensors file has one entry per name.
std::vector<PlannedFile> FilesOf(const std::string& role, FileRole kind, int rank,
                                 const ShardTable& table) {
  std::vector<PlannedFile> files;
  std::vector<int> seen(table.tensors().size(), 0);
  for (const Shard& shard : table.shards()) {
    if (shard.box.empty()) continue;
    const auto part = static_cast<size_t>(seen[static_cast<size_t>(shard.tensor)]++);
    if (part == files.size()) {
      PlannedFile file;
      file.role = role;
      file.kind = kind;
      file.scope = fmt::format("{}/{}", role, FileRoleName(kind));
      file.path = ShardFileName(file.scope, rank, static_cast<int>(part));
      file.rank = rank;
      files.push_back(std::move(file));
    }
    files[part].shards.push_back({table.tensor_of(shard), shard.box, 0, -1});
  }
  return files;
}

Status LayOut(PlannedFile& file) {
  std::vector<SafetensorsPart> parts;
  parts.reserve(file.shards.size());
  for (const PlannedShard& shard : file.shards) {
    parts.push_back({shard.tensor.name, shard.tensor.dtype, shard.box.size, shard.box.offset});
  }
  KEEL_ASSIGN_OR_RETURN(file.header, BuildShardedSafetensorsHeader(parts));
  int64_t at = static_cast<int64_t>(file.header.size());
  for (PlannedShard& shard : file.shards) {
    shard.begin = at;
    at += shard.box.elements() * DTypeSize(shard.tensor.dtype);
  }
  file.size = at;
  return Status::Ok();
}

// Where the planned boxes lie in the table of the rank that writes them.
Status FindSources(PlannedFile& file, const ShardTable& own) {
  std::vector<std::vector<int>> shards_of(own.tensors().size());
  for (size_t i = 0; i < own.shards().size(); ++i) {
    shards_of[static_cast<size_t>(own.shards()[i].tensor)].push_back(static_cast<int>(i));
  }
  for (PlannedShard& shard : file.shards) {
    const int tensor = own.Find(shard.tensor.name);
    if (tensor >= 0) {
      for (const int i : shards_of[static_cast<size_t>(tensor)]) {
        if (own.shards()[static_cast<size_t>(i)].box == shard.box) shard.source = i;
      }
    }
    if (shard.source < 0) {
      return Status(StatusCode::kInternal,
                    fmt::format("rank {} is to write {} of '{}', which it does not hold", file.rank,
                                shard.box.ToString(), shard.tensor.name));
    }
  }
  return Status::Ok();
}

}  // namespace

std::shared_ptr<const SavePlan> SavePlanner::Likely(std::span<const RoleState> roles,
                                                    const Contents& contents) const {
  return cached_ != nullptr && own_key_ == KeyOf(Selected(roles, contents)) ? cached_ : nullptr;
}

Result<std::shared_ptr<const SavePlan>> SavePlanner::Plan(std::string_view tag,
                                                          std::span<const RoleState> roles,
                                                          const Contents& contents,
                                                          std::chrono::milliseconds deadline) {
  const uint64_t mine = KeyOf(Selected(roles, contents));
  WireWriter words;
  words.U64(mine);
  words.U64(cached_key_);
  KEEL_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      AllGather(coordinator_, fmt::format("{}/key", tag), words.bytes(), deadline));
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
  reused_ = cached_ != nullptr &&
            std::all_of(cached.begin(), cached.end(), [&](uint64_t c) { return c == key; });
  if (reused_) return cached_;
  cached_.reset();
  cached_key_ = 0;
  Result<SavePlan> plan = Make(tag, roles, contents, deadline);
  KEEL_RETURN_IF_ERROR(
      AgreeOn(coordinator_, fmt::format("{}/agree", tag), plan.status(), deadline));
  cached_ = std::make_shared<const SavePlan>(std::move(plan).value());
  cached_key_ = key;
  own_key_ = mine;
  return cached_;
}

Result<SavePlan> SavePlanner::Make(std::string_view tag, std::span<const RoleState> roles,
                                   const Contents& contents, std::chrono::milliseconds deadline) {
  const int rank = coordinator_.rank();
  const std::vector<ScopeTable> own = Selected(roles, contents);
  WireWriter words;
  for (const ScopeTable& one : own) {
    words.Text(one.role);
    words.U64(static_cast<uint64_t>(one.kind));
    words.Text(one.table->Serialize());
  }
  KEEL_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      AllGather(coordinator_, fmt::format("{}/tables", tag), words.bytes(), deadline));

  KEEL_FAIL_POINT("plan.make");
  // 1. Every scope's tables, one per rank.
  std::map<std::pair<std::string, FileRole>, std::vector<ShardTable>> scopes;
  for (size_t r = 0; r < all.size(); ++r) {
    for (WireReader in(all[r]); !in.AtEnd();) {
      std::string role, table;
      uint64_t kind = 0;
      if (!in.Text(&role) || !in.U64(&kind) || !in.Text(&table)) {
        return Status(StatusCode::kInternal, fmt::format("rank {} sent malformed tables", r));
      }
      std::vector<ShardTable>& tables = scopes[{role, static_cast<FileRole>(kind)}];
      tables.resize(all.size());
      KEEL_ASSIGN_OR_RETURN(tables[r], ShardTable::Deserialize(table));
    }
  }

  // 2. Writers and files.
  SavePlan plan;
  plan.bytes_of_rank.assign(all.size(), 0);
  for (auto& [key, tables] : scopes) {
    const auto& [role, kind] = key;
    plan.roles.push_back(role);
    const Result<std::vector<ShardTable>> writers = AssignWriters(tables);
    if (!writers.ok())
      return writers.status().WithContext(fmt::format("{}/{}", role, FileRoleName(kind)));
    for (size_t r = 0; r < writers->size(); ++r) {
      plan.bytes_of_rank[r] += (*writers)[r].bytes();
      if (rank != 0 && static_cast<int>(r) != rank) continue;
      for (PlannedFile& file : FilesOf(role, kind, static_cast<int>(r), (*writers)[r])) {
        KEEL_RETURN_IF_ERROR(LayOut(file));
        if (static_cast<int>(r) == rank) {
          const auto mine = std::find_if(own.begin(), own.end(), [&](const ScopeTable& one) {
            return one.role == role && one.kind == kind;
          });
          KEEL_RETURN_IF_ERROR(FindSources(file, *mine->table));
        }
        plan.files.push_back(std::move(file));
      }
    }
  }
  std::sort(plan.files.begin(), plan.files.end(),
            [](const PlannedFile& a, const PlannedFile& b) { return a.path < b.path; });
  std::sort(plan.roles.begin(), plan.roles.end());
  plan.roles.erase(std::unique(plan.roles.begin(), plan.roles.end()), plan.roles.end());
  for (const int64_t bytes : plan.bytes_of_rank) {
    plan.total_bytes += bytes;
    plan.largest_rank_bytes = std::max(plan.largest_rank_bytes, bytes);
  }
  return plan;
}

}  // namespace keel::checkpoint
