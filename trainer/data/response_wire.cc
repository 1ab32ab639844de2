#include "trainer/data/response_wire.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

namespace keel::trainer::rl {

namespace {

constexpr uint8_t kResponsesVersion = 2;
constexpr uint8_t kTextsVersion = 1;

class ResponseWriter {
 public:
  ResponseWriter(uint8_t version, size_t count) {
    Put(version);
    Put(static_cast<uint64_t>(count));
  }
  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void PutCount(size_t count) {
    if (count > std::numeric_limits<uint32_t>::max())
      throw Error(StatusCode::kInternal, fmt::format("a response of {} elements", count));
    Put(static_cast<uint32_t>(count));
  }
  template <typename T>
  void PutAll(const std::vector<T>& values) {
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void PutText(const std::string& text) {
    PutCount(text.size());
    bytes_.append(text);
  }
  std::string Finish() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Each Take says whether what it wants was there; nothing is allocated for what is not.
class ResponseReader {
 public:
  explicit ResponseReader(std::string_view bytes) : left_(bytes) {}
  template <typename T>
  bool Take(T& value) {
    if (left_.size() < sizeof value) return false;
    std::memcpy(&value, left_.data(), sizeof value);
    left_.remove_prefix(sizeof value);
    return true;
  }
  template <typename T>
  bool TakeAll(uint32_t count, std::vector<T>& values) {
    if (left_.size() / sizeof(T) < count) return false;
    values.resize(count);
    if (count > 0) std::memcpy(values.data(), left_.data(), count * sizeof(T));
    left_.remove_prefix(count * sizeof(T));
    return true;
  }
  bool TakeText(std::string& text) {
    uint32_t size = 0;
    if (!Take(size) || left_.size() < size) return false;
    text.assign(left_.substr(0, size));
    left_.remove_prefix(size);
    return true;
  }
  bool TakeHeader(uint8_t& version, uint64_t& count) { return Take(version) && Take(count); }
  bool done() const { return left_.empty(); }

 private:
  std::string_view left_;
};

// What tools gave and did.
bool TakeTurns(ResponseReader& in, Response& r) {
  uint32_t given = 0, rewards = 0;
  uint8_t used = 0;
  if (!in.Take(given) || !in.TakeAll(given, r.given) || !in.Take(used) || used > 1) return false;
  if (ProblemOf(r.given, std::ssize(r.tokens)) != nullptr) return false;
  if (used == 0) return true;
  turns::ToolUse& tools = r.tools;
  return in.Take(tools.calls) && in.Take(tools.errors) && in.Take(tools.timeouts) &&
         in.Take(tools.truncated) && in.Take(rewards) && in.TakeAll(rewards, tools.rewards) &&
         !tools.empty();
}

bool TakeResponse(ResponseReader& in, uint8_t version, Response& r) {
  uint32_t tokens = 0, log_probs = 0, extras = 0;
  int32_t sample = 0;
  if (!in.Take(r.position) || !in.Take(sample) || !in.Take(r.weight_version) || !in.Take(r.score) ||
      !in.Take(tokens) || !in.Take(log_probs) || !in.Take(extras))
    return false;
  r.sample = sample;
  if (log_probs != 0 && log_probs != tokens) return false;
  if (!in.TakeAll(tokens, r.tokens) || !in.TakeAll(log_probs, r.log_probs)) return false;
  for (uint32_t i = 0; i < extras; ++i) {
    std::string name;
    double value = 0;
    if (!in.TakeText(name) || !in.Take(value)) return false;
    if (!r.extra.empty() && name <= r.extra.rbegin()->first) return false;
    r.extra.emplace_hint(r.extra.end(), std::move(name), value);
  }
  if (!in.TakeText(r.finish) || !in.TakeText(r.error)) return false;
  return version == 1 || TakeTurns(in, r);
}

Status NotTheirs(std::string_view bytes, const char* what) {
  return Status(
      StatusCode::kInvalidData,
      fmt::format("{} bytes of a peer are not its {}: torn, or of another version of keel",
                  bytes.size(), what));
}

Result<std::vector<Response>> DecodeSince(uint8_t oldest, std::string_view bytes) {
  ResponseReader in(bytes);
  uint8_t version = 0;
  uint64_t count = 0;
  if (!in.TakeHeader(version, count) || version < oldest || version > kResponsesVersion)
    return NotTheirs(bytes, "responses");
  std::vector<Response> responses;
  for (uint64_t i = 0; i < count; ++i) {
    if (!TakeResponse(in, version, responses.emplace_back())) return NotTheirs(bytes, "responses");
  }
  if (!in.done()) return NotTheirs(bytes, "responses");
  return responses;
}

}  // namespace

std::string EncodeResponses(std::span<const Response> responses) {
  ResponseWriter out(kResponsesVersion, responses.size());
  for (const Response& r : responses) {
    out.Put(r.position);
    out.Put(static_cast<int32_t>(r.sample));
    out.Put(r.weight_version);
    out.Put(r.score);
    out.PutCount(r.tokens.size());
    out.PutCount(r.log_probs.size());
    out.PutCount(r.extra.size());
    out.PutAll(r.tokens);
    out.PutAll(r.log_probs);
    for (const auto& [name, value] : r.extra) {
      out.PutText(name);
      out.Put(value);
    }
    out.PutText(r.finish);
    out.PutText(r.error);
    out.PutCount(r.given.size());
    out.PutAll(r.given);
    out.Put(static_cast<uint8_t>(!r.tools.empty()));
    if (r.tools.empty()) continue;
    out.Put(r.tools.calls);
    out.Put(r.tools.errors);
    out.Put(r.tools.timeouts);
    out.Put(r.tools.truncated);
    out.PutCount(r.tools.rewards.size());
    out.PutAll(r.tools.rewards);
  }
  return std::move(out).Finish();
}

Result<std::vector<Response>> DecodeResponses(std::string_view bytes) {
  return DecodeSince(kResponsesVersion, bytes);
}

Result<std::vector<Response>> DecodeStoredResponses(std::string_view bytes) {
  return DecodeSince(1, bytes);
}

std::string EncodeTexts(std::span<const Response> responses) {
  ResponseWriter out(kTextsVersion, responses.size());
  for (const Response& r : responses) {
    out.PutText(r.text);
    out.PutText(r.answer);
  }
  return std::move(out).Finish();
}

Status DecodeTexts(std::string_view bytes, std::span<Response> responses) {
  ResponseReader in(bytes);
  uint8_t version = 0;
  uint64_t count = 0;
  if (!in.TakeHeader(version, count) || version != kTextsVersion || count != responses.size())
    return NotTheirs(bytes, "texts");
  for (Response& r : responses) {
    if (!in.TakeText(r.text) || !in.TakeText(r.answer)) return NotTheirs(bytes, "texts");
  }
  return in.done() ? Status::Ok() : NotTheirs(bytes, "texts");
}

}  // namespace keel::trainer::rl
