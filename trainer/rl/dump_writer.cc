#include "trainer/rl/dump_writer.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <system_error>
#include <vector>

namespace keel::trainer::rl {

namespace {

namespace fs = std::filesystem;

// Files <step>.jsonl of `first` and later steps.
std::vector<fs::path> FilesFrom(const std::string& folder, int64_t first) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    int64_t step = -1;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), step);
    if (step >= first && std::string_view(parsed.ptr) == ".jsonl") found.push_back(at->path());
  }
  return found;
}

}  // namespace

void DumpWriter::Begin(int64_t first_step) {
  if (!folder_) return;
  const std::vector<fs::path> old = FilesFrom(*folder_, first_step);
  if (old.empty()) return;
  const fs::path folder(*folder_);
  std::error_code error;
  fs::path aside;
  for (int n = 1; aside.empty() && !error; ++n) {
    const fs::path free = folder / fmt::format("earlier.{}", n);
    if (fs::create_directory(free, error)) aside = free;
  }
  for (const fs::path& file : old)
    if (!error) fs::rename(file, aside / file.filename(), error);
  if (error) {
    log_.Warning(
        "{}: responses of an earlier run could not be set aside, and stand beside those of this "
        "one: {}",
        key_, error.message());
    return;
  }
  log_.Info("{}: {} files of steps that are done anew are now in {}", key_, old.size(),
            aside.string());
}

void DumpWriter::Write(int64_t step, const RolloutBatch& batch) {
  if (!folder_) return;
  ++files_;
  const Status written = WriteDump(fmt::format("{}/{}.jsonl", *folder_, step), batch);
  if (written.ok()) return;
  ++lost_;
  log_.Warning("{}: the responses of step {} are lost, {} of {} files so far: {}", key_, step,
               lost_, files_, written.message());
}

}  // namespace keel::trainer::rl
