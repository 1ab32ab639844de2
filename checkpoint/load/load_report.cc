#include "checkpoint/load/load_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "checkpoint/load/load_check.h"
#include "common/tensors/transfer_check.h"
#include "common/wire.h"

namespace keel::checkpoint {

namespace {

// The files whose every byte a load reads and verifies, by number.
std::vector<int> FilesOf(const LoadRequest& request, const StepReader& reader) {
  std::vector<int> files;
  for (int f = 0; f < reader.index().files(); ++f) {
    const ManifestFile* file = reader.manifest().Find(reader.index().file(f).path);
    const bool kind = (file->role == FileRole::kModel && request.contents.model) ||
                      (file->role == FileRole::kOptimizer && request.contents.optimizer) ||
                      (file->role == FileRole::kHfModel && TakesHfWeights(request));
    const bool role =
        std::any_of(request.roles.begin(), request.roles.end(),
                    [&](const RoleState& one) { return file->path.starts_with(one.name + "/"); });
    if (kind && role) files.push_back(f);
  }
  return files;
}

}  // namespace

std::string FirstOf(std::span<const std::string> names) {
  constexpr size_t kMost = 20;
  if (names.size() <= kMost) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.first(kMost), ", "), names.size() - kMost);
}

std::string LoadReport::Serialize() const {
  WireWriter out;
  out.U32(channel ? 1 : 0).Count(scopes.size()).Pods(scopes);
  std::string bits((wanted.size() + 7) / 8, '\0');
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i]) bits[i / 8] = static_cast<char>(bits[i / 8] | (1 << (i % 8)));
  }
  out.Text(bits).Count(needs.size()).Pods(needs).Count(kept.size());
  for (const std::string& name : kept) out.Text(name);
  return std::move(out).Take();
}

bool LoadReport::Parse(std::string_view text, const Index& index) {
  WireReader in(text);
  uint32_t has_channel = 0;
  uint64_t count = 0;
  if (!in.U32(&has_channel) || !in.U64(&count) || !in.Pods(count, &scopes)) return false;
  channel = has_channel != 0;
  for (const int32_t scope : scopes) {
    if (scope < 0 || scope >= index.scopes()) return false;
  }
  std::string bits;
  if (!in.Text(&bits) || bits.size() != static_cast<size_t>((index.tensors() + 7) / 8))
    return false;
  wanted.resize(static_cast<size_t>(index.tensors()));
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = ((bits[i / 8] >> (i % 8)) & 1) != 0;
  if (!in.U64(&count) || !in.Pods(count, &needs)) return false;
  for (const ChunkNeed& need : needs) {
    if (need.file < 0 || need.file >= index.files() || need.eighths < 1 || need.eighths > 8 ||
        need.first < 0 || need.count < 1 ||
        need.count > index.file(need.file).chunk_count - need.first)
      return false;
  }
  if (!in.U64(&count)) return false;
  kept.clear();
  for (uint64_t i = 0; i < count; ++i)
    if (!in.Text(&kept.emplace_back())) return false;
  return in.AtEnd();
}

Result<std::string> MakeSchedule(const LoadRequest& request, const StepReader& reader,
                                 const std::vector<std::string>& reports, const RoundLimits& limits,
                                 std::string_view where, const SettingNames& names,
                                 LoadDifferences* differences) {
  const Index& index = reader.index();
  std::vector<std::vector<ChunkNeed>> needs;
  std::vector<bool> wanted(static_cast<size_t>(index.tensors()), false);
  std::set<int> scopes;
  bool exchange = true;
  for (size_t r = 0; r < reports.size(); ++r) {
    LoadReport report;
    if (!report.Parse(reports[r], index)) {
      return Status(StatusCode::kInternal,
                    fmt::format("rank {} sent a malformed report of what it needs", r));
    }
    exchange = exchange && report.channel;
    scopes.insert(report.scopes.begin(), report.scopes.end());
    for (size_t t = 0; t < wanted.size(); ++t) wanted[t] = wanted[t] || report.wanted[t];
    needs.push_back(std::move(report.needs));
    differences->kept.insert(report.kept.begin(), report.kept.end());
  }
  std::set<std::string> unused;
  for (const int scope : scopes) {
    const auto [first, count] = index.tensor_range(scope);
    const std::string prefix = fmt::format("{}:", index.scope_name(scope));
    bool any = false;     // that is loaded,
    bool unlike = false;  // or is there and is another
    for (int64_t t = first; t < first + count; ++t) {
      const std::string name(index.tensor(t).name);
      any = any || wanted[static_cast<size_t>(t)];
      if (wanted[static_cast<size_t>(t)]) continue;
      unlike = unlike || differences->kept.contains(prefix + name);
      std::set<std::string>& where_it_goes =
          MatchesAny(request.allow_missing, name) ? differences->left_out : unused;
      where_it_goes.insert(prefix + name);
    }
    if (any || !unlike) continue;
    return Status(
        StatusCode::kConfig,
        fmt::format("{} has not one tensor of this run's {} in its shape and dtype, and {} would "
                    "let all of them keep their own values. {}, or load without it",
                    where, index.scope_name(scope), names.allow_missing, names.same_state));
  }
  if (!unused.empty()) {
    return Status(
        StatusCode::kConfig,
        fmt::format("{} holds {} tensors that this run has no place for: {}. {}, or name in {} "
                    "what may be left out",
                    where, unused.size(),
                    FirstOf(std::vector<std::string>(unused.begin(), unused.end())),
                    names.same_state, names.allow_missing));
  }
  const Contents& wants = request.contents;
  if (wants.model || wants.hf_model || wants.optimizer) {
    for (const RoleState& role : request.roles)
      if (!HoldsRole(reader.manifest(), role.name)) differences->kept.insert(role.name);
    for (const std::string& role : reader.manifest().roles)
      if (std::ranges::find(request.roles, role, &RoleState::name) == request.roles.end())
        differences->left_out.insert(role);
  }
  const std::vector<int> files = FilesOf(request, reader);
  return MakeReadSchedule(index, files, needs, exchange, limits).Serialize();
}

}  // namespace keel::checkpoint
