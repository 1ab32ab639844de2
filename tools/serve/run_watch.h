// RunWatch: which checkpoint of a run is to be served: the newest commit that can be.
//
// What is damaged is said once, counted and passed over; what only could not be read this time, or
// looks damaged for the first times, is found again. Where the one that is served was taken away,
// and nothing newer is there (a run that went back, or was begun anew in the same place), it is the
// newest of what is there now. Looks into the run's directory now and then on a
// thread of its own, so that a file system that stands still holds up nobody. Thread-safe;
// torch-free. `say` is called on any of the threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/run/catalog.h"
#include "checkpoint/run/lease.h"
#include "common/files/file_system.h"
#include "common/status.h"

namespace keel::tools {

struct RunStep {
  std::string path;  // of the checkpoint's directory
  std::string name;  // its last part, "global_step_40"
  int64_t step = 0;
  int64_t sequence = 0;  // of its commit
  std::string digest;    // of its manifest: another save of the step has another
  std::string model;     // tells the model's configuration, tokenizer and template from others

  // Of these weights alone: "global_step_40-1a2b3c4d".
  std::string Fingerprint() const { return name + "-" + digest.substr(0, 8); }
};

class RunWatch {
 public:
  static constexpr int kReads = 3;  // of what looks damaged, until that is believed
  using Say = std::function<void(const std::string& warning)>;
  // kNotFound when there is no such directory, but where it `may_come`.
  static Result<std::unique_ptr<RunWatch>> Open(const std::string& run, bool may_come, Say say);
  ~RunWatch();

  // The newest commit that was not refused, and takes the place of `than`, as the disk has it now.
  Result<std::optional<RunStep>> Look(const std::optional<RunStep>& than);
  // Nobody removes it while the lease is held. Errors as LeaseForReading's.
  Result<checkpoint::Lease> Hold(const RunStep& step) const;
  // It is served now: only what takes its place is of interest, and only of the same model. What
  // was put off may be found again.
  void Serve(const RunStep& step);
  // It cannot be, for this reason, which is said. The next look finds it again where the reason may
  // pass: a disk, or this machine, fails for a moment, or what looks damaged was read wrongly,
  // which is believed after kReads times. Else it is passed over for good, and counted.
  void Refuse(const RunStep& step, const Status& why);
  // It is not found until another one is served, or CallBack.
  void PutOff(const RunStep& step);
  void CallBack();
  // In the last look there were manifests that could not be read this time, or look damaged but not
  // for long: any of them may be that of the newest commit.
  bool in_doubt() const;
  // Checkpoints that were passed over for good. One without a readable manifest counts wherever it
  // stands, as nobody knows when it was published.
  int64_t skipped() const;

  void SayOnce(const std::string& text);
  // What fails so may not the next time: by no fault of what is read.
  static bool MayPass(const Status& why);

  // Begins to look, every `interval`.
  void Start(std::chrono::milliseconds interval);
  // What the last look has found beyond what is served.
  std::optional<RunStep> Found() const;

 private:
  RunWatch(std::string run, Say say) : run_(std::move(run)), say_(std::move(say)) {}
  bool MayCome(const RunStep& step, const Status& why);  // under mutex_
  // Says why an entry has no manifest, and whether another look may find one.
  bool JudgeUnread(const checkpoint::CatalogEntry& entry, const std::optional<RunStep>& than);
  void ForgetRead(const std::vector<checkpoint::CatalogEntry>& entries);
  // The entry as a step; nothing, and said, where it is refused, or of another model than `than`.
  std::optional<RunStep> StepOf(const FileSystem& files, const checkpoint::CatalogEntry& entry,
                                const std::optional<RunStep>& than);
  void Run(std::chrono::milliseconds interval);

  const std::string run_;
  const Say say_;
  std::mutex looking_;  // of catalog_
  checkpoint::Catalog catalog_;
  mutable std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::set<std::string> refused_, put_off_;    // digests
  std::map<std::string, int> found_damaged_;   // how often, by digest
  std::map<std::string, int> found_unusable_;  // directories without a manifest, likewise
  int64_t skipped_ = 0;
  bool in_doubt_ = false;
  std::set<std::string> said_;
  std::optional<RunStep> served_, found_;
  std::thread thread_;
};

}  // namespace keel::tools
