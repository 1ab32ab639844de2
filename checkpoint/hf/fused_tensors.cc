#include "checkpoint/hf/fused_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "common/json_builder.h"
#include "common/text.h"

namespace keel::checkpoint {
namespace {

// A part's rows are to the others' as the values of their keys in config.json; without a key, as 1.
struct FamilyPart {
  std::string_view name;
  std::string_view key;
};
struct FamilyRule {
  std::string_view model_type;
  std::string_view name;
  FamilyPart parts[3];  // those with a name
};
constexpr FamilyRule GateAndUp(std::string_view model_type) {
  return {model_type,
          ".mlp.gate_up_proj.weight",
          {{".mlp.gate_proj.weight", ""}, {".mlp.up_proj.weight", ""}, {}}};
}
constexpr FamilyRule kFamilyRules[] = {
    {"phi3",
     ".self_attn.qkv_proj.weight",
     {{".self_attn.q_proj.weight", "num_attention_heads"},
      {".self_attn.k_proj.weight", "num_key_value_heads"},
      {".self_attn.v_proj.weight", "num_key_value_heads"}}},
    GateAndUp("phi3"),
    GateAndUp("glm"),
    GateAndUp("glm4"),
    {"granitemoehybrid",
     ".shared_mlp.input_linear.weight",
     {{".mlp.gate_proj.weight", ""}, {".mlp.up_proj.weight", ""}, {}}},
};

constexpr int64_t kMostShare = int64_t{1} << 20;

// The number of a key that may be left out where another one then says it.
Result<int64_t> ShareOf(const Json& config, std::string_view key, std::string_view where) {
  if (key.empty()) return 1;
  auto it = config.find(key);
  if (key == "num_key_value_heads" && (it == config.end() || it->is_null()))
    it = config.find("num_attention_heads");
  if (it == config.end() || !it->is_number_integer() || it->get<int64_t>() < 1 ||
      it->get<int64_t>() > kMostShare) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: {}: expected a positive number, by which the rows of fused "
                              "weights are told apart",
                              where, key));
  }
  return it->get<int64_t>();
}

}  // namespace

Result<FusedTensors> FusedTensors::Of(std::string_view config, std::string_view where) {
  FusedTensors fused;
  if (config.empty()) return fused;
  KEEL_ASSIGN_OR_RETURN(const Json root, ParsePythonJson(config, where));
  const auto type = root.is_object() ? root.find("model_type") : root.end();
  if (!root.is_object() || type == root.end() || !type->is_string()) return fused;
  fused.names_ = RenamedTensors(type->get_ref<const std::string&>());
  for (const FamilyRule& family : kFamilyRules) {
    if (family.model_type != type->get_ref<const std::string&>()) continue;
    Rule rule{family.name, {}};
    for (const FamilyPart& part : family.parts) {
      if (part.name.empty()) continue;
      KEEL_ASSIGN_OR_RETURN(const int64_t share, ShareOf(root, part.key, where));
      rule.parts.push_back({part.name, share});
    }
    fused.rules_.push_back(std::move(rule));
  }
  return fused;
}

FusedTensors FusedTensors::NamesAlone(std::string_view model_type) {
  FusedTensors names;
  names.names_ = RenamedTensors(model_type);
  return names;
}

const FusedTensors::Rule* FusedTensors::RuleOfPart(std::string_view name,
                                                   std::string_view* stem) const {
  for (const Rule& rule : rules_) {
    for (const Part& part : rule.parts) {
      if (!name.ends_with(part.name)) continue;
      *stem = name.substr(0, name.size() - part.name.size());
      return &rule;
    }
  }
  return nullptr;
}

std::string FusedTensors::FusedNameOf(std::string_view name) const {
  std::string_view stem;
  const Rule* rule = RuleOfPart(name, &stem);
  return rule == nullptr ? std::string() : fmt::format("{}{}", stem, rule->name);
}

Result<std::vector<SafetensorsTensor>> FusedTensors::Split(const SafetensorsTensor& tensor,
                                                           std::string_view where) const {
  const auto rule = std::find_if(rules_.begin(), rules_.end(), [&](const Rule& each) {
    return tensor.name.ends_with(each.name);
  });
  if (rule == rules_.end()) {
    SafetensorsTensor whole = tensor;
    whole.name = names_.ModelName(tensor.name);
    return std::vector{std::move(whole)};
  }
  const std::string_view stem =
      std::string_view(tensor.name).substr(0, tensor.name.size() - rule->name.size());
  int64_t shares = 0;
  std::vector<std::string> texts;
  for (const Part& part : rule->parts) {
    shares += part.share;
    texts.push_back(std::to_string(part.share));
  }
  const int64_t rows = tensor.shape.size() == 2 ? tensor.shape[0] : 0;
  if (rows == 0 || rows % shares != 0) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: {} is {}, whose rows config.json divides as {}: expected a "
                              "matrix with a multiple of {} rows. Correct whichever is wrong",
                              where, Printable(tensor.name), tensor.shape.ToString(),
                              fmt::join(texts, " : "), shares));
  }
  std::vector<SafetensorsTensor> parts;
  int64_t begin = tensor.begin;
  for (const Part& part : rule->parts) {
    SafetensorsTensor one = tensor;
    one.name = fmt::format("{}{}", stem, part.name);
    one.shape[0] = rows / shares * part.share;
    one.begin = begin;
    begin += one.shape.elements() * DTypeSize(one.dtype);
    one.end = begin;
    parts.push_back(std::move(one));
  }
  return parts;
}

Result<std::vector<FusedTensors::Joined>> FusedTensors::Join(
    std::span<const TensorInfo> tensors) const {
  std::map<std::string_view, const TensorInfo*> by_name;
  for (const TensorInfo& tensor : tensors) by_name[tensor.name] = &tensor;
  std::vector<Joined> joined;
  std::set<std::string> done;
  for (const TensorInfo& tensor : tensors) {
    std::string_view stem;
    const Rule* rule = RuleOfPart(tensor.name, &stem);
    if (rule == nullptr) {
      joined.push_back({{names_.FileName(tensor.name), tensor.dtype, tensor.shape}, {tensor}});
      continue;
    }
    Joined one{{fmt::format("{}{}", stem, rule->name), tensor.dtype, tensor.shape}, {}};
    if (!done.insert(one.tensor.name).second) continue;
    one.tensor.shape[0] = 0;
    for (const Part& part : rule->parts) {
      const auto it = by_name.find(fmt::format("{}{}", stem, part.name));
      if (it == by_name.end() || it->second->dtype != tensor.dtype ||
          it->second->shape.size() != 2 || it->second->shape[1] != tensor.shape[1]) {
        return Status(
            StatusCode::kInvalidData,
            fmt::format("{}{} is to be written as rows of {}, beside {} ({}, {}), and is {}", stem,
                        part.name, one.tensor.name, tensor.name, DTypeName(tensor.dtype),
                        tensor.shape.ToString(),
                        it == by_name.end() ? std::string("missing")
                                            : fmt::format("{}, {}", DTypeName(it->second->dtype),
                                                          it->second->shape.ToString())));
      }
      one.tensor.shape[0] += it->second->shape[0];
      one.parts.push_back(*it->second);
    }
    joined.push_back(std::move(one));
  }
  return joined;
}

}  // namespace keel::checkpoint
