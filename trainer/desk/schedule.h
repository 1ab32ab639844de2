// Schedule: which weights choose which tokens of a sample, where that is settled beforehand and is
// not a matter of who is fast: the spans that an earlier run recorded, or a fixed number of tokens
// to a version. A token is a function of the weights, the tokens before it and its place, so two
// runs of one schedule are equal bit for bit, whatever workers they have. Torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "trainer/desk/ledger.h"

namespace keel::trainer::desk {

inline constexpr int64_t kToTheEnd = INT64_MAX;

// What one worker generates of a sample in one go.
struct Turn {
  int64_t version = 0;        // of its weights; 0: of none that there are yet
  int64_t until = kToTheEnd;  // until the response has so many tokens, or ends
};

class Schedule {
 public:
  virtual ~Schedule() = default;
  // What comes next of a sample that has `so_far`, and that step `due` trains. `versions`, not
  // empty: those there are, as in Ledger.
  virtual Turn Next(const SampleId& id, const Partial& so_far, int64_t due,
                    const std::map<int64_t, int64_t>& versions) const = 0;
  // The newest version that it wants for a sample, where that is settled; else 0.
  virtual int64_t NewestOf(const SampleId& /*id*/) const { return 0; }
  // Behind the last position that weights of up to this version begin, where that is settled.
  virtual int64_t ReachOf(int64_t /*version*/) const { return 0; }
};

// A sample begins with the newest weights when it may, and takes up those of the next step with
// every `tokens` tokens, up to those that train it.
class FixedSchedule : public Schedule {
 public:
  explicit FixedSchedule(int64_t tokens) : tokens_(tokens) {}
  Turn Next(const SampleId& id, const Partial& so_far, int64_t due,
            const std::map<int64_t, int64_t>& versions) const override;

 private:
  const int64_t tokens_;
};

// What a schedule holds of a sample that was trained.
struct Recorded {
  SampleId id;
  std::vector<VersionSpan> spans;
  int64_t tokens = 0;
  std::string digest;  // of the tokens
};
Recorded RecordOf(const Finished& finished);

// As a run recorded it: a file a step, `<step>.jsonl`, a line a sample that the step took.
class RecordedSchedule : public Schedule {
 public:
  // kInvalidData with file and line.
  static Result<std::shared_ptr<const RecordedSchedule>> Load(const std::string& folder);

  // kConfig: it lacks one of `samples` of a position from `first` to before `end`.
  Status Covers(int64_t first, int64_t end, const std::vector<int>& samples) const;
  int64_t end() const;  // behind the last position
  Turn Next(const SampleId& id, const Partial& so_far, int64_t due,
            const std::map<int64_t, int64_t>& versions) const override;
  int64_t NewestOf(const SampleId& id) const override;
  int64_t ReachOf(int64_t version) const override;
  // kDataLoss: the response is not the one that was recorded.
  Status Check(const Finished& finished) const;

 private:
  std::map<SampleId, Recorded> records_;
  std::map<int64_t, int64_t> reach_;  // by version: behind the last position that it begins
};

// The samples that a step took, as RecordedSchedule::Load reads them. The file is there whole or
// not at all.
Status RecordStep(const std::string& folder, int64_t step, const std::vector<Recorded>& taken);

}  // namespace keel::trainer::desk
