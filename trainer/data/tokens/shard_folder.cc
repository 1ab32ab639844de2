#include "trainer/data/tokens/shard_folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "common/text.h"

namespace keel::trainer {

namespace {

constexpr const char* kFormat = "keel-tokens";
constexpr int64_t kVersion = 1;
constexpr int64_t kMostBytes = int64_t{64} << 20;

Digest128 DigestOf(const Json& document) {
  const std::string text = document.dump();
  return Hash128(std::as_bytes(std::span(text)));
}

Result<Digest128> GetDigest(const Json& object, const char* key, const std::string& where) {
  KEEL_ASSIGN_OR_RETURN(const std::string text, GetString(object, key, where));
  Result<Digest128> digest = Digest128::FromHex(text);
  if (digest.ok()) return digest;
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: {}: expected 32 hexadecimal digits", where, key));
}

// The name of a file of the folder, and of no other.
bool IsPlainName(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.size() < 256 &&
         name.find_first_of(std::string("/\0", 2)) == std::string::npos;
}

Result<ShardEntry> ParseEntry(const Json& object, const std::string& where) {
  ShardEntry entry;
  KEEL_ASSIGN_OR_RETURN(entry.file, GetString(object, "file", where));
  if (!IsPlainName(entry.file)) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: file \"{}\" is no name of a file beside it", where,
                              Printable(entry.file)));
  }
  KEEL_ASSIGN_OR_RETURN(entry.tokens, GetInt(object, "tokens", where));
  KEEL_ASSIGN_OR_RETURN(entry.documents, GetInt(object, "documents", where));
  KEEL_ASSIGN_OR_RETURN(entry.bytes, GetInt(object, "bytes", where));
  KEEL_ASSIGN_OR_RETURN(entry.header, GetDigest(object, "header", where));
  return entry;
}

Result<ShardFolderIndex> Parse(const Json& json, const std::string& where) {
  const auto refuse = [&](const std::string& text) {
    return Status(StatusCode::kInvalidData, fmt::format("{}: {}", where, text));
  };
  if (!json.is_object()) return refuse("expected an object");
  KEEL_ASSIGN_OR_RETURN(const std::string format, GetString(json, "format", where));
  KEEL_ASSIGN_OR_RETURN(const int64_t version, GetInt(json, "version", where));
  if (format != kFormat || version != kVersion) {
    return refuse(fmt::format("\"{}\" of version {}, this program reads {} of version {}",
                              Printable(format, 40), version, kFormat, kVersion));
  }
  KEEL_ASSIGN_OR_RETURN(const Digest128 digest, GetDigest(json, "digest", where));
  Json rest = json;
  rest.erase("digest");
  if (digest != DigestOf(rest)) {
    return Status(StatusCode::kDataLoss,
                  fmt::format("{}: its digest does not hold: it was changed or damaged; tokenize "
                              "again into a new folder",
                              where));
  }
  ShardFolderIndex index;
  KEEL_ASSIGN_OR_RETURN(index.tokenizer, GetString(json, "tokenizer", where));
  KEEL_ASSIGN_OR_RETURN(index.tokenizer_digest, GetDigest(json, "tokenizer_digest", where));
  KEEL_ASSIGN_OR_RETURN(const int64_t id_bytes, GetInt(json, "id_bytes", where));
  if (id_bytes != kRecordIdBytes && id_bytes != 2 && id_bytes != 4)
    return refuse("id_bytes: expected 1, 2 or 4");
  index.id_bytes = static_cast<uint32_t>(id_bytes);
  KEEL_ASSIGN_OR_RETURN(index.largest_id, GetInt(json, "largest_id", where));
  KEEL_ASSIGN_OR_RETURN(index.rows, GetInt(json, "rows", where));
  for (const char* list : {"warnings", "shards"}) {
    if (!json.contains(list) || !json[list].is_array())
      return refuse(fmt::format("{}: expected a list", list));
  }
  for (const Json& warning : json["warnings"]) {
    if (!warning.is_string()) return refuse("warnings: expected text");
    index.warnings.push_back(warning.get<std::string>());
  }
  index.plan = json.value("plan", Json());
  for (const Json& shard : json["shards"]) {
    if (!shard.is_object()) return refuse("shards: expected objects");
    KEEL_ASSIGN_OR_RETURN(ShardEntry entry, ParseEntry(shard, where));
    index.shards.push_back(std::move(entry));
  }
  return index;
}

}  // namespace

std::string ShardFolderIndex::ToJson() const {
  int64_t tokens = 0, documents = 0;
  Json list = Json::array();
  for (const ShardEntry& shard : shards) {
    tokens += shard.tokens;
    documents += shard.documents;
    list.push_back({{"file", shard.file},
                    {"tokens", shard.tokens},
                    {"documents", shard.documents},
                    {"bytes", shard.bytes},
                    {"header", shard.header.ToHex()}});
  }
  Json json = {{"format", kFormat},      {"version", kVersion},
               {"tokenizer", tokenizer}, {"tokenizer_digest", tokenizer_digest.ToHex()},
               {"id_bytes", id_bytes},   {"largest_id", largest_id},
               {"tokens", tokens},       {"documents", documents},
               {"rows", rows},           {"warnings", warnings},
               {"plan", plan},           {"shards", std::move(list)}};
  json["digest"] = DigestOf(json).ToHex();
  return json.dump(1) + "\n";
}

Result<ShardFolderIndex> ReadShardFolderIndex(const std::string& folder) {
  KEEL_ASSIGN_OR_RETURN(const auto files, OpenPosixFileSystem(folder, false, LinkPolicy::kFollow));
  const Result<std::string> text = ReadFile(*files, kShardFolderName, kMostBytes);
  if (!text.ok() && text.status().code() == StatusCode::kNotFound) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: is a directory without {}: no token shards, or not finished; "
                              "run the keel data tokenize that began it again, or name its files",
                              Printable(folder), kShardFolderName));
  }
  KEEL_RETURN_IF_ERROR(text.status());
  const std::string where = Printable(folder) + "/" + kShardFolderName;
  KEEL_ASSIGN_OR_RETURN(const Json json, ParseJson(*text, where));
  return Parse(json, where);
}

Result<ShardFolder> ShardFolder::Open(const std::string& folder) {
  ShardFolder opened;
  KEEL_ASSIGN_OR_RETURN(opened.index, ReadShardFolderIndex(folder));
  for (const ShardEntry& entry : opened.index.shards) {
    const std::string path = (std::filesystem::path(folder) / entry.file).string();
    KEEL_ASSIGN_OR_RETURN(auto shard, ShardFile::Open(path));
    const ShardHeader& header = shard->header();
    if (header.header != entry.header || header.tokens != entry.tokens ||
        header.documents != entry.documents || header.tokenizer != opened.index.tokenizer_digest ||
        header.largest_id > opened.index.largest_id) {
      return Status(StatusCode::kInvalidData,
                    fmt::format("token shard {}: is not the one that {} of its folder names: files "
                                "of several runs are mixed; tokenize again into a new folder",
                                Printable(path), kShardFolderName));
    }
    opened.shards.push_back(std::move(shard));
  }
  return opened;
}

std::shared_ptr<const TokenStore> ShardFolder::tokens() const {
  if (shards.size() == 1) return shards.front();
  return std::make_shared<JoinedTokens>(
      std::vector<std::shared_ptr<const TokenStore>>(shards.begin(), shards.end()));
}

}  // namespace keel::trainer
