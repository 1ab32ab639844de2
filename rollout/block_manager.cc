#include "rollout/block_manager.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/status.h"

namespace keel::rollout {

namespace {

constexpr int32_t kNone = -1;

Digest128 VersionHash(int64_t version) { return Hash128(std::as_bytes(std::span(&version, 1))); }

Digest128 ChainHash(Hasher128& hasher, const Digest128& parent, std::span<const int32_t> tokens) {
  hasher.Update(std::as_bytes(std::span(&parent, 1)));
  hasher.Update(std::as_bytes(tokens));
  return hasher.Finish();
}

}  // namespace

BlockManager::BlockManager(int32_t num_blocks, int32_t block_size, bool prefix_caching)
    : block_size_(block_size),
      prefix_caching_(prefix_caching),
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
  found_by_.erase(content.hash);
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

int64_t BlockManager::AcquirePrefix(std::span<const int32_t> tokens, int64_t limit,
                                    BlockTable* table) {
  if (!prefix_caching_) return 0;
  Hasher128 hasher;
  Digest128 parent = root_;
  const auto size = static_cast<size_t>(block_size_);
  limit = std::min(limit, static_cast<int64_t>(tokens.size()));
  int64_t covered = 0;
  while (covered + block_size_ <= limit) {
    const std::span<const int32_t> part = tokens.subspan(static_cast<size_t>(covered), size);
    const Digest128 hash = ChainHash(hasher, parent, part);
    const auto hit = found_by_.find(hash);
    if (hit == found_by_.end()) break;
    const int32_t block = hit->second;
    const auto i = static_cast<size_t>(block);
    if (!std::equal(part.begin(), part.end(), content_[i].tokens.begin(), content_[i].tokens.end()))
      break;
    if (references_[i]++ == 0) {
      --available_;
      Unlink(block);
    }
    table->blocks.push_back(block);
    table->chain.push_back(hash);
    parent = hash;
    covered += block_size_;
  }
  return covered;
}

bool BlockManager::Reserve(int64_t write_from, int64_t tokens, BlockTable* table,
                           std::vector<BlockCopy>* copies) {
  const int64_t have = static_cast<int64_t>(table->blocks.size());
  const int64_t want = std::max(have, blocks_for(tokens));
  int64_t shared = 0;
  for (int64_t i = write_from / block_size_; i < have; ++i)
    shared += references(table->blocks[static_cast<size_t>(i)]) > 1;
  if (want - have + shared > available_) return false;
  for (int64_t i = write_from / block_size_; i < have; ++i) {
    int32_t& block = table->blocks[static_cast<size_t>(i)];
    if (references(block) == 1) continue;
    const int32_t copy = Take();
    copies->push_back({block, copy});
    Drop(block);
    block = copy;
  }
  for (int64_t i = have; i < want; ++i) table->blocks.push_back(Take());
  return true;
}

void BlockManager::Publish(std::span<const int32_t> tokens, int64_t computed, BlockTable* table) {
  if (!prefix_caching_) return;
  Hasher128 hasher;
  const auto size = static_cast<size_t>(block_size_);
  for (size_t i = table->chain.size(); (i + 1) * size <= static_cast<size_t>(computed); ++i) {
    const Digest128 parent = table->chain.empty() ? root_ : table->chain.back();
    const std::span<const int32_t> part = tokens.subspan(i * size, size);
    const Digest128 hash = ChainHash(hasher, parent, part);
    table->chain.push_back(hash);
    // A block that another sequence published first stays the one that is found.
    if (!found_by_.emplace(hash, table->blocks[i]).second) continue;
    Content& content = content_[static_cast<size_t>(table->blocks[i])];
    content.hash = hash;
    content.tokens.assign(part.begin(), part.end());
  }
}

void BlockManager::Fork(const BlockTable& from, BlockTable* to) {
  *to = from;
  for (const int32_t block : to->blocks) ++references_[static_cast<size_t>(block)];
}

void BlockManager::Release(BlockTable* table) {
  // The end first: a prefix is of use to more sequences than what follows it.
  for (auto block = table->blocks.rbegin(); block != table->blocks.rend(); ++block) Drop(*block);
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
