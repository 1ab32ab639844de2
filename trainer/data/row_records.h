// RowRecords: the rows of files, each as the record that a RecordRule makes of it, in their order.
//
// They lie in the memory of this process; or, with a cache folder, in shards on the disk
// (tokens/shard_folder.h), which all processes that come make once, together (tokenize.h), and map:
// then a process holds the pages that it looks at; or in a file of this process's own, which is
// gone with it. Which of them it is shows in nothing else. Immutable and thread-safe once it is
// there; copies share the records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "trainer/data/rows/record_rule.h"
#include "trainer/data/rows/text_rules.h"
#include "trainer/data/token_input.h"

namespace keel::trainer {

// Records one after another, as bytes.
class RecordPart {
 public:
  virtual ~RecordPart() = default;
  virtual int64_t records() const = 0;
  // Where record i begins, i in [0, records()]; of records() it is the number of bytes.
  virtual int64_t Begin(int64_t record) const = 0;
  // Bytes [begin, begin + bytes.size()). kDataLoss names the file that is not what it was.
  virtual Status Read(int64_t begin, std::span<std::byte> bytes) const = 0;
};

class RowRecords {
 public:
  struct Record {
    int64_t row = 0;  // its place among all rows of the files, left out ones too
    std::vector<std::byte> bytes;
  };

  int64_t size() const { return records_; }
  // What a damaged shard says; index in [0, size()).
  Result<Record> Get(int64_t index) const;
  // Calls `take` for each, in order; the bytes are valid within the call.
  Status ForEach(const std::function<Status(int64_t index, int64_t row,
                                            std::span<const std::byte> bytes)>& take) const;

  int64_t skipped_rows() const { return rows_ - records_; }
  // What of the files was not read, a sentence a file.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  class Opening;
  friend Result<RowRecords> OpenRecords(const std::vector<std::string>& files,
                                        const RecordRule& rule, const TextRules& rules,
                                        const TokenCache& cache);
  // Of `rows` rows, after all others.
  void Append(std::shared_ptr<const RecordPart> part, int64_t rows);

  struct Placed {
    std::shared_ptr<const RecordPart> part;
    int64_t first_record = 0;
    int64_t first_row = 0;
  };
  std::vector<Placed> parts_;
  int64_t records_ = 0;
  int64_t rows_ = 0;
  std::vector<std::string> warnings_;
};

// All of some records, or those that a split has left: what a set of prompts or pairs holds.
class ChosenRecords {
 public:
  ChosenRecords() = default;
  explicit ChosenRecords(RowRecords records) : records_(std::move(records)) {}

  int64_t size() const { return chosen_ ? std::ssize(*chosen_) : records_.size(); }
  Result<RowRecords::Record> Get(int64_t index) const {
    return records_.Get(chosen_ ? (*chosen_)[static_cast<size_t>(index)] : index);
  }
  // As RowRecords'.
  Status ForEach(
      const std::function<Status(int64_t row, std::span<const std::byte> bytes)>& take) const;
  // Moves a share, drawn by the place of each row (split.h), into a set of its own, which shares
  // the records with this one, and reports no rows left out and no warnings.
  Result<ChosenRecords> SplitOff(double share, uint64_t seed, uint64_t stream);

  int64_t skipped_rows() const { return apart_ ? 0 : records_.skipped_rows(); }
  const std::vector<std::string>& warnings() const;

 private:
  RowRecords records_;
  std::optional<std::vector<int64_t>> chosen_;  // in order; of a set that was split
  bool apart_ = false;                          // what was split off
};

// Reads JSON Lines and Parquet. Several processes may call it at once with the same cache; it is
// not collective. kNotFound with the path; kInvalidData with file and line.
Result<RowRecords> OpenRecords(const std::vector<std::string>& files, const RecordRule& rule,
                               const TextRules& rules, const TokenCache& cache);

}  // namespace keel::trainer
