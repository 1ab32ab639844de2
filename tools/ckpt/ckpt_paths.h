// Where a command's path argument points: a run directory, or one step of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/files/file_system.h"
#include "common/json.h"
#include "common/status.h"

namespace keel::tools {

struct StepPath {
  std::unique_ptr<FileSystem> fs;  // the run directory
  std::string directory;           // "global_step_40"
};

// Opens the directory that holds `path`'s last component.
Result<StepPath> OpenStep(const std::string& path);
// Opens the directory of a run. kNotFound when something else has the name.
Result<std::unique_ptr<FileSystem>> OpenRun(const std::string& path);
// A directory that is to be made, under its name in the one above it.
struct NewDirectory {
  std::unique_ptr<FileSystem> parent;
  std::string name;
  std::string path;  // whole, for messages
};
// Makes what is missing above it: to be called when all that is read is there.
Result<NewDirectory> OpenParentOf(const std::string& path);
// kUsage for a place that nothing can be written to: "", or one inside a checkpoint, which would
// keep that from ever being removed.
Status CheckTarget(const std::string& path);
// The newest commit is what a run resumes from: kUsage where the run directory `run`, called
// `path`, holds a later step than the one that a command is to commit in it. `what`: that one.
Status CheckIsLatest(const FileSystem& run, std::string_view path, int64_t step,
                     std::string_view what);
// A run directory that a command is to fill: if it had to be made and gets no step, it is removed
// at the end, with the folders above it that had to be made for it. Of files in it only those go
// that the command's own use of it leaves. Make one before the folder is.
class FolderToFill {
 public:
  explicit FolderToFill(const std::string& path);
  ~FolderToFill();
  FolderToFill(const FolderToFill&) = delete;
  FolderToFill& operator=(const FolderToFill&) = delete;

 private:
  std::vector<std::string> made_;  // the folder, then what is above it
};
// True when `path` is a directory with a manifest.
bool IsStep(const std::string& path);
// True when `path` is a directory named global_step_<N>, whatever it holds.
bool IsNamedAsStep(const std::string& path);
// Threads for reading: one per core.
int Cores();
// Text of a checkpoint, or of whoever made it, as one line of what a command prints.
std::string Shown(std::string_view text);
// The same of JSON: ASCII alone, so that what controls a terminal is escaped too.
std::string ShownJson(const Json& json);
// "1.50 GB"
std::string HumanBytes(int64_t bytes);
// Prints "keel ckpt: message" and returns the status's exit code.
int Fail(const Status& status, std::ostream& err);

}  // namespace keel::tools
