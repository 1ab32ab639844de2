#include "trainer/foreign/adapter_options.h"

#include <fmt/format.h>

#include <map>
#include <utility>
#include <vector>

namespace keel::trainer::foreign {

namespace {

constexpr const char* kModel = "actor_rollout_ref.model.";

const std::map<std::string, std::vector<std::string>>& MegatronModules() {
  static const std::map<std::string, std::vector<std::string>> modules = {
      {"linear_qkv", {"q_proj", "k_proj", "v_proj"}},
      {"linear_q", {"q_proj"}},
      {"linear_k", {"k_proj"}},
      {"linear_v", {"v_proj"}},
      {"linear_proj", {"o_proj"}},
      {"linear_fc1", {"gate_proj", "up_proj"}},
      {"linear_fc1_gate", {"gate_proj"}},
      {"linear_fc1_up", {"up_proj"}},
      {"linear_fc2", {"down_proj"}},
  };
  return modules;
}

}  // namespace

Result<Json> AsModules(const Json& names) {
  if (names.is_null()) return Json(Json::value_t::discarded);
  Json modules = Json::array();
  for (const Json& one : names.is_array() ? names : Json::array({names})) {
    const std::string name = one.is_string() ? one.get<std::string>() : "";
    const auto megatron = MegatronModules().find(name);
    if (megatron != MegatronModules().end()) {
      for (const std::string& part : megatron->second) modules.push_back(part);
    } else if (name.empty() || name.starts_with("linear_") ||
               name.find_first_of("*^$()[]|\\?+") != std::string::npos) {
      return Status(StatusCode::kConfig,
                    fmt::format("expected names of modules, such as q_proj, got {}", one.dump()));
    } else {
      modules.push_back(name);
    }
  }
  return modules;
}

void TakeAdapters(const AskedAdapters& asked, Translation* translation) {
  const auto set = [&](const char* key, Json value) {
    translation->Set(std::string(kModel) + key, std::move(value), asked.from);
  };
  if (asked.path.is_string()) {
    set("lora_adapter_path", asked.path);
    if (asked.rank > 0)
      translation->Note(
          fmt::format("{}: rank, alpha and modules are those of the adapters that "
                      "lora_adapter_path names",
                      asked.from));
    return;
  }
  if (asked.rank <= 0) return;
  set("lora_rank", static_cast<int64_t>(asked.rank));
  set("lora_alpha", asked.alpha);
  if (asked.rank_stabilized) set("lora_rank_stabilized", true);
  for (const auto& [key, names] : {std::pair{"target_modules", &asked.targets},
                                   std::pair{"exclude_modules", &asked.excluded}}) {
    const Result<Json> modules = AsModules(*names);
    if (!modules.ok()) {
      translation->Unresolved(fmt::format("{}{}: {}", kModel, key, modules.status().message()));
    } else if (!modules->is_discarded() && !modules->empty()) {
      set(key, *modules);
    }
  }
}

}  // namespace keel::trainer::foreign
