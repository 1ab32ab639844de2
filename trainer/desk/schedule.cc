#include "trainer/desk/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/files/file_system.h"
#include "common/hash.h"
#include "common/json.h"

namespace keel::trainer::desk {

namespace {

constexpr int64_t kMostBytes = int64_t{1} << 32;  // of a step's file

std::string DigestOf(const std::vector<int32_t>& tokens) {
  return fmt::format("{:016x}",
                     Hash64(std::string_view(reinterpret_cast<const char*>(tokens.data()),
                                             tokens.size() * sizeof(int32_t))));
}

Status Bad(const std::string& where, const std::string& what) {
  return Status(StatusCode::kInvalidData, fmt::format("{}: {}", where, what));
}

}  // namespace

Turn FixedSchedule::Next(const SampleId& /*id*/, const Partial& so_far, int64_t due,
                         const std::map<int64_t, int64_t>& versions) const {
  const auto& [newest, steps] = *versions.rbegin();
  int64_t wanted = std::min(steps, due);  // where it begins
  int64_t turn = 0;
  if (so_far.size() > 0) {
    turn = so_far.size() / tokens_;
    wanted = std::min(due, versions.at(so_far.spans.front().version) + turn);
  }
  if (wanted > steps) return {};
  return {newest, wanted == due ? kToTheEnd : (turn + 1) * tokens_};
}

Result<std::shared_ptr<const RecordedSchedule>> RecordedSchedule::Load(const std::string& folder) {
  KEEL_ASSIGN_OR_RETURN(const auto files, OpenPosixFileSystem(folder, false, LinkPolicy::kFollow));
  KEEL_ASSIGN_OR_RETURN(const std::vector<FileInfo> list, files->List(""));
  auto schedule = std::make_shared<RecordedSchedule>();
  for (const FileInfo& file : list) {
    if (!file.name.ends_with(".jsonl")) continue;
    KEEL_ASSIGN_OR_RETURN(const std::string text, ReadFile(*files, file.name, kMostBytes));
    size_t begin = 0;
    for (int64_t number = 1; begin < text.size(); ++number) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string where = fmt::format("{}:{}", files->Describe(file.name), number);
      KEEL_ASSIGN_OR_RETURN(const Json line,
                            ParseJson(std::string_view(text).substr(begin, end - begin), where));
      begin = end + 1;
      Recorded record;
      KEEL_ASSIGN_OR_RETURN(record.id.position, GetInt(line, "position", where));
      KEEL_ASSIGN_OR_RETURN(const int64_t sample, GetInt(line, "sample", where));
      record.id.sample = static_cast<int>(sample);
      KEEL_ASSIGN_OR_RETURN(record.tokens, GetInt(line, "tokens", where));
      KEEL_ASSIGN_OR_RETURN(record.digest, GetString(line, "digest", where));
      const auto spans = line.find("spans");
      if (spans == line.end() || !spans->is_array()) return Bad(where, "spans: expected a list");
      for (const Json& span : *spans) {
        if (!span.is_array() || span.size() != 2 || !span[0].is_number_integer() ||
            !span[1].is_number_integer())
          return Bad(where, "spans: expected [first token, version] of each");
        record.spans.push_back({span[0].get<int64_t>(), span[1].get<int64_t>()});
      }
      if (const char* problem = ProblemOf(record.spans, record.tokens)) return Bad(where, problem);
      if (record.spans.empty()) return Bad(where, "a response without tokens");
      if (record.spans.front().version < 1)
        return Bad(where, fmt::format("spans: version {}, and the first is 1",
                                      record.spans.front().version));
      const SampleId id = record.id;
      int64_t& reach = schedule->reach_[record.spans.front().version];
      reach = std::max(reach, id.position + 1);
      if (!schedule->records_.emplace(id, std::move(record)).second)
        return Bad(where, fmt::format("position {}, sample {} stands twice", id.position, sample));
    }
  }
  if (schedule->records_.empty()) return Bad(folder, "no step was recorded there");
  return std::shared_ptr<const RecordedSchedule>(std::move(schedule));
}

int64_t RecordedSchedule::ReachOf(int64_t version) const {
  int64_t reach = 0;
  for (auto at = reach_.begin(); at != reach_.end() && at->first <= version; ++at)
    reach = std::max(reach, at->second);
  return reach;
}

int64_t RecordedSchedule::NewestOf(const SampleId& id) const {
  const auto found = records_.find(id);
  return found == records_.end() ? 0 : found->second.spans.back().version;
}

int64_t RecordedSchedule::end() const { return records_.rbegin()->first.position + 1; }

Status RecordedSchedule::Covers(int64_t first, int64_t end, const std::vector<int>& samples) const {
  for (int64_t position = first; position < end; ++position) {
    for (const int sample : samples) {
      if (records_.contains({position, sample})) continue;
      return Status(StatusCode::kConfig,
                    fmt::format("the recorded schedule has positions up to {} and lacks sample {} "
                                "of position {}: it is of another run, or of fewer steps",
                                this->end() - 1, sample, position));
    }
  }
  return Status::Ok();
}

Turn RecordedSchedule::Next(const SampleId& id, const Partial& so_far, int64_t /*due*/,
                            const std::map<int64_t, int64_t>& versions) const {
  const auto found = records_.find(id);
  if (found == records_.end()) return {};
  const std::vector<VersionSpan>& spans = found->second.spans;
  const auto after = std::find_if(spans.begin() + 1, spans.end(), [&](const VersionSpan& span) {
    return span.begin > so_far.size();
  });
  const int64_t version = std::prev(after)->version;
  if (version > versions.rbegin()->first) return {};
  return {version, after == spans.end() ? kToTheEnd : after->begin};
}

Status RecordedSchedule::Check(const Finished& finished) const {
  const Recorded is = RecordOf(finished);
  const auto found = records_.find(is.id);
  if (found == records_.end()) return Covers(is.id.position, is.id.position + 1, {is.id.sample});
  const Recorded& was = found->second;
  if (was.tokens == is.tokens && was.digest == is.digest && was.spans == is.spans)
    return Status::Ok();
  return Status(
      StatusCode::kDataLoss,
      fmt::format("position {}, sample {}: the response of {} tokens, digest {}, is not the one "
                  "that was recorded, of {} tokens, digest {}: other weights, settings, program or "
                  "processors than those of the recorded run",
                  is.id.position, is.id.sample, is.tokens, is.digest, was.tokens, was.digest));
}

Recorded RecordOf(const Finished& finished) {
  const rl::Response& response = finished.response;
  return {{response.position, response.sample},
          finished.spans,
          std::ssize(response.tokens),
          DigestOf(response.tokens)};
}

Status RecordStep(const std::string& folder, int64_t step, const std::vector<Recorded>& taken) {
  std::string text;
  for (const Recorded& one : taken) {
    Json spans = Json::array();
    for (const VersionSpan& span : one.spans) spans.push_back({span.begin, span.version});
    text += Json{{"position", one.id.position},
                 {"sample", one.id.sample},
                 {"spans", spans},
                 {"tokens", one.tokens},
                 {"digest", one.digest}}
                .dump() +
            "\n";
  }
  KEEL_ASSIGN_OR_RETURN(const auto files, OpenPosixFileSystem(folder, true));
  return ReplaceFileDurably(*files, fmt::format("{}.jsonl", step), text);
}

}  // namespace keel::trainer::desk
