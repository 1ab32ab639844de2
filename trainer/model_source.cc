#include "trainer/model_source.h"

#include <fmt/format.h>

#include <array>
#include <optional>

#include "checkpoint/hf_check.h"
#include "checkpoint/hf_model_dir.h"
#include "common/file_system.h"

namespace keel::trainer {

namespace {

constexpr int64_t kMaxTextFile = int64_t{64} << 20;
constexpr std::array kTokenizerFiles = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "generation_config.json",
                                        "chat_template.jinja",
                                        "vocab.json",
                                        "merges.txt",
                                        "added_tokens.json"};

}  // namespace

Result<ModelSource> ResolveModel(const std::string& path, const Json& keys, DType dtype,
                                 const model::Tokenizer* tokenizer) {
  ModelSource source;
  source.directory = path;
  std::string where = "actor_rollout_ref.model.config";
  if (path.empty()) {
    source.json = keys;
    if (tokenizer != nullptr) {
      const auto fill = [&](const char* key, std::optional<int64_t> value) {
        if (value && !source.json.contains(key)) source.json[key] = *value;
      };
      fill("vocab_size", tokenizer->vocab_size());
      // So that whoever generates with an export stops where the training texts ended.
      fill("bos_token_id", tokenizer->bos());
      fill("eos_token_id", tokenizer->eos());
    }
  } else {
    where = path + "/config.json";
    const auto fs = OpenPosixFileSystem(path, false, LinkPolicy::kFollow);
    if (!fs.ok()) return fs.status().WithContext("actor_rollout_ref.model.path");
    KEEL_ASSIGN_OR_RETURN(const std::string text, ReadFile(**fs, "config.json", kMaxTextFile));
    KEEL_ASSIGN_OR_RETURN(source.json, ParseJson(text, where));
    for (const char* name : kTokenizerFiles) {
      const auto content = ReadFile(**fs, name, kMaxTextFile);
      if (content.ok())
        source.documents.push_back({std::string("actor/huggingface/") + name, *content, false});
    }
  }
  const auto config = model::ParseHfConfig(source.json, where);
  if (!config.ok()) {
    return path.empty() ? Status(StatusCode::kConfig, config.status().message()) : config.status();
  }
  source.config = *config;
  source.documents.push_back({"actor/huggingface/config.json",
                              model::ToHfJson(source.config, dtype, &source.json).dump(2) + "\n",
                              false});
  return source;
}

Status ImportWeights(const std::string& directory, const model::HfConfig& config, model::Head head,
                     const ShardTable& table) {
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, false, LinkPolicy::kFollow));
  KEEL_ASSIGN_OR_RETURN(const auto weights, checkpoint::HfModelDir::Open(*fs, "."));
  const ModelTensors model = model::TensorsOf(config, head);
  KEEL_RETURN_IF_ERROR(checkpoint::CheckTensors(weights, model));
  checkpoint::HfReadOptions options;
  options.allow_missing = model.may_lack;
  options.finite = true;
  return weights.ReadInto(table, options);
}

}  // namespace keel::trainer
