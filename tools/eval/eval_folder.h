// EvalFolder: what keel eval keeps on the disk, so that one that was killed goes on where it was.
//
//   settings.json         what the samples depend on: a folder of other settings is refused
//   samples.part-<R>.jsonl  a line a sample, as copy R of the model finishes them
//   samples.jsonl         all of them, by row and sample, once there are
//   summary.json          what they say
//
// A last line that was cut off is none. Lines are read where they are wanted, and never all held.
// Torch-free; each copy's first rank has one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/files/file_system.h"
#include "common/json.h"
#include "common/status.h"
#include "tools/eval/sample_lines.h"

namespace keel::tools {

class EvalFolder {
 public:
  // Makes the folder when it is missing, and reads what it has. kConfig names each setting that is
  // another there. `replica` 0 writes settings.json and locks the folder against another eval,
  // which is kBusy; it goes first. In a folder that is refused nothing is made.
  static Result<EvalFolder> Open(const std::string& path, const Json& settings, int replica);

  // The samples that were done when it was opened or gathered, whoever did them.
  const SampleLines& done() const { return done_; }
  // In the operating system's hands when it returns: it outlives this process.
  Status Append(const Json& sample);
  // On replica 0 alone, when all have ended: done() has all of them then. kDataLoss when a sample
  // of `rows` x `n` is missing.
  Status Gather(int64_t n, int64_t rows);
  // After that: writes the files of the whole, and removes the parts.
  Status Finish(const Json& summary);

 private:
  EvalFolder(std::unique_ptr<FileSystem> files, int replica);
  Status TakeSettings(const Json& settings, int replica);
  // True where the folder is of these settings, false where it is empty, an error for all others.
  Result<bool> CheckSettings(const Json& settings) const;
  Status ReadAll();

  std::unique_ptr<FileSystem> files_;
  std::string own_;  // this replica's file
  std::shared_ptr<void> lock_;
  SampleLines done_;
};

}  // namespace keel::tools
