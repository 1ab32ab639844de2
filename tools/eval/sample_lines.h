// SampleLines: where the samples of an evaluation stand in its files: an index of lines, found by
// row and sample. It holds 40 bytes a sample, and none of their text. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/files/file_system.h"
#include "common/json.h"
#include "common/status.h"

namespace keel::tools {

class SampleLines {
 public:
  // `files` must outlive this.
  explicit SampleLines(const FileSystem& files) : files_(&files) {}

  // Adds the whole lines of a file that are samples; of a sample that comes again the last line
  // with a score counts, else the last. `whole`: there is nothing else in it, such as a line that
  // was cut off.
  Status Add(const std::string& name, bool* whole);

  int64_t size() const { return std::ssize(lines_); }
  bool Has(int64_t row, int sample) const { return Find(row, sample) != nullptr; }
  // Whether its line has a score, and no error of the reward's.
  bool HasScore(int64_t row, int sample) const;
  int64_t without_score() const;
  // Calls `take` with each line, by row and sample; without its end. kInvalidData names the file
  // whose line is not what it was.
  Status ForEach(const std::function<Status(const std::string& line)>& take) const;
  // The same, parsed.
  Status ForEachSample(
      const std::function<Status(int64_t row, int sample, const Json& line)>& take) const;

 private:
  struct Line {
    int64_t row;
    int sample;
    int file;  // of names_
    bool failed;
    int64_t begin, size;
  };
  const Line* Find(int64_t row, int sample) const;
  void Sort();

  const FileSystem* files_;
  std::vector<std::string> names_;
  std::vector<Line> lines_;  // sorted
};

// Where lines go to, one behind the other: the new content of a file, which appears with Finish, on
// the disk, or not at all.
class LinesFile {
 public:
  static Result<LinesFile> Create(FileSystem& files, const std::string& name);
  Status Add(std::string_view line);
  Status Finish();

 private:
  LinesFile(FileSystem& files, std::string name, std::unique_ptr<File> file)
      : files_(&files), name_(std::move(name)), file_(std::move(file)) {}
  Status Flush();

  FileSystem* files_;
  std::string name_;
  std::unique_ptr<File> file_;
  std::string waiting_;
  int64_t written_ = 0;
};

}  // namespace keel::tools
