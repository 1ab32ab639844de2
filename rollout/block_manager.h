// BlockManager: which blocks of the paged KV cache belong to which sequence (Kwon et al. 2023).
//
// A block holds the keys and values of `block_size` neighbouring tokens. Blocks are counted
// references: samples of one prompt share its blocks, and a shared block that is to be written is
// replaced by a copy first. Full blocks are found again by a hash chain over their tokens that
// begins with the weight version, so what another version computed is never used; when no
// reference is left they stay findable until their memory is needed, least recently used first.
// Layers with a window have blocks of their own (kv_groups.h), which go back to the pool when the
// window has passed them. Where layers have states, a sequence with blocks has a slot for its own,
// too; no beginning of a text is found again then, since states are of the whole text alone. Knows
// no tensor. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "common/hash.h"

namespace keel::rollout {

// Copy the keys and values of block `from` to block `to`, in every layer.
struct BlockCopy {
  int32_t from = 0;
  int32_t to = 0;
};

// In the place of a block that a window has passed.
inline constexpr int32_t kNoBlock = -1;

// The blocks of one sequence; made and changed by BlockManager.
struct BlockTable {
  // By group, in the order of the tokens, each list as long as the others. Empty of a sequence
  // that has none yet.
  std::vector<std::vector<int32_t>> blocks;
  std::vector<Digest128> chain;  // of the leading full blocks that were published or found
  // What stands in its blocks was computed by weights of several versions: nobody else finds it.
  bool mixed = false;
  // Texts of different kinds have different keys and values for the same tokens, and share none. Of
  // a table without blocks the caller may set it.
  int32_t kind = 0;
  int32_t state = kNoBlock;  // its slot

  // Places in each list.
  int64_t size() const { return blocks.empty() ? 0 : static_cast<int64_t>(blocks[0].size()); }
};

class BlockManager {
 public:
  // `windows` of each group: how many tokens one sees, itself among them; 0: all before it.
  // `states`: how many slots there are; 0: no layer has states.
  BlockManager(int32_t num_blocks, int32_t block_size, bool prefix_caching,
               std::vector<int64_t> windows = {0}, int32_t states = 0);

  int32_t num_blocks() const { return static_cast<int32_t>(references_.size()); }
  int32_t block_size() const { return block_size_; }
  int64_t groups() const { return static_cast<int64_t>(windows_.size()); }
  bool has_windows() const;
  // What a sequence that grows to `tokens` tokens, up to `at_once` of them in one forward, holds at
  // most.
  int64_t MostBlocks(int64_t tokens, int64_t at_once) const;
  // Blocks that no sequence holds, findable ones included.
  int64_t available() const { return available_; }
  int32_t references(int32_t block) const { return references_[static_cast<size_t>(block)]; }

  // Gives an empty table the findable blocks of the longest beginning of the tokens, at most
  // `limit` of them, of which no block is missing that a later token sees. Returns the tokens
  // covered, a multiple of block_size.
  int64_t AcquirePrefix(std::span<const int32_t> tokens, int64_t limit, BlockTable* table);
  // Blocks that Reserve would take.
  int64_t Needed(int64_t write_from, int64_t tokens, const BlockTable& table) const;
  // Makes the table hold `tokens` tokens and those from `write_from` on writable: takes blocks, and
  // replaces shared ones, for which it appends to `copies` (to be done in order, before the
  // writes). False, and nothing changed, when too few blocks are available, or no slot for a table
  // that has none.
  bool Reserve(int64_t write_from, int64_t tokens, BlockTable* table,
               std::vector<BlockCopy>* copies);
  // The first `computed` of `tokens` stand in the table's blocks: full blocks become findable.
  void Publish(std::span<const int32_t> tokens, int64_t computed, BlockTable* table);
  // Tokens before `next` are computed, and what no later one sees is given back: blocks that lie
  // wholly before the windows. Not before Publish, which makes them findable.
  void GiveBackPassed(int64_t next, BlockTable* table);
  // An empty `to` shares all of from's blocks. Of a state it gets a slot of its own, into which
  // from's is to be copied; there must be one (has_slot).
  void Fork(const BlockTable& from, BlockTable* to);
  bool has_states() const { return has_states_; }
  bool has_slot() const { return !has_states_ || !free_states_.empty(); }
  // Gives the blocks back; the table is empty afterwards.
  void Release(BlockTable* table);
  // Nothing computed so far is found again. Tables keep their blocks; one that goes on with them
  // must be `mixed` from here on.
  void SetVersion(int64_t version);

 private:
  int64_t blocks_for(int64_t tokens) const { return (tokens + block_size_ - 1) / block_size_; }
  Digest128 RootOf(const BlockTable& table) const;
  // The first place whose block a token at `position`, or a later one, sees.
  int64_t FirstSeen(size_t group, int64_t position) const;
  // The block of this content in this group, or kNoBlock.
  int32_t Find(size_t group, const Digest128& hash, std::span<const int32_t> tokens) const;
  int32_t Take();
  void Drop(int32_t block);
  void Forget(int32_t block);
  void Unlink(int32_t block);
  void LinkBack(int32_t block);

  int32_t TakeState();

  int32_t block_size_;
  bool has_states_;
  std::vector<int32_t> free_states_;  // last in, first out
  bool prefix_caching_;
  std::vector<int64_t> windows_;
  Digest128 root_;  // of every hash chain: the weight version
  int64_t available_ = 0;
  std::vector<int32_t> references_;
  std::vector<int32_t> blank_;  // available and not findable; last in, first out
  // Available and findable blocks, a list from the least recently used; kNone ends it.
  std::vector<int32_t> next_, previous_;
  int32_t oldest_, newest_;
  using Key = std::pair<Digest128, size_t>;  // of the tokens up to the block's end; the group
  struct Content {
    Key key;
    std::vector<int32_t> tokens;  // a hit is compared; empty: not findable
  };
  std::vector<Content> content_;
  std::map<Key, int32_t> found_by_;
};

}  // namespace keel::rollout
