// RowOutput: a file of results, a line a row, in the order of the rows whichever is done first.
//
// Lines are there to be read as soon as they and all before them are done, under a temporary name,
// `<path>.partial`, which nobody else writes meanwhile; what stood at `path` before stays until all
// are. A part, of whoever ends before, stays there only where it is asked for. What is no regular
// file, or was opened by the shell (- or /dev/stdout, /dev/fd/N, a pipe), is written as it is. Rows
// that wait for an earlier one take kHeld bytes of memory at most, and the disk beyond that. Used
// from one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/files/spilled_bytes.h"
#include "common/progress.h"
#include "common/status.h"
#include "tools/unfinished_file.h"

namespace keel::tools {

// A file as the command line names it: "--output", "out.jsonl".
struct NamedFile {
  std::string flag;
  std::string path;  // "": there is none
};

// kUsage when `written` would take the place of `other`, which is read or written, too.
Status CheckApart(const NamedFile& written, const NamedFile& other);

// Where a command that writes `output`, a file or a folder, may put what its memory does not hold:
// the nearest folder that is there, or that of temporary files for what the shell has opened.
std::string SpillFolder(const std::string& output);

// Of a file that is not whole.
enum class Part { kRemoved, kKept };

class RowOutput {
 public:
  static constexpr size_t kHeld = size_t{16} << 20;

  // `flag` is named in errors: "--output". kCannotCreate when the file cannot be written.
  // To be called on the main thread.
  static Result<RowOutput> Open(const std::string& flag, const std::string& path,
                                Part part = Part::kRemoved);

  // The line of row `row`, from 0, without a line break; each row once.
  Status Put(size_t row, std::string line);
  // The same of a file that is no text: what stands for the row, as it is.
  Status PutBytes(size_t row, std::span<const std::byte> bytes);
  // All rows were put: the file takes its name, and is on the disk.
  Status Finish();
  // For whoever ends before, of a part that is kept: where the rows are that are done.
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
  RowOutput(std::string flag, std::string path, std::string temporary, std::FILE* file, Part part)
      : flag_(std::move(flag)),
        path_(std::move(path)),
        temporary_(std::move(temporary)),
        file_(file),
        spilled_(SpillFolder(path_)) {
    if (path_ != temporary_ && part == Part::kRemoved)
      unfinished_ = std::make_unique<UnfinishedFile>(temporary_);
  }
  // A row that is done before an earlier one: its bytes, or where they lie on the disk.
  struct Waiting {
    std::vector<std::byte> bytes;
    int64_t spilled_at = 0, spilled_size = 0;
  };
  Status Hold(size_t row, std::span<const std::byte> bytes);
  Status WriteWaiting(const Waiting& waiting);
  Status Write(std::span<const std::byte> bytes);
  Status Failed(const char* operation) const;

  std::string flag_, path_, temporary_;  // the last two are the same of what is written as it is
  std::unique_ptr<std::FILE, Close> file_;
  std::unique_ptr<UnfinishedFile> unfinished_;  // a part that is not kept
  size_t next_ = 0;
  std::map<size_t, Waiting> waiting_;
  size_t held_ = 0;          // bytes of waiting_ in memory
  int64_t num_spilled_ = 0;  // of waiting_, those on the disk
  SpilledBytes spilled_;
};

}  // namespace keel::tools
