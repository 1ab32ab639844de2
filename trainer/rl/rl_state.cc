#include "trainer/rl/rl_state.h"

#include <fmt/format.h>

#include "trainer/run/run_state.h"

namespace keel::trainer::rl {

namespace {

constexpr const char* kWhere = "rl_state.json";
constexpr int64_t kFormat = 4;

}  // namespace

std::string RlStateJson(const RlState& state) {
  Json json = {{"format_version", kFormat},
               {"weight_version", state.version.number},
               {"weight_digest", fmt::format("{:016x}", state.version.digest)},
               {"critic_optimizer_steps", state.critic_optimizer_steps},
               {"kl_controller", state.kl_controller}};
  if (!state.entropy_controller.is_null()) json["entropy_controller"] = state.entropy_controller;
  return json.dump(2) + "\n";
}

Result<RlState> ParseRlState(const std::string& text) {
  RlState state;
  KEEL_ASSIGN_OR_RETURN(const Json json, ParseJson(text, kWhere));
  KEEL_ASSIGN_OR_RETURN(const int64_t format, GetInt(json, "format_version", kWhere));
  if (format < 1 || format > kFormat) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("{}: format_version {}, this release reads 1 to {}", kWhere, format, kFormat));
  }
  KEEL_ASSIGN_OR_RETURN(state.version.number, GetCount(json, "weight_version", kWhere));
  KEEL_ASSIGN_OR_RETURN(state.version.digest, GetHex64(json, "weight_digest", kWhere));
  // 1 and 3 were made by other rules, 2 counted a box that several ranks write as often: none to
  // compare.
  if (format < kFormat) state.version.digest = 0;
  KEEL_ASSIGN_OR_RETURN(state.critic_optimizer_steps,
                        GetCount(json, "critic_optimizer_steps", kWhere));
  if (!json.contains("kl_controller"))
    return Status(StatusCode::kInvalidData, fmt::format("{}: no kl_controller", kWhere));
  state.kl_controller = json["kl_controller"];
  if (json.contains("entropy_controller")) state.entropy_controller = json["entropy_controller"];
  return state;
}

}  // namespace keel::trainer::rl
