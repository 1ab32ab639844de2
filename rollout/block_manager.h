// BlockManager: which blocks of the paged KV cache belong to which sequence (Kwon et al. 2023).
//
// A block holds the keys and values of `block_size` neighbouring tokens. Blocks are counted
// references: samples of one prompt share its blocks, and a shared block that is to be written is
// replaced by a copy first. Full blocks are found again by a hash chain over their tokens that
// begins with the weight version, so what another version computed is never used; when no
// reference is left they stay findable until their memory is needed, least recently used first.
// Knows no tensor. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "common/hash.h"

namespace keel::rollout {

// Copy the keys and values of block `from` to block `to`, in every layer.
struct BlockCopy {
  int32_t from = 0;
  int32_t to = 0;
};

// The blocks of one sequence, in the order of its tokens; made and changed by BlockManager.
struct BlockTable {
  std::vector<int32_t> blocks;
  std::vector<Digest128> chain;  // of the leading full blocks that were published or found
};

class BlockManager {
 public:
  BlockManager(int32_t num_blocks, int32_t block_size, bool prefix_caching);

  int32_t num_blocks() const { return static_cast<int32_t>(references_.size()); }
  int32_t block_size() const { return block_size_; }
  int64_t blocks_for(int64_t tokens) const { return (tokens + block_size_ - 1) / block_size_; }
  // Blocks that no sequence holds, findable ones included.
  int64_t available() const { return available_; }
  int32_t references(int32_t block) const { return references_[static_cast<size_t>(block)]; }

  // Gives an empty table the longest run of findable blocks that holds the first tokens, at most
  // `limit` of them. Returns the tokens covered, a multiple of block_size.
  int64_t AcquirePrefix(std::span<const int32_t> tokens, int64_t limit, BlockTable* table);
  // Makes the table hold `tokens` tokens and those from `write_from` on writable: takes blocks, and
  // replaces shared ones, for which it appends to `copies` (to be done in order, before the
  // writes). False, and nothing changed, when too few blocks are available.
  bool Reserve(int64_t write_from, int64_t tokens, BlockTable* table,
               std::vector<BlockCopy>* copies);
  // The first `computed` of `tokens` stand in the table's blocks: full blocks become findable.
  void Publish(std::span<const int32_t> tokens, int64_t computed, BlockTable* table);
  // An empty `to` shares all of from's blocks.
  void Fork(const BlockTable& from, BlockTable* to);
  // Gives the blocks back; the table is empty afterwards.
  void Release(BlockTable* table);
  // Nothing computed so far is found again. Tables keep their blocks.
  void SetVersion(int64_t version);

 private:
  int32_t Take();
  void Drop(int32_t block);
  void Forget(int32_t block);
  void Unlink(int32_t block);
  void LinkBack(int32_t block);

  int32_t block_size_;
  bool prefix_caching_;
  Digest128 root_;  // of every hash chain: the weight version
  int64_t available_ = 0;
  std::vector<int32_t> references_;
  std::vector<int32_t> blank_;  // available and not findable; last in, first out
  // Available and findable blocks, a list from the least recently used; kNone ends it.
  std::vector<int32_t> next_, previous_;
  int32_t oldest_, newest_;
  struct Content {
    Digest128 hash;
    std::vector<int32_t> tokens;  // a hit is compared; empty: not findable
  };
  std::vector<Content> content_;
  std::map<Digest128, int32_t> found_by_;
};

}  // namespace keel::rollout
