#include "trainer/inputs/adapter_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include "checkpoint/format/names.h"
#include "checkpoint/hf/hf_model_dir.h"
#include "common/files/downloaded.h"
#include "common/files/file_system.h"
#include "common/json.h"
#include "common/json_builder.h"
#include "common/tensors/renamed_tensors.h"
#include "common/text.h"
#include "model/config/adapter_tensors.h"
#include "model/config/family_table.h"
#include "trainer/config/choices.h"
#include "trainer/inputs/model_weights.h"

namespace keel::trainer {

namespace {

constexpr int64_t kMaxAdapterConfig = int64_t{64} << 20;
constexpr std::string_view kSuffixA = ".lora_A.weight";

bool IsFile(const std::string& directory, const std::string& name) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(std::filesystem::path(directory) / name, ignored);
}

// Of a key that PEFT has and Keel computes nothing for: whether it asks for nothing.
bool AsksForNothing(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         ((value.is_object() || value.is_array()) && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>() == "none");
}

// The keys that change what is computed, or what the tensors are. Not fan_in_fan_out, which PEFT
// sets right by the module's class, whatever a file says.
constexpr const char* kUnsupported[] = {"use_dora",
                                        "bias",
                                        "lora_bias",
                                        "modules_to_save",
                                        "rank_pattern",
                                        "alpha_pattern",
                                        "layers_to_transform",
                                        "layer_replication",
                                        "target_parameters",
                                        "trainable_token_indices",
                                        "alora_invocation_tokens",
                                        "use_qalora",
                                        "use_bdlora",
                                        "arrow_config"};

Status CheckKeys(const Json& json, std::string_view where) {
  const auto refuse = [&](const char* key, std::string_view why) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("{}: {}: {}: {}", where, key,
                    Printable(json[key].dump(-1, ' ', false, Json::error_handler_t::replace), 200),
                    why));
  };
  if (!json.is_object())
    return Status(StatusCode::kInvalidData, fmt::format("{}: is no JSON object", where));
  if (json.contains("peft_type") && json["peft_type"] != "LORA")
    return refuse("peft_type", "expected LORA, the only kind of adapters that Keel has");
  for (const char* key : kUnsupported) {
    if (json.contains(key) && !AsksForNothing(json[key]))
      return refuse(key, "Keel does not compute it");
  }
  // Others than these begin with a part of the base's weights, and leave the rest for the base.
  constexpr auto kBeside = std::to_array<std::string_view>({"gaussian", "eva", "orthogonal"});
  if (json.contains("init_lora_weights") && json["init_lora_weights"].is_string() &&
      std::find(kBeside.begin(), kBeside.end(), json["init_lora_weights"].get<std::string>()) ==
          kBeside.end()) {
    return refuse("init_lora_weights",
                  "such adapters may stand beside other weights than the base's: merge them with "
                  "peft");
  }
  return Status::Ok();
}

Result<std::vector<std::string>> Names(const Json& json, const char* key, std::string_view where) {
  std::vector<std::string> names;
  if (!json.contains(key) || json[key].is_null()) return names;
  const Json& value = json[key];
  if (value.is_string()) return std::vector<std::string>{value.get<std::string>()};
  for (const Json& name : value) {
    if (!name.is_string()) {
      return Status(StatusCode::kInvalidData,
                    fmt::format("{}: {}: expected a list of names", where, key));
    }
    names.push_back(name.get<std::string>());
  }
  return names;
}

// The weights whose adapters the tensors are, by the paths of their modules.
std::set<std::string> ModulesOf(const checkpoint::HfModelDir& adapters) {
  std::set<std::string> modules;
  for (const TensorInfo& tensor : adapters.source().tensors()) {
    std::string_view name = tensor.name;
    if (!name.ends_with(kSuffixA)) continue;
    name.remove_suffix(kSuffixA.size());
    modules.emplace(name);
  }
  return modules;
}

// That the tensors are of the modules that the configuration names, and of no others: PEFT would
// leave these out, and begin the others anew.
Status CheckNamed(const std::set<std::string>& named, const std::set<std::string>& there,
                  const model::HfConfig& base, const std::string& directory) {
  const auto check = [&](const std::set<std::string>& of, const std::set<std::string>& within,
                         std::string_view what) {
    std::vector<std::string> apart;
    std::set_difference(of.begin(), of.end(), within.begin(), within.end(),
                        std::back_inserter(apart));
    if (apart.empty()) return Status::Ok();
    const RenamedTensors of_files(model::FamilyOf(base.family).model_type);
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: {}, the first {}; there are {} of them", directory,
                              fmt::format(fmt::runtime(what), checkpoint::kAdapterConfigName,
                                          checkpoint::kAdapterWeightsName),
                              Printable(of_files.FileName(apart.front())), apart.size()));
  };
  KEEL_RETURN_IF_ERROR(
      check(named, there, "{} names modules whose tensors {} lacks (target_modules)"));
  return check(there, named,
               "{} leaves out modules whose tensors {} holds (target_modules, exclude_modules)");
}

}  // namespace

Result<AdapterConfig> ParseAdapterConfig(std::string_view text, std::string_view where) {
  KEEL_ASSIGN_OR_RETURN(const Json json, ParsePythonJson(text, where));
  KEEL_RETURN_IF_ERROR(CheckKeys(json, where));
  AdapterConfig config;
  KEEL_ASSIGN_OR_RETURN(config.spec.rank, GetInt(json, "r", where));
  if (config.spec.rank < 1 || config.spec.rank > model::AdapterSpec::kMostRank) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: r: {}: expected 1 to {}", where, config.spec.rank,
                              model::AdapterSpec::kMostRank));
  }
  KEEL_ASSIGN_OR_RETURN(config.spec.alpha, GetDouble(json, "lora_alpha", where));
  if (!(config.spec.alpha > 0) || !std::isfinite(config.spec.alpha)) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("{}: lora_alpha: {}: expected a number above 0", where, config.spec.alpha));
  }
  if (json.contains("use_rslora") && !json["use_rslora"].is_null()) {
    KEEL_ASSIGN_OR_RETURN(config.spec.rank_stabilized, GetBool(json, "use_rslora", where));
  }
  KEEL_ASSIGN_OR_RETURN(config.spec.targets, Names(json, "target_modules", where));
  // An expression says something of PEFT's names alone: what the tensors are of decides.
  const bool excludes = json.contains("exclude_modules") && json["exclude_modules"].is_string();
  config.names_modules =
      json.contains("target_modules") && json["target_modules"].is_array() && !excludes;
  if (!excludes) {
    KEEL_ASSIGN_OR_RETURN(config.spec.excluded, Names(json, "exclude_modules", where));
  }
  if (json.contains("lora_dropout") && json["lora_dropout"].is_number())
    config.dropout = json["lora_dropout"].get<double>();
  if (config.spec.targets == std::vector<std::string>{"all-linear"}) config.spec.targets.clear();
  if (!std::isfinite(static_cast<float>(config.spec.scale()))) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: lora_alpha: {} over r is more than float32 holds", where,
                              config.spec.alpha));
  }
  if (json.contains("base_model_name_or_path") && json["base_model_name_or_path"].is_string())
    config.base = json["base_model_name_or_path"].get<std::string>();
  return config;
}

std::string AdapterConfigText(const model::HfConfig& config, const std::string& base) {
  const model::AdapterSpec& spec = config.adapter;
  // By their last names, as PEFT writes them, where these are no others' too; else by their paths.
  std::set<std::string> paths, names;
  const RenamedTensors of_files(model::FamilyOf(config.family).model_type);
  for (const TensorInfo& tensor : model::AdapterTensorsOf(config)) {
    std::string path = of_files.FileName(tensor.name);
    if (!path.ends_with(kSuffixA)) continue;
    path.resize(path.size() - kSuffixA.size());
    names.insert(path.substr(path.rfind('.') + 1));
    paths.insert(std::move(path));
  }
  model::HfConfig by_names = config;
  by_names.adapter.targets.assign(names.begin(), names.end());
  by_names.adapter.excluded.clear();
  // Experts may have modules of the same names, which PEFT knows and Keel has no adapters for.
  const bool same = config.moe.experts == 0 &&
                    model::AdapterTensorsOf(by_names) == model::AdapterTensorsOf(config);
  Json json = {{"peft_type", "LORA"},
               {"task_type", "CAUSAL_LM"},
               {"r", spec.rank},
               {"lora_alpha", spec.alpha},
               {"lora_dropout", 0.0},
               {"use_rslora", spec.rank_stabilized},
               {"bias", "none"},
               {"fan_in_fan_out", config.Layer(0).input_rows},
               {"inference_mode", true},
               {"init_lora_weights", true},
               {"target_modules", same ? names : paths},
               {"exclude_modules", Json()},
               {"base_model_name_or_path",
                base.empty() ? Json() : Json(std::filesystem::absolute(base).string())}};
  return json.dump(2) + "\n";
}

Result<AdapterBase> ParseAdapterBase(std::string_view text, std::string_view where) {
  KEEL_ASSIGN_OR_RETURN(const Json json, ParseJson(text, where));
  KEEL_ASSIGN_OR_RETURN(const int64_t version, GetInt(json, "format_version", where));
  if (version != 1) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: format_version {}, this release reads 1; use a newer Keel",
                              where, version));
  }
  AdapterBase base;
  KEEL_ASSIGN_OR_RETURN(const std::string digest, GetString(json, "digest", where));
  const char* const end = digest.data() + digest.size();
  if (const auto read = std::from_chars(digest.data(), end, base.digest, 16);
      digest.size() != 16 || read.ec != std::errc() || read.ptr != end) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: digest: expected 16 hexadecimal digits, found {}", where,
                              Printable(digest, 40)));
  }
  KEEL_ASSIGN_OR_RETURN(const std::string dtype, GetString(json, "dtype", where));
  const auto known = ParseName<WeightDtype>(dtype);
  if (!known) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: dtype: expected float32 or bfloat16, found {}", where,
                              Printable(dtype, 40)));
  }
  base.dtype = *known == WeightDtype::kBfloat16 ? DType::kBF16 : DType::kF32;
  return base;
}

Result<std::optional<AdapterBase>> ReadAdapterBase(const std::string& directory) {
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, false, LinkPolicy::kFollow));
  const Result<std::string> text = ReadDownloaded(*fs, AdapterBase::kName, kMaxAdapterConfig);
  if (text.status().code() == StatusCode::kNotFound) return std::optional<AdapterBase>();
  KEEL_RETURN_IF_ERROR(text.status());
  KEEL_ASSIGN_OR_RETURN(AdapterBase base, ParseAdapterBase(*text, fmt::format("{}/{}", directory,
                                                                              AdapterBase::kName)));
  return std::optional(base);
}

bool HasTokenizer(const std::string& directory) {
  const std::vector<std::string> names = TokenizerFileNames();
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name != "tokenizer_config.json" && IsFile(directory, name);
  });
}

void TakeTextBesideAdapters(const std::string& directory, TokenizerChoice* choice) {
  if (HasTokenizer(directory) && !choice->kind && choice->tokenizer_path.empty()) {
    choice->tokenizer_path = directory;
  } else if (IsFile(directory, "chat_template.jinja") && choice->chat.source.empty()) {
    choice->chat.source = directory + "/chat_template.jinja";
  }
}

std::vector<checkpoint::Document> AdapterDocuments(const model::HfConfig& config,
                                                   const std::string& directory,
                                                   const AdapterBase& base) {
  const Json json = {{"format_version", 1},
                     {"digest", fmt::format("{:016x}", base.digest)},
                     {"dtype", NameOf(base.dtype == DType::kBF16 ? WeightDtype::kBfloat16
                                                                 : WeightDtype::kFloat32)}};
  return {{fmt::format("actor/huggingface/{}", checkpoint::kAdapterConfigName),
           AdapterConfigText(config, directory), false},
          {AdapterBase::kPath, json.dump(2) + "\n", false}};
}

std::string AdapterRemark(const model::HfConfig& config) {
  int64_t elements = 0;
  const std::vector<TensorInfo> tensors = model::AdapterTensorsOf(config);
  for (const TensorInfo& tensor : tensors) elements += tensor.shape.elements();
  return fmt::format("{} parameters of rank {} learn, beside {} weights", elements,
                     config.adapter.rank, tensors.size() / 2);
}

bool HasAdapterFiles(const std::string& directory) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::path(directory) / checkpoint::kAdapterConfigName,
                                 ignored);
}

Result<AdapterConfig> OpenAdapters(const std::string& directory, const model::HfConfig& base) {
  std::error_code ignored;
  if (std::filesystem::is_directory(std::filesystem::path(directory) / "actor" / "model",
                                    ignored)) {
    return Status(
        StatusCode::kNotFound,
        fmt::format("{}: it is a step of a run: give what keel ckpt export-hf makes of it",
                    directory));
  }
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, false, LinkPolicy::kFollow));
  const std::string where = fmt::format("{}/{}", directory, checkpoint::kAdapterConfigName);
  KEEL_ASSIGN_OR_RETURN(
      const std::string text,
      ReadDownloaded(*fs, std::string(checkpoint::kAdapterConfigName), kMaxAdapterConfig));
  KEEL_ASSIGN_OR_RETURN(AdapterConfig config, ParseAdapterConfig(text, where));
  // Where PEFT's target_modules is an expression what there is decides.
  model::HfConfig all = base;
  all.adapter = {.rank = 1, .alpha = 1};
  std::set<std::string> possible;
  for (const TensorInfo& tensor : model::AdapterTensorsOf(all)) possible.insert(tensor.name);
  KEEL_ASSIGN_OR_RETURN(
      const auto adapters,
      checkpoint::HfModelDir::OpenAdapters(*fs, ".", model::FamilyOf(base.family).model_type));
  const std::set<std::string> modules = ModulesOf(adapters);
  for (const std::string& module : modules) {
    if (possible.contains(module + std::string(kSuffixA))) continue;
    return Status(
        StatusCode::kInvalidData,
        fmt::format("{}/{}: holds {}{}: no module of this model that can have an adapter "
                    "is called so",
                    directory, checkpoint::kAdapterWeightsName, Printable(module), kSuffixA));
  }
  model::HfConfig with = base;
  with.adapter = config.spec;
  const auto described = [&] {
    std::set<std::string> names;
    for (const TensorInfo& tensor : model::AdapterTensorsOf(with))
      if (std::string_view name = tensor.name; name.ends_with(kSuffixA))
        names.emplace(name.substr(0, name.size() - kSuffixA.size()));
    return names;
  };
  if (config.names_modules) {
    KEEL_RETURN_IF_ERROR(CheckNamed(described(), modules, base, directory));
  } else if (described() != modules) {
    with.adapter.targets.assign(modules.begin(), modules.end());
    with.adapter.excluded.clear();
  }
  KEEL_RETURN_IF_ERROR(OpenAdapterWeights(*fs, with).status());
  config.spec = with.adapter;
  return config;
}

}  // namespace keel::trainer
