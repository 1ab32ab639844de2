#include "checkpoint/format/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "checkpoint/format/names.h"
#include "common/text.h"

namespace keel::checkpoint {
namespace {

// The text ends with exactly: kDigestLine, 32 hex digits, kEnd. What stands before is digested, so
// that each byte of the file is either digested or compared.
constexpr std::string_view kDigestLine = "  \"digest\": \"";
constexpr std::string_view kEnd = "\"\n}\n";
constexpr size_t kDigits = 32;
constexpr size_t kTail = kDigestLine.size() + kDigits + kEnd.size();

constexpr std::pair<FileRole, std::string_view> kRoleNames[] = {
    {FileRole::kModel, "model"},       {FileRole::kOptimizer, "optimizer"},
    {FileRole::kDocument, "document"}, {FileRole::kExtra, "extra"},
    {FileRole::kHfModel, "hf_model"},
};

Status Unreadable(std::string_view where, std::string_view what) {
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: {}", where, Printable(what, std::string_view::npos)));
}

Result<Digest128> GetDigest(const Json& object, std::string_view key, std::string_view where) {
  KEEL_ASSIGN_OR_RETURN(const std::string hex, GetString(object, key, where));
  const Result<Digest128> digest = Digest128::FromHex(hex);
  if (!digest.ok()) return digest.status().WithContext(fmt::format("{}: '{}'", where, key));
  return digest;
}

Result<int64_t> GetSize(const Json& object, std::string_view key, std::string_view where) {
  KEEL_ASSIGN_OR_RETURN(const int64_t value, GetInt(object, key, where));
  if (value < 0 || value > Manifest::kMaxNumber)
    return Unreadable(where, fmt::format("'{}' is {}, expected 0 to 2^62", key, value));
  return value;
}

// Refuses keys that this version does not know: what it cannot honour it must not ignore.
Status CheckKeys(const Json& object, std::initializer_list<std::string_view> known,
                 std::string_view where) {
  if (!object.is_object()) return Unreadable(where, "expected an object");
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return Unreadable(where, fmt::format("unknown key '{}'", key));
    }
  }
  return Status::Ok();
}

// The order: format first, so that other files named manifest.json are told apart.
Status CheckVersion(const Json& root, std::string_view where) {
  KEEL_ASSIGN_OR_RETURN(const std::string format, GetString(root, "format", where));
  if (format != kManifestFormat) {
    return Unreadable(where, fmt::format("format is '{}', expected '{}'", format, kManifestFormat));
  }
  KEEL_ASSIGN_OR_RETURN(const std::string version, GetString(root, "format_version", where));
  int major = -1;
  const auto [stop, error] =
      std::from_chars(version.data(), version.data() + version.size(), major);
  if (error != std::errc() || stop == version.data() + version.size() || *stop != '.') {
    return Unreadable(where, fmt::format("format_version '{}' is not MAJOR.MINOR", version));
  }
  if (major != kManifestMajor) {
    return Unreadable(
        where, fmt::format("format_version is {}, this build reads {}.x: use a {} build of Keel",
                           version, kManifestMajor, major > kManifestMajor ? "newer" : "older"));
  }
  return Status::Ok();
}

Result<Contents> ParseContents(const Json& root, std::string_view where) {
  if (!root.contains("contents") || !root.at("contents").is_array()) {
    return Unreadable(where, "'contents' is not a list");
  }
  Contents contents{false, false, false, false};
  for (const Json& entry : root.at("contents")) {
    // Compared as strings: the library's own comparison allocates, and may not throw.
    const std::string name = entry.is_string() ? entry.get<std::string>() : std::string();
    const std::optional<Content> part = ParseName<Content>(name);
    if (!part) return Unreadable(where, fmt::format("unknown content {}", entry.dump()));
    contents[*part] = true;
  }
  return contents;
}

Result<ManifestFile> ParseFile(const std::string& path, const Json& entry, std::string_view where) {
  ManifestFile file;
  file.path = path;
  KEEL_RETURN_IF_ERROR(CheckRelativePath(path, where));
  const std::string here = fmt::format("{}: file '{}'", where, path);
  KEEL_RETURN_IF_ERROR(CheckKeys(entry, {"role", "size", "digest"}, here));
  KEEL_ASSIGN_OR_RETURN(const std::string role, GetString(entry, "role", here));
  const auto found = std::find_if(std::begin(kRoleNames), std::end(kRoleNames),
                                  [&](const auto& one) { return one.second == role; });
  if (found == std::end(kRoleNames))
    return Unreadable(here, fmt::format("unknown role '{}'", role));
  file.role = found->first;
  KEEL_ASSIGN_OR_RETURN(file.size, GetSize(entry, "size", here));
  KEEL_ASSIGN_OR_RETURN(file.digest, GetDigest(entry, "digest", here));
  return file;
}

}  // namespace

std::string_view FileRoleName(FileRole role) {
  for (const auto& [value, name] : kRoleNames) {
    if (value == role) return name;
  }
  return "?";
}

const ManifestFile* Manifest::Find(std::string_view path) const {
  const auto found =
      std::lower_bound(files.begin(), files.end(), path,
                       [](const ManifestFile& f, std::string_view p) { return f.path < p; });
  return found != files.end() && found->path == path ? &*found : nullptr;
}

int64_t Manifest::TotalBytes() const {
  int64_t total = index_size;
  for (const ManifestFile& file : files) total += file.size;
  return total;
}

std::string Manifest::Serialize() const {
  Json root;
  root["format"] = kManifestFormat;
  root["format_version"] = fmt::format("{}.{}", kManifestMajor, kManifestMinor);
  root["run_id"] = run_id;
  root["save_id"] = save_id;
  root["sequence"] = sequence;
  root["step"] = step;
  root["created"] = created;
  root["config_digest"] = config_digest;
  root["layout"] = layout;
  root["roles"] = roles;
  root["contents"] = contents.Names();
  root["metric"] = metric ? Json(*metric) : Json(nullptr);
  root["chunk_bytes"] = chunk_bytes;
  root["index"] = {{"size", index_size}, {"digest", index_digest.ToHex()}};
  Json list = Json::object();
  // Not operator[], which looks through all keys: at 16,384 ranks that were 537 million
  // comparisons.
  auto& entries = list.get_ref<Json::object_t&>();
  entries.reserve(files.size());
  for (const ManifestFile& file : files) {
    entries.emplace_back(file.path, Json{{"role", FileRoleName(file.role)},
                                         {"size", file.size},
                                         {"digest", file.digest.ToHex()}});
  }
  root["files"] = std::move(list);
  std::string text = root.dump(2);  // "{ … \n}"
  text.resize(text.size() - 2);     // the line break and the brace
  text += ",\n";
  const Digest128 digest = Hash128(std::as_bytes(std::span(text)));
  text += kDigestLine;
  text += digest.ToHex();
  text += kEnd;
  return text;
}

std::string_view Manifest::OwnDigest(std::string_view text) {
  return text.size() < kTail ? std::string_view()
                             : text.substr(text.size() - kEnd.size() - kDigits, kDigits);
}

Result<Manifest> Manifest::Parse(std::string_view text, std::string_view where) {
  const auto damaged = [&](std::string_view what) {
    return Status(StatusCode::kDataLoss, fmt::format("{}: {}", where, what));
  };
  if (text.size() < kTail || !text.ends_with(kEnd) ||
      text.substr(text.size() - kTail, kDigestLine.size()) != kDigestLine) {
    return damaged("does not end with its own digest: cut off, or not written by Keel");
  }
  const std::string_view body = text.substr(0, text.size() - kTail);
  const std::string actual = Hash128(std::as_bytes(std::span(body))).ToHex();
  if (actual != OwnDigest(text)) {
    return damaged(
        fmt::format("its own digest is {}, its content gives {}", OwnDigest(text), actual));
  }

  JsonLimits limits;
  limits.max_bytes = kMaxManifestBytes;
  KEEL_ASSIGN_OR_RETURN(const Json root, ParseJson(text, where, limits));
  KEEL_RETURN_IF_ERROR(CheckVersion(root, where));
  KEEL_RETURN_IF_ERROR(CheckKeys(root,
                                 {"format", "format_version", "run_id", "save_id", "sequence",
                                  "step", "created", "config_digest", "layout", "roles", "contents",
                                  "metric", "chunk_bytes", "index", "files", "digest"},
                                 where));
  Manifest manifest;
  manifest.own_digest = OwnDigest(text);
  KEEL_ASSIGN_OR_RETURN(manifest.run_id, GetString(root, "run_id", where));
  KEEL_ASSIGN_OR_RETURN(manifest.save_id, GetString(root, "save_id", where));
  KEEL_ASSIGN_OR_RETURN(manifest.sequence, GetSize(root, "sequence", where));
  KEEL_ASSIGN_OR_RETURN(manifest.step, GetSize(root, "step", where));
  KEEL_ASSIGN_OR_RETURN(manifest.created, GetString(root, "created", where));
  KEEL_ASSIGN_OR_RETURN(manifest.config_digest, GetString(root, "config_digest", where));
  KEEL_ASSIGN_OR_RETURN(manifest.chunk_bytes, GetSize(root, "chunk_bytes", where));
  if (manifest.chunk_bytes == 0 || manifest.chunk_bytes > (int64_t{1} << 30)) {
    return Unreadable(where,
                      fmt::format("chunk_bytes is {}, expected 1 to 2^30", manifest.chunk_bytes));
  }
  if (!root.contains("layout")) return Unreadable(where, "'layout' is missing");
  manifest.layout = root.at("layout");
  if (!root.contains("roles") || !root.at("roles").is_array())
    return Unreadable(where, "'roles' is not a list");
  for (const Json& role : root.at("roles")) {
    if (!role.is_string()) return Unreadable(where, "a role is not a string");
    manifest.roles.push_back(role.get<std::string>());
  }
  KEEL_ASSIGN_OR_RETURN(manifest.contents, ParseContents(root, where));
  if (!root.contains("metric")) return Unreadable(where, "'metric' is missing");
  if (!root.at("metric").is_null()) {
    KEEL_ASSIGN_OR_RETURN(manifest.metric, GetDouble(root, "metric", where));
  }
  if (!root.contains("index") || !root.contains("files") || !root.at("files").is_object()) {
    return Unreadable(where, "'index' or 'files' is missing");
  }
  KEEL_RETURN_IF_ERROR(
      CheckKeys(root.at("index"), {"size", "digest"}, fmt::format("{}: index", where)));
  KEEL_ASSIGN_OR_RETURN(manifest.index_size, GetSize(root.at("index"), "size", where));
  KEEL_ASSIGN_OR_RETURN(manifest.index_digest, GetDigest(root.at("index"), "digest", where));
  int64_t total = manifest.index_size;
  for (const auto& [path, entry] : root.at("files").items()) {
    KEEL_ASSIGN_OR_RETURN(ManifestFile file, ParseFile(path, entry, where));
    if (file.size > kMaxNumber - total)
      return Unreadable(where, "its files are more than 2^62 bytes");
    total += file.size;
    manifest.files.push_back(std::move(file));
  }
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const ManifestFile& a, const ManifestFile& b) { return a.path < b.path; });
  return manifest;
}

Result<Manifest> ReadManifest(const FileSystem& fs, std::string_view directory) {
  KEEL_ASSIGN_OR_RETURN(const std::string text, ReadManifestText(fs, directory));
  return ParseManifest(fs, directory, text);
}

Result<std::string> ReadManifestText(const FileSystem& fs, std::string_view directory) {
  return ReadFile(fs, fmt::format("{}/{}", directory, kManifestName), kMaxManifestBytes);
}

Result<Manifest> ParseManifest(const FileSystem& fs, std::string_view directory,
                               std::string_view text) {
  const std::string path = fmt::format("{}/{}", directory, kManifestName);
  KEEL_ASSIGN_OR_RETURN(Manifest manifest, Manifest::Parse(text, fs.Describe(path)));
  const std::string_view name = directory.substr(directory.rfind('/') + 1);
  if (const std::optional<int64_t> step = ParseStepDirectory(name);
      step && *step != manifest.step) {
    return Unreadable(
        fs.Describe(path),
        fmt::format("is the manifest of step {}, and its directory has the name of step {}: rename "
                    "it back to {}, or move it away where it is a copy",
                    manifest.step, *step, StepDirectory(manifest.step)));
  }
  return manifest;
}

}  // namespace keel::checkpoint
