#include "rollout/block_manager.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/status.h"

namespace keel::rollout {

namespace {

constexpr int32_t kNone = kNoBlock;

Digest128 VersionHash(int64_t version) { return Hash128(std::as_bytes(std::span(&version, 1))); }

Digest128 ChainHash(Hasher128& hasher, const Digest128& parent, std::span<const int32_t> tokens) {
  hasher.Update(std::as_bytes(std::span(&parent, 1)));
  hasher.Update(std::as_bytes(tokens));
  return hasher.Finish();
}

}  // namespace

BlockManager::BlockManager(int32_t num_blocks, int32_t block_size, bool prefix_caching,
                           std::vector<int64_t> windows, int32_t states)
    : block_size_(block_size),
      has_states_(states > 0),
      prefix_caching_(prefix_caching && states == 0),
      windows_(std::move(windows)),
      root_(VersionHash(0)),
      available_(num_blocks),
      oldest_(kNone),
      newest_(kNone) {
  if (num_blocks < 1 || block_size < 1) {
    throw Error(StatusCode::kConfig,
                fmt::format("KV cache: expected at least one block of at least one token, found {} "
                            "blocks of {}",
                            num_blocks, block_size));
  }
  const auto n = static_cast<size_t>(num_blocks);
  references_.assign(n, 0);
  next_.assign(n, kNone);
  previous_.assign(n, kNone);
  content_.resize(n);
  // The lowest block is taken first.
  for (int32_t block = num_blocks - 1; block >= 0; --block) blank_.push_back(block);
  for (int32_t state = states - 1; state >= 0; --state) free_states_.push_back(state);
}

Digest128 BlockManager::RootOf(const BlockTable& table) const {
  Hasher128 hasher;
  return table.kind == 0 ? root_ : ChainHash(hasher, root_, std::span(&table.kind, 1));
}

int64_t BlockManager::FirstSeen(size_t group, int64_t position) const {
  const int64_t window = windows_[group];
  return window == 0 ? 0 : std::max<int64_t>(0, position - window + 1) / block_size_;
}

bool BlockManager::has_windows() const {
  return std::any_of(windows_.begin(), windows_.end(), [](int64_t window) { return window > 0; });
}

int64_t BlockManager::MostBlocks(int64_t tokens, int64_t at_once) const {
  int64_t most = 0;
  for (const int64_t window : windows_) {
    int64_t blocks = blocks_for(tokens);
    // What the window of the first and the tokens of one forward touch, wherever blocks begin.
    if (window > 0)
      blocks = std::min(blocks, (window + at_once - 2 + block_size_ - 1) / block_size_ + 1);
    most += blocks;
  }
  return most;
}

void BlockManager::Unlink(int32_t block) {
  const auto i = static_cast<size_t>(block);
  (previous_[i] == kNone ? oldest_ : next_[static_cast<size_t>(previous_[i])]) = next_[i];
  (next_[i] == kNone ? newest_ : previous_[static_cast<size_t>(next_[i])]) = previous_[i];
  next_[i] = previous_[i] = kNone;
}

void BlockManager::LinkBack(int32_t block) {
  const auto i = static_cast<size_t>(block);
  previous_[i] = newest_;
  next_[i] = kNone;
  (newest_ == kNone ? oldest_ : next_[static_cast<size_t>(newest_)]) = block;
  newest_ = block;
}

void BlockManager::Forget(int32_t block) {
  Content& content = content_[static_cast<size_t>(block)];
  found_by_.erase(content.key);
  content.tokens.clear();
}

// The caller has checked available_.
int32_t BlockManager::Take() {
  int32_t block = kNone;
  if (!blank_.empty()) {
    block = blank_.back();
    blank_.pop_back();
  } else {
    block = oldest_;
    Unlink(block);
    Forget(block);
  }
  --available_;
  references_[static_cast<size_t>(block)] = 1;
  return block;
}

int32_t BlockManager::TakeState() {
  if (!has_states_) return kNone;
  if (free_states_.empty())
    throw Error(StatusCode::kInternal, "the rollout's cache has no slot for a sequence's states");
  const int32_t state = free_states_.back();
  free_states_.pop_back();
  return state;
}

void BlockManager::Drop(int32_t block) {
  const auto i = static_cast<size_t>(block);
  if (--references_[i] > 0) return;
  ++available_;
  if (content_[i].tokens.empty()) {
    blank_.push_back(block);
  } else {
    LinkBack(block);
  }
}

int32_t BlockManager::Find(size_t group, const Digest128& hash,
                           std::span<const int32_t> tokens) const {
  const auto hit = found_by_.find({hash, group});
  if (hit == found_by_.end()) return kNone;
  const std::vector<int32_t>& there = content_[static_cast<size_t>(hit->second)].tokens;
  return std::equal(tokens.begin(), tokens.end(), there.begin(), there.end()) ? hit->second : kNone;
}

int64_t BlockManager::AcquirePrefix(std::span<const int32_t> tokens, int64_t limit,
                                    BlockTable* table) {
  if (!prefix_caching_) return 0;
  const auto size = static_cast<size_t>(block_size_);
  const size_t groups = windows_.size();
  const int64_t places = std::min(limit, static_cast<int64_t>(tokens.size())) / block_size_;
  // 1. What there is, as far as the groups without a window reach.
  Hasher128 hasher;
  std::vector<Digest128> chain;
  std::vector<std::vector<int32_t>> found(groups);
  // Of each group: how many places before the current one are there without a gap.
  std::vector<int64_t> run(groups);
  int64_t covered = 0;
  for (int64_t place = 0; place < places; ++place) {
    const auto part = tokens.subspan(static_cast<size_t>(place) * size, size);
    chain.push_back(ChainHash(hasher, chain.empty() ? RootOf(*table) : chain.back(), part));
    bool whole = true;
    bool usable = true;
    for (size_t g = 0; g < groups; ++g) {
      found[g].push_back(Find(g, chain.back(), part));
      run[g] = found[g].back() == kNone ? 0 : run[g] + 1;
      whole = whole && (windows_[g] > 0 || run[g] > place);
      // 2. A beginning that ends here is of use when all is there that the next token sees.
      usable = usable && run[g] > place - FirstSeen(g, (place + 1) * block_size_);
    }
    if (!whole) break;
    if (usable) covered = place + 1;
  }
  if (covered == 0) return 0;
  // 3. The table holds it, and nothing that is no longer seen.
  chain.resize(static_cast<size_t>(covered));
  table->chain = std::move(chain);
  table->blocks.assign(groups, {});
  for (size_t g = 0; g < groups; ++g) {
    const int64_t first = FirstSeen(g, covered * block_size_);
    for (int64_t place = 0; place < covered; ++place) {
      const int32_t block = place < first ? kNone : found[g][static_cast<size_t>(place)];
      table->blocks[g].push_back(block);
      if (block == kNone || references_[static_cast<size_t>(block)]++ > 0) continue;
      --available_;
      Unlink(block);
    }
  }
  return covered * block_size_;
}

int64_t BlockManager::Needed(int64_t write_from, int64_t tokens, const BlockTable& table) const {
  const int64_t have = table.size();
  int64_t needed = groups() * std::max<int64_t>(0, blocks_for(tokens) - have);
  for (const std::vector<int32_t>& blocks : table.blocks) {
    for (int64_t place = write_from / block_size_; place < have; ++place)
      needed += references(blocks[static_cast<size_t>(place)]) > 1;
  }
  return needed;
}

bool BlockManager::Reserve(int64_t write_from, int64_t tokens, BlockTable* table,
                           std::vector<BlockCopy>* copies) {
  if (Needed(write_from, tokens, *table) > available_) return false;
  if (table->state == kNone) {
    if (!has_slot()) return false;
    table->state = TakeState();
  }
  const int64_t have = table->size();
  const int64_t want = std::max(have, blocks_for(tokens));
  table->blocks.resize(windows_.size());
  for (std::vector<int32_t>& blocks : table->blocks) {
    for (int64_t place = write_from / block_size_; place < have; ++place) {
      int32_t& block = blocks[static_cast<size_t>(place)];
      if (references(block) == 1) continue;
      const int32_t copy = Take();
      copies->push_back({block, copy});
      Drop(block);
      block = copy;
    }
    for (int64_t place = have; place < want; ++place) blocks.push_back(Take());
  }
  return true;
}

void BlockManager::Publish(std::span<const int32_t> tokens, int64_t computed, BlockTable* table) {
  if (!prefix_caching_ || table->mixed) return;
  Hasher128 hasher;
  const auto size = static_cast<size_t>(block_size_);
  for (size_t i = table->chain.size(); (i + 1) * size <= static_cast<size_t>(computed); ++i) {
    const Digest128 parent = table->chain.empty() ? RootOf(*table) : table->chain.back();
    const std::span<const int32_t> part = tokens.subspan(i * size, size);
    const Digest128 hash = ChainHash(hasher, parent, part);
    table->chain.push_back(hash);
    for (size_t g = 0; g < windows_.size(); ++g) {
      const int32_t block = table->blocks[g][i];
      // A block that another sequence published first stays the one that is found.
      if (block == kNone || !found_by_.emplace(Key{hash, g}, block).second) continue;
      Content& content = content_[static_cast<size_t>(block)];
      content.key = {hash, g};
      content.tokens.assign(part.begin(), part.end());
    }
  }
}

void BlockManager::GiveBackPassed(int64_t next, BlockTable* table) {
  for (size_t g = 0; g < table->blocks.size(); ++g) {
    // From the window backwards, up to what has been given back before.
    for (int64_t place = std::min(FirstSeen(g, next), table->size()) - 1; place >= 0; --place) {
      int32_t& block = table->blocks[g][static_cast<size_t>(place)];
      if (block == kNone) break;
      Drop(block);
      block = kNone;
    }
  }
}

void BlockManager::Fork(const BlockTable& from, BlockTable* to) {
  const int32_t state = TakeState();
  *to = from;
  to->state = state;
  for (const std::vector<int32_t>& blocks : to->blocks) {
    for (const int32_t block : blocks) {
      if (block != kNone) ++references_[static_cast<size_t>(block)];
    }
  }
}

void BlockManager::Release(BlockTable* table) {
  // The end first: a prefix is of use to more sequences than what follows it.
  for (size_t place = static_cast<size_t>(table->size()); place-- > 0;) {
    for (const std::vector<int32_t>& blocks : table->blocks) {
      if (blocks[place] != kNone) Drop(blocks[place]);
    }
  }
  if (table->state != kNone) free_states_.push_back(table->state);
  *table = {};
}

void BlockManager::SetVersion(int64_t version) {
  root_ = VersionHash(version);
  while (oldest_ != kNone) {
    const int32_t block = oldest_;
    Unlink(block);
    Forget(block);
    blank_.push_back(block);
  }
  for (Content& content : content_) content.tokens.clear();
  found_by_.clear();
}

}  // namespace keel::rollout
