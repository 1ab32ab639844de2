#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <ostream>

#include "checkpoint/catalog.h"
#include "checkpoint/tracker.h"
#include "common/clock.h"
#include "tools/ckpt/ckpt_commands.h"
#include "tools/ckpt/ckpt_paths.h"

namespace keel::tools {
namespace {

// "3 min", "2 d"; "?" when the manifest's time is not one.
std::string Age(const std::string& created) {
  std::tm time{};
  if (strptime(created.c_str(), "%Y-%m-%dT%H:%M:%SZ", &time) == nullptr) return "?";
  const auto now = std::chrono::system_clock::to_time_t(SystemClock().Wall());
  const int64_t seconds = std::max<int64_t>(0, now - timegm(&time));
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 7200) return fmt::format("{} min", seconds / 60);
  if (seconds < 172800) return fmt::format("{} h", seconds / 3600);
  return fmt::format("{} d", seconds / 86400);
}

std::string LayoutText(const Json& layout) {
  if (!layout.is_object()) return "-";
  std::string text;
  for (const auto& [key, value] : layout.items()) {
    if (!value.is_number()) continue;
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", key, value.dump());
  }
  return text.empty() ? "-" : text;
}

}  // namespace

int CkptLs(const CkptLsOptions& options, std::ostream& out, std::ostream& err) {
  const auto fs = OpenPosixFileSystem(options.directory, false);
  if (!fs.ok()) return Fail(fs.status(), err);
  const auto entries = checkpoint::ListCheckpoints(**fs);
  if (!entries.ok()) return Fail(entries.status(), err);
  if (options.json) {
    Json list = Json::array();
    for (const checkpoint::CatalogEntry& entry : *entries) {
      Json one = {{"directory", entry.directory},
                  {"step", entry.step},
                  {"valid_manifest", entry.manifest.has_value()}};
      if (entry.manifest) {
        one["bytes"] = entry.manifest->TotalBytes();
        one["layout"] = entry.manifest->layout;
        one["contents"] = entry.manifest->contents.Names();
        one["created"] = entry.manifest->created;
        one["sequence"] = entry.manifest->sequence;
      } else {
        one["reason"] = entry.status.message();
      }
      list.push_back(std::move(one));
    }
    out << list.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
    return 0;
  }
  if (entries->empty()) {
    out << "no checkpoints in " << options.directory << "\n";
    return 0;
  }
  out << fmt::format("{:<20} {:>10}  {:<16} {:<28} {:>8}\n", "STEP", "SIZE", "LAYOUT", "CONTENTS",
                     "AGE");
  for (const checkpoint::CatalogEntry& entry : *entries) {
    if (!entry.manifest) {
      out << fmt::format("{:<20} not a valid checkpoint: {}\n", entry.directory,
                         entry.status.message());
      continue;
    }
    const checkpoint::Manifest& manifest = *entry.manifest;
    out << fmt::format("{:<20} {:>10}  {:<16} {:<28} {:>8}\n", entry.directory,
                       HumanBytes(manifest.TotalBytes()), LayoutText(manifest.layout),
                       fmt::format("{}", fmt::join(manifest.contents.Names(), ",")),
                       Age(manifest.created));
  }
  return 0;
}

}  // namespace keel::tools
