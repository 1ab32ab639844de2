// RowOutput: a file of results, a line a row, in the order of the rows whichever is done first.
//
// Lines are there to be read as soon as they and all before them are done, under a temporary name,
// `<path>.partial`, which nobody else writes meanwhile; what stood at `path` before stays until all
// are. What is no regular file, or was opened by the shell (- or /dev/stdout, /dev/fd/N, a pipe),
// is written as it is. Used from one thread.
#pragma once

#include <cstddef>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "common/progress.h"
#include "common/status.h"

namespace keel::tools {

// A file as the command line names it: "--output", "out.jsonl".
struct NamedFile {
  std::string flag;
  std::string path;  // "": there is none
};

// kUsage when `written` would take the place of `other`, which is read or written, too.
Status CheckApart(const NamedFile& written, const NamedFile& other);

class RowOutput {
 public:
  // `flag` is named in errors: "--output". kCannotCreate when the file cannot be written.
  static Result<RowOutput> Open(const std::string& flag, const std::string& path);

  // The line of row `row`, from 0, without a line break; each row once.
  Status Put(size_t row, std::string line);
  // Instead of rows: the next bytes of a file that is no text.
  Status PutBytes(std::span<const std::byte> bytes);
  // All rows were put: the file takes its name, and is on the disk.
  Status Finish();
  // Instead, after an error: removes the temporary file, for who has no use for a part.
  void Discard() const;
  // For whoever ends before: where the rows are that are done.
  const std::string& written_to() const { return temporary_; }
  // Says whether rows go where a person or a program reads along; what else is said goes to stderr
  // then.
  bool streams() const { return path_ == temporary_; }
  // A bar of `total` rows to be written, which would be in the way of rows that come out beside it.
  Progress::Options Bar(std::string what, int64_t total) const {
    return {std::move(what),    total,         Progress::Unit::kCount, "rows",
            streams() ? -1 : 2, &SystemClock()};
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  RowOutput(std::string flag, std::string path, std::string temporary, std::FILE* file)
      : flag_(std::move(flag)),
        path_(std::move(path)),
        temporary_(std::move(temporary)),
        file_(file) {}
  Status Failed(const char* operation) const;

  std::string flag_, path_, temporary_;  // the last two are the same of what is written as it is
  std::unique_ptr<std::FILE, Close> file_;
  size_t next_ = 0;
  std::map<size_t, std::string> waiting_;  // rows that are done before an earlier one
};

}  // namespace keel::tools
