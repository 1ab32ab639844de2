// What a batch of generation is made of, as numbers: of the host (DecodeNumbers), one behind
// another, so that one copy brings them to a device; and where they are there (DecodePlan), for
// Keel's kernels. Made once a batch, and read by all layers.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/ops/kv_cache.h"

namespace keel::model {

// Batches of as many sequences, each of one token, and of one `longest`, have numbers of one
// layout.
struct DecodeNumbers {
  struct Part {
    int64_t begin = 0, size = 0;  // in `values`
  };
  struct Queries {
    Part rows, sequences, positions;
    int64_t longest = 0;
  };
  struct Group {
    Part blocks, slots;
    int64_t width = 0;
  };
  struct Prompts {
    Part rows, boundaries;
    int64_t longest = 0;
  };

  std::vector<int32_t> values;
  Part ids, main_rows, local_rows;  // the tokens, and their rows in the tables of rotation
  Queries all, continued;
  std::vector<Group> groups;
  Prompts begun;
  int64_t sequences = 0;

  // The tokens. `main`, `local`: the row of each in the tables of rotation.
  static DecodeNumbers Of(const DecodeBatch& batch, const std::vector<int32_t>& main,
                          const std::vector<int32_t>& local);
  // Behind them where they stand, which a plan is made of; `longest`: for texts of so many tokens,
  // or of as many as the longest has. A sequence whose lists of blocks are empty writes to none of
  // them: it fills a batch up.
  void AddPlaces(const std::vector<DecodeSequence>& sequences, int64_t block_size,
                 int64_t longest = 0);
};

struct DecodePlan {
  // Tokens that attend: row in the batch, sequence, position in it; [n] int32 each.
  struct Queries {
    at::Tensor rows, sequences, positions;
    int64_t longest = 0;  // above the last position of any
  };
  Queries all;
  Queries continued;  // without the prompts
  // The blocks of a group of layers (DecodeSequence::blocks).
  struct Group {
    at::Tensor blocks;  // [sequences, most of them] int32
    at::Tensor slots;   // [T] int32, of each token: block * block_size + place in it; -1: nowhere
  };
  std::vector<Group> groups;
  // Prompts that begin: sequences of more than one token that have none in the store yet.
  struct Prompts {
    at::Tensor rows;        // [n] int64: of their tokens in the batch, prompt by prompt
    at::Tensor boundaries;  // [prompts + 1] int32: of each in `rows`
    int64_t longest = 0;    // tokens; 0 where none begins
  };
  Prompts begun;

  // `values`: those of the numbers, on a device, of which the parts are views.
  static DecodePlan On(const DecodeNumbers& numbers, const at::Tensor& values);
};

inline at::Tensor PartOf(const at::Tensor& values, const DecodeNumbers::Part& part) {
  return values.narrow(0, part.begin, part.size);
}

}  // namespace keel::model
