#include "checkpoint/format/names.h"

#include <fmt/format.h>

#include <charconv>
#include <set>

#include "common/hash.h"
#include "common/text.h"

namespace keel::checkpoint {
namespace {

constexpr std::string_view kStepPrefix = "global_step_";
constexpr size_t kRandomDigits = 16;
constexpr size_t kProofDigits = 8;

std::optional<int64_t> ParseNumber(std::string_view text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < 0) return std::nullopt;
  if (text.size() > 1 && text.front() == '0') return std::nullopt;
  return value;
}

std::string_view Prefix(ScratchKind kind) {
  switch (kind) {
    case ScratchKind::kTemporary:
      return ".tmp-";
    case ScratchKind::kReplaced:
      return ".old-";
    case ScratchKind::kTrash:
      return ".trash-";
  }
  return "";
}

std::string Proof(std::string_view random_digits) {
  return fmt::format("{:08x}", Hash64(random_digits, 0x6b65656c) & 0xffffffffu);
}

}  // namespace

std::string StepDirectory(int64_t step) { return fmt::format("{}{}", kStepPrefix, step); }

std::optional<int64_t> ParseStepDirectory(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  return ParseNumber(name.substr(kStepPrefix.size()));
}

std::string ScratchDirectory(ScratchKind kind, int64_t step, std::string_view save_id) {
  return fmt::format("{}{}-{}", Prefix(kind), step, save_id);
}

std::string SetAsideDirectory(int64_t step, std::string_view save_id) {
  return fmt::format("{}.set-aside-{}", StepDirectory(step), save_id);
}

bool IsSetAside(std::string_view name) {
  const size_t dot = name.find('.');
  return dot != std::string_view::npos && ParseStepDirectory(name.substr(0, dot)) &&
         name.substr(dot).starts_with(".set-aside-");
}

std::optional<Scratch> ParseScratchDirectory(std::string_view name) {
  for (const ScratchKind kind :
       {ScratchKind::kTemporary, ScratchKind::kReplaced, ScratchKind::kTrash}) {
    if (!name.starts_with(Prefix(kind))) continue;
    const std::string_view rest = name.substr(Prefix(kind).size());
    const size_t dash = rest.find('-');
    if (dash == std::string_view::npos) return std::nullopt;
    const std::optional<int64_t> step = ParseNumber(rest.substr(0, dash));
    const std::string_view id = rest.substr(dash + 1);
    if (!step || !IsSaveId(id)) return std::nullopt;
    return Scratch{kind, *step, std::string(id)};
  }
  return std::nullopt;
}

std::string MakeSaveId(uint64_t random) {
  const std::string digits = fmt::format("{:016x}", random);
  return digits + Proof(digits);
}

bool IsSaveId(std::string_view text) {
  return text.size() == kRandomDigits + kProofDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos &&
         text.substr(kRandomDigits) == Proof(text.substr(0, kRandomDigits));
}

std::string ShardFileName(std::string_view scope, int rank, int part) {
  if (part == 0) return fmt::format("{}/rank_{:05d}.safetensors", scope, rank);
  return fmt::format("{}/rank_{:05d}_{}.safetensors", scope, rank, part);
}

std::vector<std::string> DirectoriesOf(std::span<const std::string> paths) {
  std::set<std::string> directories;
  for (const std::string_view path : paths) {
    for (size_t slash = path.find('/'); slash != std::string_view::npos;
         slash = path.find('/', slash + 1)) {
      directories.emplace(path.substr(0, slash));
    }
  }
  return {directories.begin(), directories.end()};
}

Status CheckRelativePath(std::string_view path, std::string_view what) {
  const auto refuse = [&](std::string_view why) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: '{}' is not a relative path of plain names: {}", what,
                              Printable(path), why));
  };
  if (path.empty() || path.size() > 1024) return refuse("empty or longer than 1024 bytes");
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == '\\' || c == 0x7f)
      return refuse("control character or backslash");
  }
  for (size_t start = 0; start <= path.size();) {
    const size_t slash = std::min(path.find('/', start), path.size());
    const std::string_view part = path.substr(start, slash - start);
    if (part.empty() || part == "." || part == "..") return refuse("empty, '.' or '..' component");
    start = slash + 1;
  }
  return Status::Ok();
}

}  // namespace keel::checkpoint
