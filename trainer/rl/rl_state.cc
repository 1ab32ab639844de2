#include "trainer/rl/rl_state.h"

#include <fmt/format.h>

#include <charconv>

namespace keel::trainer::rl {

namespace {

constexpr const char* kWhere = "rl_state.json";

Result<uint64_t> ParseHex(const Json& json, const char* key) {
  KEEL_ASSIGN_OR_RETURN(const std::string text, GetString(json, key, kWhere));
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("{}: {}: expected 16 hexadecimal digits, found \"{}\"", kWhere, key, text));
  }
  return value;
}

}  // namespace

std::string RlStateJson(const RlState& state) {
  const Json json = {{"format_version", 1},
                     {"weight_version", state.version.number},
                     {"weight_digest", fmt::format("{:016x}", state.version.digest)},
                     {"critic_optimizer_steps", state.critic_optimizer_steps},
                     {"kl_controller", state.kl_controller},
                     {"ref_digest", fmt::format("{:016x}", state.ref_digest)}};
  return json.dump(2) + "\n";
}

Result<RlState> ParseRlState(const std::string& text) {
  RlState state;
  KEEL_ASSIGN_OR_RETURN(const Json json, ParseJson(text, kWhere));
  KEEL_ASSIGN_OR_RETURN(const int64_t format, GetInt(json, "format_version", kWhere));
  if (format != 1) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: format_version {}, this release reads 1", kWhere, format));
  }
  KEEL_ASSIGN_OR_RETURN(state.version.number, GetInt(json, "weight_version", kWhere));
  KEEL_ASSIGN_OR_RETURN(state.version.digest, ParseHex(json, "weight_digest"));
  KEEL_ASSIGN_OR_RETURN(state.critic_optimizer_steps,
                        GetInt(json, "critic_optimizer_steps", kWhere));
  KEEL_ASSIGN_OR_RETURN(state.ref_digest, ParseHex(json, "ref_digest"));
  if (!json.contains("kl_controller"))
    return Status(StatusCode::kInvalidData, fmt::format("{}: no kl_controller", kWhere));
  state.kl_controller = json["kl_controller"];
  return state;
}

}  // namespace keel::trainer::rl
