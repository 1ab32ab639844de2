#include "tools/eval/eval_folder.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/text.h"

namespace keel::tools {

namespace {

constexpr const char* kSettings = "settings.json";
constexpr const char* kLock = "eval.lock";
constexpr const char* kWhole = "samples.jsonl";
constexpr const char* kSummary = "summary.json";
constexpr std::string_view kPart = "samples.part-";
constexpr int64_t kMostBytes = int64_t{1} << 40;

std::string Text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string LinesOf(const std::map<EvalFolder::Key, Json>& samples) {
  std::string text;
  for (const auto& [key, sample] : samples) text += Text(sample) + "\n";
  return text;
}

bool IsPart(std::string_view name) { return name.starts_with(kPart) && name.ends_with(".jsonl"); }

}  // namespace

EvalFolder::EvalFolder(std::unique_ptr<FileSystem> files, int replica)
    : files_(std::move(files)), own_(fmt::format("{}{}.jsonl", kPart, replica)) {}

Result<EvalFolder> EvalFolder::Open(const std::string& path, const Json& settings, int replica) {
  auto files = OpenPosixFileSystem(path, true);
  if (!files.ok()) return files.status().WithContext("--output");
  EvalFolder folder(*std::move(files), replica);
  KEEL_RETURN_IF_ERROR(folder.TakeSettings(settings, replica));
  KEEL_RETURN_IF_ERROR(folder.ReadAll());
  return folder;
}

Status EvalFolder::TakeSettings(const Json& settings, int replica) {
  if (replica == 0) {
    auto lock = files_->Lock(kLock, "keel eval");
    if (!lock.ok()) {
      return {lock.status().code(), fmt::format("--output {}: another keel eval writes there: {}",
                                                files_->Describe(""), lock.status().message())};
    }
    lock_ = *std::move(lock);
  }
  const auto text = ReadFile(*files_, kSettings, kMostBytes);
  if (text.status().code() == StatusCode::kNotFound) {
    if (replica != 0) return text.status();
    KEEL_ASSIGN_OR_RETURN(const auto entries, files_->List(""));
    for (const FileInfo& entry : entries) {
      if (entry.name == kLock) continue;
      return {StatusCode::kConfig,
              fmt::format("--output {}: the folder has {} and no {}: it is no evaluation's; name "
                          "another, or an empty one",
                          files_->Describe(""), Printable(entry.name, 80), kSettings)};
    }
    return ReplaceFileDurably(*files_, kSettings, Text(settings, 1) + "\n");
  }
  KEEL_RETURN_IF_ERROR(text.status());
  KEEL_ASSIGN_OR_RETURN(const Json there, ParseJson(*text, files_->Describe(kSettings)));
  if (!there.is_object()) {
    return {StatusCode::kInvalidData,
            fmt::format("{}: expected an object", files_->Describe(kSettings))};
  }
  std::vector<std::string> differ;
  for (const auto& [name, value] : settings.items()) {
    const Json found = there.contains(name) ? there[name] : Json();
    if (found != value) {
      differ.push_back(fmt::format("{} is {} there and {} here", name, Printable(Text(found), 80),
                                   Printable(Text(value), 80)));
    }
  }
  if (differ.empty()) return Status::Ok();
  return {StatusCode::kConfig,
          fmt::format("--output {}: the folder holds an evaluation of another configuration: {}; "
                      "name another folder, or remove this one",
                      files_->Describe(""), fmt::join(differ, "; "))};
}

Status EvalFolder::ReadLines(const std::string& name, bool* whole) {
  KEEL_ASSIGN_OR_RETURN(const std::string text, ReadFile(*files_, name, kMostBytes));
  *whole = true;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      *whole = false;
      break;
    }
    const auto line = ParseJson(std::string_view(text).substr(begin, end - begin), name);
    begin = end + 1;
    // A machine that went down may have left a hole; the sample is made again.
    const bool good = line.ok() && line->is_object() && line->contains("row") &&
                      line->contains("sample") && (*line)["row"].is_number_integer() &&
                      (*line)["sample"].is_number_integer();
    if (!good) {
      *whole = false;
      continue;
    }
    done_[{(*line)["row"].get<int64_t>(), (*line)["sample"].get<int>()}] = *line;
  }
  return Status::Ok();
}

Status EvalFolder::ReadAll() {
  done_.clear();
  KEEL_ASSIGN_OR_RETURN(const auto entries, files_->List(""));
  bool own_whole = true;
  for (const FileInfo& entry : entries) {
    if (entry.name != kWhole && !IsPart(entry.name)) continue;
    bool whole = true;
    KEEL_RETURN_IF_ERROR(ReadLines(entry.name, &whole));
    if (entry.name == own_) own_whole = whole;
  }
  if (own_whole) return Status::Ok();
  // What is appended must begin a line.
  const std::map<Key, Json> all = std::exchange(done_, {});
  bool whole = true;
  KEEL_RETURN_IF_ERROR(ReadLines(own_, &whole));
  KEEL_RETURN_IF_ERROR(ReplaceFileDurably(*files_, own_, LinesOf(done_)));
  done_ = all;
  return Status::Ok();
}

Status EvalFolder::Append(const Json& sample) { return files_->Append(own_, Text(sample) + "\n"); }

Result<std::map<EvalFolder::Key, Json>> EvalFolder::Gather(int64_t n,
                                                           const std::vector<int64_t>& rows) {
  KEEL_RETURN_IF_ERROR(ReadAll());
  for (const int64_t row : rows) {
    for (int sample = 0; sample < n; ++sample) {
      if (done_.contains({row, sample})) continue;
      return Status(StatusCode::kDataLoss,
                    fmt::format("--output {}: sample {} of row {} is not there: all ranks must "
                                "write to the same folder; the same command goes on with it",
                                files_->Describe(""), sample, row));
    }
  }
  return done_;
}

Status EvalFolder::Finish(const std::map<Key, Json>& samples, const Json& summary) {
  KEEL_RETURN_IF_ERROR(ReplaceFileDurably(*files_, kWhole, LinesOf(samples)));
  KEEL_RETURN_IF_ERROR(ReplaceFileDurably(*files_, kSummary, Text(summary, 1) + "\n"));
  KEEL_ASSIGN_OR_RETURN(const auto entries, files_->List(""));
  for (const FileInfo& entry : entries)
    if (IsPart(entry.name)) KEEL_RETURN_IF_ERROR(files_->Remove(entry.name));
  return Status::Ok();
}

}  // namespace keel::tools
