#include "trainer/run/rank_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "common/hash.h"
#include "common/json.h"
#include "common/text.h"

namespace keel::trainer {

namespace {

// Of groups of ranks that differ, and of facts, more would not help whoever reads the message.
constexpr size_t kMostGroups = 8;
constexpr size_t kMostLines = 24;
constexpr size_t kMostBytes = 160;  // of a value

std::string KeyOf(const std::string& tag, int rank) { return fmt::format("{}/of/{}", tag, rank); }

std::string Joined(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", RankRanges(ranks));
}

// Ranks with the same digest, as rank 0 sees them; its own group first.
struct Group {
  std::string digest;
  std::vector<int> ranks;
  SharedFacts facts;
};

std::vector<Group> GroupsOf(const std::vector<std::string>& digests) {
  std::vector<Group> groups;
  for (size_t r = 0; r < digests.size(); ++r) {
    const auto same = [&](const Group& group) { return group.digest == digests[r]; };
    auto group = std::find_if(groups.begin(), groups.end(), same);
    if (group == groups.end()) group = groups.insert(groups.end(), Group{digests[r], {}, {}});
    group->ranks.push_back(static_cast<int>(r));
  }
  return groups;
}

// A value and the ranks that have it; null: they have none of that name.
using Holders = std::pair<const std::string*, std::vector<int>>;

// From where on values are to be shown: all of them, or where they begin to differ, when that is
// behind what would be shown of them.
size_t ShownFrom(const std::vector<Holders>& values) {
  constexpr size_t kBefore = 24;  // bytes of what is the same, so that the place can be found
  const std::string* first = nullptr;
  size_t same = std::string::npos;
  for (const auto& [value, ranks] : values) {
    if (value == nullptr) continue;
    if (first == nullptr) {
      first = value;
      continue;
    }
    const auto [end, other] =
        std::mismatch(first->begin(), first->end(), value->begin(), value->end());
    same = std::min(same, static_cast<size_t>(end - first->begin()));
  }
  return same == std::string::npos || same < kMostBytes / 2 ? 0 : same - kBefore;
}

std::string Shown(const std::string* value, size_t from) {
  if (value == nullptr) return "not there";
  const std::string text = Printable(value->substr(std::min(from, value->size())), kMostBytes);
  return from == 0 ? text : "..." + text;
}

// "trainer.seed: 1 on ranks 0-1, 3; 2 on rank 2"; "" when all have the same.
std::string Difference(const std::string& name, const std::vector<Group>& groups) {
  std::vector<Holders> values;
  for (const Group& group : groups) {
    const auto fact = group.facts.find(name);
    const std::string* const value = fact == group.facts.end() ? nullptr : &fact->second;
    const auto same = [&](const Holders& one) {
      return value == nullptr || one.first == nullptr ? value == one.first : *value == *one.first;
    };
    auto known = std::find_if(values.begin(), values.end(), same);
    if (known == values.end()) known = values.insert(values.end(), {value, {}});
    known->second.insert(known->second.end(), group.ranks.begin(), group.ranks.end());
  }
  if (values.size() == 1) return {};
  const size_t from = ShownFrom(values);
  std::vector<std::string> parts;
  for (auto& [value, ranks] : values) {
    std::sort(ranks.begin(), ranks.end());
    parts.push_back(fmt::format("{} on {}", Shown(value, from), Joined(ranks)));
  }
  return fmt::format("{}: {}", name, fmt::join(parts, "; "));
}

std::string Explain(const std::vector<Group>& groups, size_t groups_in_all) {
  std::set<std::string> names;
  for (const Group& group : groups) {
    for (const auto& [name, value] : group.facts) names.insert(name);
  }
  std::vector<std::string> lines;
  for (const std::string& name : names) {
    if (std::string line = Difference(name, groups); !line.empty())
      lines.push_back(std::move(line));
  }
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), kMostLines); ++i) text += "\n  " + lines[i];
  if (lines.size() > kMostLines) text += fmt::format("\n  and {} more", lines.size() - kMostLines);
  if (groups_in_all > groups.size()) {
    text += fmt::format("\n  (of {} kinds of ranks that differ, these are {})", groups_in_all,
                        groups.size());
  }
  return text;
}

}  // namespace

std::string RankRanges(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    parts.push_back(last == i ? fmt::format("{}", ranks[i])
                              : fmt::format("{}-{}", ranks[i], ranks[last]));
    i = last + 1;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

Result<std::string> CompareFacts(checkpoint::Coordinator& coordinator, const std::string& tag,
                                 const SharedFacts& mine, std::chrono::milliseconds deadline) {
  if (coordinator.world() == 1) return std::string();
  const std::string text = Json(mine).dump(-1, ' ', true, Json::error_handler_t::replace);
  const std::string digest = Hash128(std::as_bytes(std::span(text))).ToHex();

  // 1. Every rank's digest to rank 0, which says whose facts it wants to see: nobody's, or those of
  // one rank of each kind.
  std::vector<Group> groups;
  const auto whose = [&]() -> Result<std::string> {
    KEEL_ASSIGN_OR_RETURN(const std::vector<std::string> digests,
                          checkpoint::Gather(coordinator, tag, digest, deadline));
    groups = GroupsOf(digests);
    Json wanted = Json::array();
    for (size_t g = 1; g < std::min(groups.size(), kMostGroups); ++g)
      wanted.push_back(groups[g].ranks.front());
    return wanted.dump();
  };
  const std::string asked = fmt::format("{}/asked", tag);
  Result<std::string> question = whose();
  if (coordinator.rank() != 0) KEEL_RETURN_IF_ERROR(question.status());
  KEEL_ASSIGN_OR_RETURN(
      const std::string answer,
      checkpoint::BroadcastResult(coordinator, asked, std::move(question), deadline));
  KEEL_ASSIGN_OR_RETURN(const Json wanted, ParseJson(answer, asked));
  if (wanted.empty()) return std::string();

  // 2. Those ranks say all; rank 0 says to everybody what differs.
  for (const Json& rank : wanted) {
    if (rank == coordinator.rank())
      KEEL_RETURN_IF_ERROR(coordinator.Put(KeyOf(tag, coordinator.rank()), text));
  }
  const auto explanation = [&]() -> Result<std::string> {
    const size_t in_all = groups.size();
    groups.resize(std::min(in_all, kMostGroups));
    groups.front().facts = mine;
    for (size_t g = 1; g < groups.size(); ++g) {
      const std::string key = KeyOf(tag, groups[g].ranks.front());
      KEEL_ASSIGN_OR_RETURN(const std::string facts, coordinator.Get(key, deadline));
      KEEL_ASSIGN_OR_RETURN(const Json json, ParseJson(facts, key));
      for (const auto& [name, value] : json.items())
        groups[g].facts[name] = value.is_string() ? value.get<std::string>() : value.dump();
      (void)coordinator.Delete(key);
    }
    return Explain(groups, in_all);
  };
  return checkpoint::BroadcastResult(coordinator, fmt::format("{}/why", tag),
                                     coordinator.rank() == 0 ? explanation() : std::string(),
                                     deadline);
}

Status AgreeOnFacts(checkpoint::Coordinator& coordinator, const SharedFacts& mine,
                    std::chrono::milliseconds deadline) {
  KEEL_ASSIGN_OR_RETURN(const std::string differ,
                        CompareFacts(coordinator, "facts", mine, deadline));
  if (differ.empty()) return Status::Ok();
  return Status(StatusCode::kConfig,
                "the ranks of this job were not started with the same things; give every node the "
                "same files and the same command, and start again:" +
                    differ);
}

}  // namespace keel::trainer
