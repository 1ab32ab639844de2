// OpenTokens: the documents of data files of every kind, as one store.
//
//   a folder                a folder of token shards (tokens/shard_folder.h)
//   x.idx, x.bin beside it  Megatron's (tokens/megatron_file.h)
//   x.bin                   raw 16-bit ids, nanoGPT's (tokens/raw_ids_file.h)
//   anything else           rows of JSON Lines, or text: tokenized into memory, or, with a cache
//                           folder, once into shards that are found there again
//
// Rows that are no list of tokens, such as prompts, are RowRecords (row_records.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "trainer/data/rows/choices.h"
#include "trainer/data/rows/row_reader.h"
#include "trainer/data/tokens/token_store.h"

namespace keel::trainer {

struct TokenCache {
  std::string folder;                      // "": rows are tokenized into memory
  std::string spill;                       // or, as records, into a file without a name in here
  int threads = 1;                         // of each process that tokenizes
  double deadline_seconds = 600;           // that another one may make no progress
  int64_t part_bytes = int64_t{64} << 20;  // as PlanOptions'
};

// Rows of more bytes than this had better be in shards than in the memory of every rank.
inline constexpr uintmax_t kMuchText = uintmax_t{256} << 20;
std::string MuchTextWarning(uintmax_t bytes);

struct TokenInputOptions {
  RowKeys keys;
  int64_t vocab_size = 0;  // of the model: larger ids are refused
  bool learns_all = true;  // pre-training
  // Where a row that is longer is to be cut or left out as it is read; 0: rows stay as they are.
  int64_t max_length = 0;
  Truncation truncation = Truncation::kError;
  TokenCache cache;
};

struct TokenInput {
  std::shared_ptr<const TokenStore> store;
  std::shared_ptr<const MemoryTokens> memory;  // the store, where all of it is in memory
  std::vector<std::string> warnings;
  int64_t skipped_rows = 0;
  int64_t unlearnt_rows = 0;   // of these, rows of which no token is learnt
  std::string unlearnt_where;  // of the first of these, where it is known
  int64_t cut_rows = 0;        // of which data.truncation left a part alone
};

// In the order of the files. Several processes may call it at once with the same cache; it is not
// collective. kNotFound, kInvalidData and kConfig name the file, and the line of a row.
Result<TokenInput> OpenTokens(const std::vector<std::string>& files,
                              const TokenInputOptions& options, const TextRules& rules);

}  // namespace keel::trainer
