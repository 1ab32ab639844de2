// Differ: which tensors of two checkpoints differ, where, and by how much.
//
// Layouts need not be the same. What digests prove to be equal is not read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/read/step_reader.h"
#include "common/status.h"
#include "common/tensors/box.h"
#include "common/tensors/shard_table.h"

namespace keel::checkpoint {

struct DiffOptions {
  std::string scope;  // "actor/model": only its tensors; "": all, and the other files
  int threads = 2;    // that read and verify
  int64_t buffer_bytes = int64_t{16} << 20;  // of values in memory at a time, for each side
};

struct TensorDifference {
  enum class Kind { kOnlyInA, kOnlyInB, kOtherType, kValues };
  Kind kind = Kind::kValues;
  std::string scope;
  TensorInfo a, b;  // what each side has; of kOnlyInA and kOnlyInB one is empty
  // For kValues:
  int64_t differing = 0;  // elements whose bits differ
  Box box;                // the smallest that holds them all
  // Float dtypes: the largest |a - b|, in double, and a place that has it. Elements of which one is
  // NaN do not count for it, but here:
  std::optional<double> max_abs;
  Dims at;
  int64_t nan_against_number = 0;

  std::string ToString() const;  // one line
};

struct FileDifference {
  std::string path;
  std::string what;  // "only in A", "only in B", "differs"
};

struct DiffReport {
  std::vector<TensorDifference> tensors;  // by scope and name
  std::vector<FileDifference> files;      // documents and Hugging Face files, by path
  int64_t tensors_in_both = 0;
  int64_t equal_by_digest = 0;  // of these, without reading
  int64_t bytes_read = 0;       // of both sides
  bool equal() const { return tensors.empty() && files.empty(); }
};

// Damage in what has to be read is kDataLoss, and no report.
Result<DiffReport> DiffCheckpoints(const StepReader& a, const StepReader& b,
                                   const DiffOptions& options);

}  // namespace keel::checkpoint
