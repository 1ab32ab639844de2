// Samples of pre-training and SFT, and a set of them as training sees it, wherever they come from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/hash.h"
#include "trainer/data/sample_order.h"

namespace keel::trainer {

// Tokens t_0 ... t_n of each piece; inputs t_0 ... t_{n-1} predict t_1 ... t_n where `learn` is
// set.
struct Sample {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> learn;         // by token; the first of a piece is never a target
  std::vector<int64_t> pieces = {0};  // where each begins in tokens
  int64_t id = 0;                     // its place among all samples of the files

  int64_t inputs() const { return std::ssize(tokens) - std::ssize(pieces); }
  int64_t targets() const;  // learnt ones
};

// Numbered from 0 to size() - 1, the same on every rank. Thread-safe.
class SampleSet {
 public:
  virtual ~SampleSet() = default;

  virtual int64_t size() const = 0;
  // Sample `index`. Throws Error: kDataLoss where a checksum of its tokens does not hold,
  // kInvalidData for ids that are none of the model's.
  virtual Sample Get(int64_t index) const = 0;
  virtual int64_t targets(int64_t index) const = 0;  // throws as Get
  virtual int64_t inputs(int64_t index) const = 0;
  // Its place among all samples of the files: Sample::id.
  virtual int64_t id(int64_t index) const = 0;
  virtual int64_t skipped_rows() const = 0;
  // What of the files was not read, a sentence a file.
  virtual const std::vector<std::string>& warnings() const = 0;
  // Of all that training sees: tells whether a resumed run has the same data.
  virtual const Digest128& digest() const = 0;
  // The sources of a mixture; empty where there is one.
  virtual const std::vector<SourceShare>& mixture() const = 0;
};

}  // namespace keel::trainer
