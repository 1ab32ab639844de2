#include "model/config/adapter_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "common/hash.h"
#include "common/tensors/renamed_tensors.h"
#include "model/config/family_table.h"
#include "model/config/hf_tensors.h"

namespace keel::model {

namespace {

constexpr std::string_view kLayers = "model.layers.";
constexpr std::string_view kWeight = ".weight";

// The module of a layer's weight without the layer ("self_attn.q_proj"); empty of another tensor.
std::string_view ModuleOf(std::string_view weight) {
  if (!weight.starts_with(kLayers) || !weight.ends_with(kWeight)) return {};
  weight.remove_prefix(kLayers.size());
  weight.remove_suffix(kWeight.size());
  const size_t dot = weight.find('.');
  return dot == std::string_view::npos ? std::string_view() : weight.substr(dot + 1);
}

// What PEFT calls a weight, whose names are those of files.
std::string FileName(const HfConfig& config, std::string_view weight) {
  return RenamedTensors(FamilyOf(config.family).model_type).FileName(weight);
}

// As PEFT compares a module's path with a name of a list.
bool PathMatches(std::string_view weight, const std::vector<std::string>& names) {
  weight.remove_suffix(kWeight.size());
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return weight.ends_with(name) &&
           (weight.size() == name.size() || weight[weight.size() - name.size() - 1] == '.');
  });
}

// By either name.
bool Matches(const HfConfig& config, std::string_view weight,
             const std::vector<std::string>& names) {
  return PathMatches(weight, names) || PathMatches(FileName(config, weight), names);
}

bool MayHaveAdapter(const HfConfig& config, std::string_view weight) {
  const std::string_view module = ModuleOf(weight);
  if (module.empty()) return false;
  const std::string_view last = module.substr(module.rfind('.') + 1);
  if (last.find("norm") != std::string_view::npos || last == "conv1d") return false;
  if (config.moe.experts == 0) return true;
  const MoeNames& names = FamilyOf(config.family).moe_names;
  return module != names.router && module != names.shared_gate &&
         !module.starts_with(fmt::format("{}.", names.experts));
}

// The matrices that may have one, in the order of TensorsOf.
std::vector<TensorInfo> Candidates(const HfConfig& config) {
  std::vector<TensorInfo> some;
  for (TensorInfo& tensor : TensorsOf(config, Head::kVocabulary).needed)
    if (tensor.shape.size() == 2 && MayHaveAdapter(config, tensor.name))
      some.push_back(std::move(tensor));
  return some;
}

}  // namespace

bool HasAdapter(const HfConfig& config, std::string_view weight) {
  const AdapterSpec& spec = config.adapter;
  return spec.used() && MayHaveAdapter(config, weight) &&
         (spec.targets.empty() || Matches(config, weight, spec.targets)) &&
         !Matches(config, weight, spec.excluded);
}

AdapterNames AdapterNamesOf(std::string_view weight) {
  const std::string_view module = weight.substr(0, weight.size() - kWeight.size());
  return {fmt::format("{}.lora_A.weight", module), fmt::format("{}.lora_B.weight", module)};
}

std::vector<TensorInfo> AdapterTensorsOf(const HfConfig& config) {
  std::vector<TensorInfo> tensors;
  const int64_t rank = config.adapter.rank;
  for (const TensorInfo& weight : Candidates(config)) {
    if (!HasAdapter(config, weight.name)) continue;
    AdapterNames names = AdapterNamesOf(weight.name);
    const int out = config.Layer(0).input_rows ? 1 : 0;
    tensors.push_back({std::move(names.a), DType::kF32, {rank, weight.shape[1 - out]}});
    tensors.push_back({std::move(names.b), DType::kF32, {weight.shape[out], rank}});
  }
  return tensors;
}

std::string AdapterDigest(const HfConfig& config) {
  std::string names;
  const std::vector<TensorInfo> tensors = AdapterTensorsOf(config);
  for (const TensorInfo& tensor : tensors) names += tensor.name + "\n";
  return fmt::format("rank {} scale {} beside {} weights ({:016x})", config.adapter.rank,
                     config.adapter.scale(), tensors.size() / 2, Hash64(names));
}

std::vector<std::string> AdapterProblems(const HfConfig& config) {
  std::vector<std::string> problems;
  const std::vector<TensorInfo> weights = Candidates(config);
  std::set<std::string> modules;
  for (const TensorInfo& weight : weights) {
    std::string name = FileName(config, weight.name);
    name.resize(name.size() - kWeight.size());
    modules.insert(name.substr(name.rfind('.') + 1));
  }
  const auto check = [&](const char* key, const std::vector<std::string>& names,
                         const std::vector<TensorInfo>& known) {
    for (const std::string& name : names) {
      if (std::any_of(known.begin(), known.end(), [&](const TensorInfo& w) {
            return w.name.ends_with(kWeight) && Matches(config, w.name, {name});
          }))
        continue;
      problems.push_back(
          fmt::format("{}: {}: no module of this model that can have an adapter is "
                      "called so; they are {}",
                      key, name, fmt::join(modules, ", ")));
    }
  };
  check("target_modules", config.adapter.targets, weights);
  // What has no adapter anyway may be named.
  check("exclude_modules", config.adapter.excluded, TensorsOf(config, Head::kVocabulary).needed);
  if (problems.empty() && AdapterTensorsOf(config).empty())
    problems.emplace_back("exclude_modules leaves no module that has an adapter");
  return problems;
}

}  // namespace keel::model
