#include "trainer/model_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "checkpoint/hf_model_dir.h"
#include "common/file_system.h"
#include "common/hash.h"

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

Result<std::string> WeightsFingerprint(const std::string& directory) {
  constexpr int64_t kPage = 4096, kPages = 64, kBeginning = 64 * kPage;
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, false, LinkPolicy::kFollow));
  KEEL_ASSIGN_OR_RETURN(const auto weights, checkpoint::HfModelDir::Open(*fs, "."));
  std::vector<std::string> names = weights.files();
  std::sort(names.begin(), names.end());
  Hasher128 hasher;
  std::vector<std::byte> buffer(kBeginning);
  for (const std::string& name : names) {
    KEEL_ASSIGN_OR_RETURN(const auto file, fs->Open(name));
    KEEL_ASSIGN_OR_RETURN(const int64_t size, file->Size());
    const std::string head = fmt::format("{}:{};", name, size);
    hasher.Update(std::as_bytes(std::span(head)));
    const auto add = [&](int64_t offset, int64_t bytes) -> Status {
      const auto into = std::span(buffer).first(static_cast<size_t>(bytes));
      KEEL_ASSIGN_OR_RETURN(const int64_t got, file->ReadAt(offset, into));
      hasher.Update(into.first(static_cast<size_t>(got)));
      return Status::Ok();
    };
    KEEL_RETURN_IF_ERROR(add(0, kBeginning));
    for (int64_t page = 1; page <= kPages; ++page)
      KEEL_RETURN_IF_ERROR(add(std::max<int64_t>(0, size - kPage) * page / kPages, kPage));
  }
  return hasher.Finish().ToHex();
}

Status ImportWeights(const std::string& directory, const ShardTable& table,
                     const std::vector<std::string>& allow_missing) {
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, false, LinkPolicy::kFollow));
  KEEL_ASSIGN_OR_RETURN(const auto weights, checkpoint::HfModelDir::Open(*fs, "."));
  checkpoint::HfReadOptions options;
  options.allow_missing = allow_missing;
  return weights.ReadInto(table, options);
}

}  // namespace keel::trainer
