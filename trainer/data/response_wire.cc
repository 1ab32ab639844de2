#include "trainer/data/response_wire.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "common/wire.h"

namespace keel::trainer::rl {

namespace {

constexpr uint8_t kResponsesVersion = 2;
constexpr uint8_t kTextsVersion = 1;

// What tools gave and did.
bool TakeTurns(WireReader& in, Response& r) {
  uint32_t given = 0, rewards = 0;
  uint8_t used = 0;
  if (!in.Pod(&given) || !in.Pods(given, &r.given) || !in.Pod(&used) || used > 1) return false;
  if (ProblemOf(r.given, std::ssize(r.tokens)) != nullptr) return false;
  if (used == 0) return true;
  turns::ToolUse& tools = r.tools;
  return in.Pod(&tools.calls) && in.Pod(&tools.errors) && in.Pod(&tools.timeouts) &&
         in.Pod(&tools.truncated) && in.Pod(&rewards) && in.Pods(rewards, &tools.rewards) &&
         !tools.empty();
}

bool TakeResponse(WireReader& in, uint8_t version, Response& r) {
  uint32_t tokens = 0, log_probs = 0, extras = 0;
  int32_t sample = 0;
  if (!in.Pod(&r.position) || !in.Pod(&sample) || !in.Pod(&r.weight_version) || !in.Pod(&r.score) ||
      !in.Pod(&tokens) || !in.Pod(&log_probs) || !in.Pod(&extras))
    return false;
  r.sample = sample;
  if (log_probs != 0 && log_probs != tokens) return false;
  if (!in.Pods(tokens, &r.tokens) || !in.Pods(log_probs, &r.log_probs)) return false;
  for (uint32_t i = 0; i < extras; ++i) {
    std::string name;
    double value = 0;
    if (!in.Text<uint32_t>(&name) || !in.Pod(&value)) return false;
    if (!r.extra.empty() && name <= r.extra.rbegin()->first) return false;
    r.extra.emplace_hint(r.extra.end(), std::move(name), value);
  }
  if (!in.Text<uint32_t>(&r.finish) || !in.Text<uint32_t>(&r.error)) return false;
  return version == 1 || TakeTurns(in, r);
}

Status NotTheirs(std::string_view bytes, const char* what) {
  return Status(
      StatusCode::kInvalidData,
      fmt::format("{} bytes of a peer are not its {}: torn, or of another version of keel",
                  bytes.size(), what));
}

Result<std::vector<Response>> DecodeSince(uint8_t oldest, std::string_view bytes) {
  WireReader in(bytes);
  uint8_t version = 0;
  uint64_t count = 0;
  if (!in.Pod(&version) || !in.U64(&count) || version < oldest || version > kResponsesVersion)
    return NotTheirs(bytes, "responses");
  std::vector<Response> responses;
  for (uint64_t i = 0; i < count; ++i) {
    if (!TakeResponse(in, version, responses.emplace_back())) return NotTheirs(bytes, "responses");
  }
  if (!in.AtEnd()) return NotTheirs(bytes, "responses");
  return responses;
}

}  // namespace

std::string EncodeResponses(std::span<const Response> responses) {
  WireWriter out;
  out.Pod(kResponsesVersion).Count(responses.size());
  for (const Response& r : responses) {
    out.I64(r.position).Pod(static_cast<int32_t>(r.sample)).I64(r.weight_version).Pod(r.score);
    for (const size_t count : {r.tokens.size(), r.log_probs.size(), r.extra.size()})
      out.Count<uint32_t>(count);
    out.Pods(r.tokens).Pods(r.log_probs);
    for (const auto& [name, value] : r.extra) out.Text<uint32_t>(name).Pod(value);
    out.Text<uint32_t>(r.finish).Text<uint32_t>(r.error);
    out.Count<uint32_t>(r.given.size()).Pods(r.given);
    out.Pod(static_cast<uint8_t>(!r.tools.empty()));
    if (r.tools.empty()) continue;
    out.I64(r.tools.calls).I64(r.tools.errors).I64(r.tools.timeouts).I64(r.tools.truncated);
    out.Count<uint32_t>(r.tools.rewards.size()).Pods(r.tools.rewards);
  }
  return std::move(out).Take();
}

Result<std::vector<Response>> DecodeResponses(std::string_view bytes) {
  return DecodeSince(kResponsesVersion, bytes);
}

Result<std::vector<Response>> DecodeStoredResponses(std::string_view bytes) {
  return DecodeSince(1, bytes);
}

std::string EncodeTexts(std::span<const Response> responses) {
  WireWriter out;
  out.Pod(kTextsVersion).Count(responses.size());
  for (const Response& r : responses) out.Text<uint32_t>(r.text).Text<uint32_t>(r.answer);
  return std::move(out).Take();
}

Status DecodeTexts(std::string_view bytes, std::span<Response> responses) {
  WireReader in(bytes);
  uint8_t version = 0;
  uint64_t count = 0;
  if (!in.Pod(&version) || !in.U64(&count) || version != kTextsVersion || count != responses.size())
    return NotTheirs(bytes, "texts");
  for (Response& r : responses) {
    if (!in.Text<uint32_t>(&r.text) || !in.Text<uint32_t>(&r.answer))
      return NotTheirs(bytes, "texts");
  }
  return in.AtEnd() ? Status::Ok() : NotTheirs(bytes, "texts");
}

}  // namespace keel::trainer::rl
