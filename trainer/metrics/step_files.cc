#include "trainer/metrics/step_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <system_error>

#include "common/guarded.h"
#include "common/json.h"
#include "common/status.h"

namespace keel::trainer {

namespace {

namespace fs = std::filesystem;

using Files = std::map<int64_t, fs::path>;  // by step

constexpr const char* kRewind = "rewind.json";  // in earlier.<n>: which start it is of

// Files <step>.jsonl.
Files FilesIn(const fs::path& folder) {
  Files found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    int64_t step = -1;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), step);
    if (step >= 0 && std::string_view(parsed.ptr) == ".jsonl") found[step] = at->path();
  }
  return found;
}

fs::path Earlier(const fs::path& folder, int n) { return folder / fmt::format("earlier.{}", n); }

// The newest commit of the run when its start set these files aside; nothing where it does not say.
std::optional<int64_t> SequenceOf(const fs::path& earlier) {
  std::ifstream file(earlier / kRewind);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const Result<Json> json = ParseJson(text, kRewind);
  if (!json.ok()) return std::nullopt;
  const Result<int64_t> sequence = GetInt(*json, "sequence", kRewind);
  return sequence.ok() ? std::optional(*sequence) : std::nullopt;
}

// The files that a run that begins so stands on.
Files FilesOf(const fs::path& folder, const RunStart& start, int64_t first_step, int newest) {
  if (start.elsewhere) return {};
  Files files = FilesIn(folder);
  for (int n = newest; n > 0 && start.step > 0; --n) {
    const Files back = FilesIn(Earlier(folder, n));
    if (back.empty()) continue;  // as of a start that was killed before it moved anything
    const std::optional<int64_t> sequence = SequenceOf(Earlier(folder, n));
    if (!sequence || start.StandsOn(*sequence)) break;
    files.erase(files.lower_bound(back.begin()->first), files.end());
    files.insert(back.begin(), back.end());
  }
  files.erase(files.lower_bound(first_step), files.end());
  return files;
}

Status Arrange(const std::string& key, const fs::path& folder, const RunStart& start,
               int64_t first_step, Logger& log) {
  int newest = 0;
  while (fs::exists(Earlier(folder, newest + 1))) ++newest;
  const Files there = FilesIn(folder);
  const Files wanted = FilesOf(folder, start, first_step, newest);
  const auto is_wanted = [&](const auto& file) {
    const auto found = wanted.find(file.first);
    return found != wanted.end() && found->second == file.second;
  };
  const auto others = std::ranges::count_if(there, std::not_fn(is_wanted));
  if (others > 0) {
    const fs::path aside = Earlier(folder, newest + 1);
    fs::create_directory(aside);
    // Without it what is moved would never come back.
    std::ofstream rewind(aside / kRewind);
    rewind << Json{{"sequence", start.newest_sequence}}.dump() << "\n";
    rewind.close();
    if (!rewind) return Status::FromErrno(errno, "write", (aside / kRewind).string());
    for (const auto& file : there)
      if (!is_wanted(file)) fs::rename(file.second, aside / file.second.filename());
    log.Info("{}: {} files of steps that are done anew are now in {}", key, others, aside.string());
  }
  int64_t back = 0;
  for (const auto& [step, path] : wanted) {
    const fs::path here = folder / path.filename();
    if (fs::exists(here)) continue;
    std::error_code error;
    fs::create_hard_link(path, here, error);
    if (error) fs::copy_file(path, here);
    ++back;
  }
  if (back > 0)
    log.Info("{}: {} files up to step {} are back: an earlier start had set them aside", key, back,
             start.step);
  return Status::Ok();
}

}  // namespace

void KeepStepFilesOf(const std::string& key, const std::string& folder, const RunStart& start,
                     int64_t first_step, Logger& log) {
  const Status arranged = Guarded([&] { return Arrange(key, folder, start, first_step, log); });
  if (arranged.ok()) return;
  log.Warning(
      "{}: files of an earlier run could not be set aside, and stand beside those of this "
      "one: {}",
      key, arranged.message());
}

bool SameFolder(const std::optional<std::string>& a, const std::optional<std::string>& b) {
  std::error_code ignored;
  return a && b && fs::equivalent(*a, *b, ignored);
}

}  // namespace keel::trainer
