#include "tools/eval/eval_folder.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

#include "common/text.h"

namespace keel::tools {

namespace {

constexpr const char* kSettings = "settings.json";
constexpr const char* kLock = "eval.lock";
constexpr const char* kWhole = "samples.jsonl";
constexpr const char* kSummary = "summary.json";
constexpr std::string_view kPart = "samples.part-";
constexpr size_t kMostShown = 80;  // bytes of a setting, in a message
constexpr int64_t kMostBytes = int64_t{1} << 40;

std::string Text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// A file of all samples of the index, in order.
Status WriteLines(FileSystem& files, const std::string& name, const SampleLines& samples) {
  KEEL_ASSIGN_OR_RETURN(LinesFile out, LinesFile::Create(files, name));
  KEEL_RETURN_IF_ERROR(samples.ForEach([&](const std::string& line) { return out.Add(line); }));
  return out.Finish();
}

// Of `there` and `here`, both objects, all members that differ, by name.
void Compare(const std::string& above, const Json& there, const Json& here,
             std::vector<std::string>* differ) {
  Json names = there;
  names.update(here);
  for (const auto& [name, value] : names.items()) {
    const Json found = there.contains(name) ? there[name] : Json();
    const Json wanted = here.contains(name) ? here[name] : Json();
    if (found == wanted) continue;
    // Keys of the configuration have their section's name already.
    const std::string whole =
        above.empty() || name.starts_with(above + ".") ? name : above + "." + name;
    if (found.is_object() && wanted.is_object()) {
      Compare(whole, found, wanted, differ);
      continue;
    }
    const std::string one = Printable(Text(found), kMostShown);
    const std::string other = Printable(Text(wanted), kMostShown);
    differ->push_back(one == other ? fmt::format("{} differs behind {}", whole, one)
                                   : fmt::format("{} is {} there and {} here", whole, one, other));
  }
}

bool IsPart(std::string_view name) { return name.starts_with(kPart) && name.ends_with(".jsonl"); }

}  // namespace

EvalFolder::EvalFolder(std::unique_ptr<FileSystem> files, int replica)
    : files_(std::move(files)), own_(fmt::format("{}{}.jsonl", kPart, replica)), done_(*files_) {}

Result<EvalFolder> EvalFolder::Open(const std::string& path, const Json& settings, int replica) {
  auto files = OpenPosixFileSystem(path, true);
  if (!files.ok()) return files.status().WithContext("--output");
  EvalFolder folder(*std::move(files), replica);
  KEEL_RETURN_IF_ERROR(folder.TakeSettings(settings, replica));
  KEEL_RETURN_IF_ERROR(folder.ReadAll());
  return folder;
}

Status EvalFolder::TakeSettings(const Json& settings, int replica) {
  if (replica != 0) {
    KEEL_RETURN_IF_ERROR(ReadFile(*files_, kSettings, kMostBytes).status());
    return CheckSettings(settings).status();
  }
  // A folder that is refused is left as it is. Who works in one makes the lock's file first, so
  // that where there is none after the look nobody has changed what was seen.
  const Status refused = CheckSettings(settings).status();
  if (!refused.ok() && files_->Stat(kLock).status().code() == StatusCode::kNotFound) return refused;
  auto lock = files_->Lock(kLock, "keel eval");
  if (!lock.ok()) {
    return {lock.status().code(), fmt::format("--output {}: another keel eval writes there: {}",
                                              files_->Describe(""), lock.status().message())};
  }
  lock_ = *std::move(lock);
  KEEL_ASSIGN_OR_RETURN(const bool there, CheckSettings(settings));
  if (there) return Status::Ok();
  return ReplaceFileDurably(*files_, kSettings, Text(settings, 1) + "\n");
}

Result<bool> EvalFolder::CheckSettings(const Json& settings) const {
  const auto text = ReadFile(*files_, kSettings, kMostBytes);
  if (text.status().code() == StatusCode::kNotFound) {
    KEEL_ASSIGN_OR_RETURN(const auto entries, files_->List(""));
    for (const FileInfo& entry : entries) {
      // The second is of who was killed while he wrote it.
      if (entry.name == kLock || entry.name == ReplacementOf(kSettings)) continue;
      return Status(
          StatusCode::kConfig,
          fmt::format("--output {}: the folder has {} and no {}: it is no evaluation's; name "
                      "another, or an empty one",
                      files_->Describe(""), Printable(entry.name, 80), kSettings));
    }
    return false;
  }
  KEEL_RETURN_IF_ERROR(text.status());
  KEEL_ASSIGN_OR_RETURN(const Json there, ParseJson(*text, files_->Describe(kSettings)));
  if (!there.is_object()) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: expected an object", files_->Describe(kSettings)));
  }
  std::vector<std::string> differ;
  Compare("", there, settings, &differ);
  if (differ.empty()) return true;
  return Status(
      StatusCode::kConfig,
      fmt::format("--output {}: the folder holds an evaluation of another configuration: {}; "
                  "name another folder, or remove this one",
                  files_->Describe(""), fmt::join(differ, "; ")));
}

Status EvalFolder::ReadAll() {
  done_ = SampleLines(*files_);
  KEEL_ASSIGN_OR_RETURN(const auto entries, files_->List(""));
  for (const FileInfo& entry : entries) {
    if (entry.name != kWhole && !IsPart(entry.name)) continue;
    bool whole = true;
    if (entry.name == own_) {
      // What is appended must begin a line.
      SampleLines own(*files_);
      KEEL_RETURN_IF_ERROR(own.Add(own_, &whole));
      if (!whole) KEEL_RETURN_IF_ERROR(WriteLines(*files_, own_, own));
    }
    KEEL_RETURN_IF_ERROR(done_.Add(entry.name, &whole));
  }
  return Status::Ok();
}

Status EvalFolder::Append(const Json& sample) { return files_->Append(own_, Text(sample) + "\n"); }

Status EvalFolder::Gather(int64_t n, int64_t rows) {
  KEEL_RETURN_IF_ERROR(ReadAll());
  for (int64_t row = 0; row < rows; ++row) {
    for (int sample = 0; sample < n; ++sample) {
      if (done_.Has(row, sample)) continue;
      return Status(StatusCode::kDataLoss,
                    fmt::format("--output {}: sample {} of row {} is not there: all ranks must "
                                "write to the same folder; the same command goes on with it",
                                files_->Describe(""), sample, row));
    }
  }
  return Status::Ok();
}

Status EvalFolder::Finish(const Json& summary) {
  KEEL_RETURN_IF_ERROR(WriteLines(*files_, kWhole, done_));
  KEEL_RETURN_IF_ERROR(ReplaceFileDurably(*files_, kSummary, Text(summary, 1) + "\n"));
  KEEL_ASSIGN_OR_RETURN(const auto entries, files_->List(""));
  for (const FileInfo& entry : entries)
    if (IsPart(entry.name)) KEEL_RETURN_IF_ERROR(files_->Remove(entry.name));
  return Status::Ok();
}

}  // namespace keel::tools
