#include "tools/eval/sample_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <tuple>
#include <utility>

namespace keel::tools {

namespace {

constexpr size_t kBuffer = size_t{1} << 20;

std::string TemporaryOf(const std::string& name) { return name + ".tmp"; }

Status Read(const File& file, const std::string& name, int64_t begin, std::string* text) {
  for (size_t done = 0; done < text->size();) {
    KEEL_ASSIGN_OR_RETURN(
        const int64_t got,
        file.ReadAt(begin + static_cast<int64_t>(done),
                    std::as_writable_bytes(std::span(text->data() + done, text->size() - done))));
    if (got == 0) {
      return Status(StatusCode::kInvalidData,
                    fmt::format("{} has become shorter while it was read", name));
    }
    done += static_cast<size_t>(got);
  }
  return Status::Ok();
}

}  // namespace

Status SampleLines::Add(const std::string& name, bool* whole) {
  *whole = true;
  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_->Open(name));
  KEEL_ASSIGN_OR_RETURN(const int64_t end, file->Size());
  const int number = static_cast<int>(names_.size());
  names_.push_back(name);
  std::string held, more;
  int64_t begin = 0;  // of `held` in the file
  for (int64_t at = 0; at < end;) {
    more.resize(static_cast<size_t>(std::min<int64_t>(end - at, kBuffer)));
    KEEL_RETURN_IF_ERROR(Read(*file, files_->Describe(name), at, &more));
    at += std::ssize(more);
    size_t searched = held.size();
    held += more;
    size_t line_begin = 0;
    for (size_t line_end = 0; (line_end = held.find('\n', searched)) != std::string::npos;
         line_begin = searched = line_end + 1) {
      const auto line =
          ParseJson(std::string_view(held).substr(line_begin, line_end - line_begin), name);
      // A machine that went down may have left a hole; the sample is made again.
      const bool good = line.ok() && line->is_object() && line->contains("row") &&
                        line->contains("sample") && (*line)["row"].is_number_integer() &&
                        (*line)["sample"].is_number_integer();
      if (!good) {
        *whole = false;
        continue;
      }
      lines_.push_back({(*line)["row"].get<int64_t>(), (*line)["sample"].get<int>(), number,
                        line->contains("error"), begin + static_cast<int64_t>(line_begin),
                        static_cast<int64_t>(line_end - line_begin)});
    }
    held.erase(0, line_begin);
    begin += static_cast<int64_t>(line_begin);
  }
  if (!held.empty()) *whole = false;
  Sort();
  return Status::Ok();
}

void SampleLines::Sort() {
  const auto key = [](const Line& line) { return std::pair(line.row, line.sample); };
  std::stable_sort(lines_.begin(), lines_.end(), [&](const Line& a, const Line& b) {
    return std::pair(key(a), !a.failed) < std::pair(key(b), !b.failed);
  });
  // The last of equal ones stays.
  const auto first = std::unique(lines_.rbegin(), lines_.rend(),
                                 [&](const Line& a, const Line& b) { return key(a) == key(b); });
  lines_.erase(lines_.begin(), first.base());
}

const SampleLines::Line* SampleLines::Find(int64_t row, int sample) const {
  const auto found = std::lower_bound(lines_.begin(), lines_.end(), std::pair(row, sample),
                                      [](const Line& line, const std::pair<int64_t, int>& wanted) {
                                        return std::pair(line.row, line.sample) < wanted;
                                      });
  return found != lines_.end() && found->row == row && found->sample == sample ? &*found : nullptr;
}

bool SampleLines::HasScore(int64_t row, int sample) const {
  const Line* line = Find(row, sample);
  return line != nullptr && !line->failed;
}

int64_t SampleLines::without_score() const {
  return std::count_if(lines_.begin(), lines_.end(), [](const Line& line) { return line.failed; });
}

Status SampleLines::ForEach(const std::function<Status(const std::string& line)>& take) const {
  std::vector<std::unique_ptr<File>> open(names_.size());
  std::string text;
  for (const Line& line : lines_) {
    const auto number = static_cast<size_t>(line.file);
    if (open[number] == nullptr) {
      KEEL_ASSIGN_OR_RETURN(open[number], files_->Open(names_[number]));
    }
    text.resize(static_cast<size_t>(line.size));
    KEEL_RETURN_IF_ERROR(Read(*open[number], files_->Describe(names_[number]), line.begin, &text));
    KEEL_RETURN_IF_ERROR(take(text));
  }
  return Status::Ok();
}

Status SampleLines::ForEachSample(
    const std::function<Status(int64_t row, int sample, const Json& line)>& take) const {
  size_t next = 0;
  return ForEach([&](const std::string& text) -> Status {
    const Line& line = lines_[next++];
    const std::string& name = names_[static_cast<size_t>(line.file)];
    KEEL_ASSIGN_OR_RETURN(const Json sample, ParseJson(text, files_->Describe(name)));
    return take(line.row, line.sample, sample);
  });
}

Result<LinesFile> LinesFile::Create(FileSystem& files, const std::string& name) {
  const std::string temporary = TemporaryOf(name);
  // What a crash has left.
  if (const Status removed = files.Remove(temporary);
      !removed.ok() && removed.code() != StatusCode::kNotFound)
    return removed;
  KEEL_ASSIGN_OR_RETURN(auto file, files.Create(temporary, {}));
  return LinesFile(files, name, std::move(file));
}

Status LinesFile::Add(std::string_view line) {
  waiting_.append(line).push_back('\n');
  return waiting_.size() < kBuffer ? Status::Ok() : Flush();
}

Status LinesFile::Flush() {
  KEEL_RETURN_IF_ERROR(file_->WriteAt(written_, std::as_bytes(std::span(waiting_))));
  written_ += std::ssize(waiting_);
  waiting_.clear();
  return Status::Ok();
}

Status LinesFile::Finish() {
  KEEL_RETURN_IF_ERROR(Flush());
  KEEL_RETURN_IF_ERROR(file_->Sync());
  KEEL_RETURN_IF_ERROR(file_->Close());
  KEEL_RETURN_IF_ERROR(files_->Rename(TemporaryOf(name_), name_, FileSystem::RenameMode::kReplace));
  return files_->SyncDirectory(".");
}

}  // namespace keel::tools
