#include "rollout/block_manager.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace keel::rollout {
namespace {

std::vector<int32_t> Tokens(int count, int first = 0) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

TEST(BlockManagerTest, APrefixIsFoundInWholeBlocksAndNeverAcrossVersions) {
  BlockManager blocks(8, 4, true);
  const auto tokens = Tokens(11);
  std::vector<BlockCopy> copies;
  BlockTable first;
  ASSERT_TRUE(blocks.Reserve(0, 11, &first, &copies));
  blocks.Publish(tokens, 11, &first);
  BlockTable second;
  EXPECT_EQ(blocks.AcquirePrefix(tokens, 11, &second), 8);  // two full blocks, the third is not
  EXPECT_EQ(second.blocks[0][0], first.blocks[0][0]);
  EXPECT_EQ(blocks.references(first.blocks[0][1]), 2);
  BlockTable limited;
  EXPECT_EQ(blocks.AcquirePrefix(tokens, 7, &limited), 4);
  // Another beginning, the same second block: nothing of it is found.
  auto other = tokens;
  other[0] = 99;
  BlockTable none;
  EXPECT_EQ(blocks.AcquirePrefix(other, 11, &none), 0);
  blocks.Release(&first);
  blocks.Release(&second);
  blocks.Release(&limited);
  EXPECT_EQ(blocks.available(), 8);
  EXPECT_EQ(blocks.AcquirePrefix(tokens, 11, &none), 8);  // released blocks are still found
  blocks.SetVersion(1);                                   // while a sequence holds them
  BlockTable later;
  EXPECT_EQ(blocks.AcquirePrefix(tokens, 11, &later), 0);
  blocks.Release(&none);
  EXPECT_EQ(blocks.AcquirePrefix(tokens, 11, &later), 0);
  blocks.SetVersion(0);  // nor does going back to the number bring contents back
  EXPECT_EQ(blocks.AcquirePrefix(tokens, 11, &later), 0);
}

TEST(BlockManagerTest, WithoutPrefixCachingNothingIsFound) {
  BlockManager blocks(4, 2, false);
  const auto tokens = Tokens(4);
  std::vector<BlockCopy> copies;
  BlockTable table, other;
  ASSERT_TRUE(blocks.Reserve(0, 4, &table, &copies));
  blocks.Publish(tokens, 4, &table);
  EXPECT_EQ(blocks.AcquirePrefix(tokens, 4, &other), 0);
}

TEST(BlockManagerTest, TheLeastRecentlyUsedContentGoesFirstAndAPrefixAfterItsEnd) {
  BlockManager blocks(4, 1, true);
  std::vector<BlockCopy> copies;
  const auto a = Tokens(2, 10), b = Tokens(2, 20);
  BlockTable table_a, table_b;
  ASSERT_TRUE(blocks.Reserve(0, 2, &table_a, &copies));
  ASSERT_TRUE(blocks.Reserve(0, 2, &table_b, &copies));
  blocks.Publish(a, 2, &table_a);
  blocks.Publish(b, 2, &table_b);
  blocks.Release(&table_b);
  blocks.Release(&table_a);
  BlockTable fresh;
  ASSERT_TRUE(blocks.Reserve(0, 1, &fresh, &copies));  // takes the end of b
  BlockTable found;
  EXPECT_EQ(blocks.AcquirePrefix(a, 2, &found), 2);
  blocks.Release(&found);
  EXPECT_EQ(blocks.AcquirePrefix(b, 2, &found), 1);
}

TEST(BlockManagerTest, ASharedBlockIsCopiedBeforeItIsWrittenAndTheLastHolderWritesInPlace) {
  BlockManager blocks(6, 4, true);
  std::vector<BlockCopy> copies;
  BlockTable a, b;
  ASSERT_TRUE(blocks.Reserve(0, 6, &a, &copies));
  blocks.Fork(a, &b);
  EXPECT_EQ(blocks.available(), 4);
  ASSERT_TRUE(blocks.Reserve(6, 7, &a, &copies));
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].from, b.blocks[0][1]);
  EXPECT_EQ(copies[0].to, a.blocks[0][1]);
  EXPECT_EQ(a.blocks[0][0], b.blocks[0][0]);  // a full block that nobody writes stays shared
  ASSERT_TRUE(blocks.Reserve(6, 7, &b, &copies));
  EXPECT_EQ(copies.size(), 1u);
}

TEST(BlockManagerTest, AReservationThatDoesNotFitChangesNothing) {
  BlockManager blocks(3, 2, true);
  std::vector<BlockCopy> copies;
  BlockTable a, b;
  ASSERT_TRUE(blocks.Reserve(0, 3, &a, &copies));
  blocks.Fork(a, &b);
  ASSERT_TRUE(blocks.Reserve(3, 4, &a, &copies));  // the copy takes the last block
  EXPECT_EQ(blocks.available(), 0);
  const auto before = b.blocks;
  EXPECT_FALSE(blocks.Reserve(3, 5, &b, &copies));
  EXPECT_EQ(b.blocks, before);
  EXPECT_EQ(copies.size(), 1u);
}

// A cache of values kept beside the manager by brute force: a block found by prefix must hold
// exactly these tokens, whatever was evicted, forked, copied and released in between.
TEST(BlockManagerTest, RandomUseNeverMixesContentsNorLosesABlock) {
  int64_t hits = 0, passed = 0;
  for (uint32_t seed = 0; seed < 80; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<int>(random() % n); };
    const int count = 4 + below(20), size = 1 + below(4);
    const std::vector<std::vector<int64_t>> kinds = {{0}, {3}, {0, 5}, {4, 2, 0}};
    const std::vector<int64_t>& windows = kinds[seed / 2 % 4];
    BlockManager blocks(count, size, seed % 4 != 0, windows);
    std::vector<std::vector<int32_t>> memory(static_cast<size_t>(count),
                                             std::vector<int32_t>(static_cast<size_t>(size), -1));
    struct Holder {
      std::vector<int32_t> tokens;
      int64_t computed = 0;
      BlockTable table;
    };
    std::vector<Holder> holders;
    for (int step = 0; step < 400; ++step) {
      switch (below(6)) {
        case 0: {  // a newcomer; few distinct tokens, so that prefixes meet
          Holder h;
          const int n = 1 + below(static_cast<uint32_t>(3 * size));
          for (int i = 0; i < n; ++i) h.tokens.push_back(below(2));
          h.computed = blocks.AcquirePrefix(h.tokens, n, &h.table);
          EXPECT_EQ(h.computed % size, 0);
          hits += h.computed;
          holders.push_back(h);
          break;
        }
        case 1:
        case 2: {  // some more tokens are computed
          if (holders.empty()) break;
          Holder& h = holders[static_cast<size_t>(below(static_cast<uint32_t>(holders.size())))];
          h.tokens.push_back(below(2));
          std::vector<BlockCopy> copies;
          const auto n = static_cast<int64_t>(h.tokens.size());
          const int64_t available = blocks.available();
          if (!blocks.Reserve(h.computed, n, &h.table, &copies)) {
            EXPECT_EQ(blocks.available(), available);
            break;
          }
          for (const BlockCopy& copy : copies)
            memory[static_cast<size_t>(copy.to)] = memory[static_cast<size_t>(copy.from)];
          for (int64_t p = h.computed; p < n; ++p) {
            for (const std::vector<int32_t>& group : h.table.blocks) {
              const int32_t block = group[static_cast<size_t>(p / size)];
              EXPECT_EQ(blocks.references(block), 1) << "a shared block is written";
              memory[static_cast<size_t>(block)][static_cast<size_t>(p % size)] =
                  h.tokens[static_cast<size_t>(p)];
            }
          }
          h.computed = n;
          blocks.Publish(h.tokens, n, &h.table);
          blocks.GiveBackPassed(n, &h.table);
          break;
        }
        case 3: {
          if (holders.empty()) break;
          Holder copy;
          const Holder& h =
              holders[static_cast<size_t>(below(static_cast<uint32_t>(holders.size())))];
          copy.tokens = h.tokens;
          copy.computed = h.computed;
          blocks.Fork(h.table, &copy.table);
          holders.push_back(copy);
          break;
        }
        default: {
          if (holders.empty()) break;
          const auto i = static_cast<size_t>(below(static_cast<uint32_t>(holders.size())));
          blocks.Release(&holders[i].table);
          holders.erase(holders.begin() + static_cast<std::ptrdiff_t>(i));
          if (below(40) == 0) {
            for (Holder& h : holders) blocks.Release(&h.table);
            holders.clear();
            blocks.SetVersion(step);
            for (auto& block : memory) block.assign(block.size(), -1);
          }
        }
      }
      std::map<int32_t, int32_t> references;
      for (const Holder& h : holders) {
        for (size_t g = 0; g < h.table.blocks.size(); ++g) {
          for (const int32_t block : h.table.blocks[g]) {
            if (block != kNoBlock) ++references[block];
            passed += block == kNoBlock;
          }
          // What the next token sees, and nothing that it does not see by a block or more.
          const int64_t seen = windows[g] > 0 ? h.computed - windows[g] + 1 : 0;
          for (int64_t p = 0; p < h.computed; ++p) {
            const int32_t block = h.table.blocks[g][static_cast<size_t>(p / size)];
            ASSERT_EQ(block == kNoBlock, (p / size + 1) * size <= seen);
            if (p < seen) continue;
            ASSERT_EQ(memory[static_cast<size_t>(block)][static_cast<size_t>(p % size)],
                      h.tokens[static_cast<size_t>(p)])
                << "seed " << seed << ", step " << step;
          }
        }
      }
      for (int32_t block = 0; block < count; ++block)
        ASSERT_EQ(blocks.references(block), references[block]) << "seed " << seed;
      ASSERT_EQ(blocks.available(), count - static_cast<int64_t>(std::erase_if(
                                                references, [](auto& x) { return x.second > 0; })));
    }
    for (Holder& h : holders) blocks.Release(&h.table);
    EXPECT_EQ(blocks.available(), count);
    // Every block can be taken, and each once.
    BlockTable all;
    std::vector<BlockCopy> copies;
    const int64_t groups = blocks.groups();
    ASSERT_TRUE(blocks.Reserve(0, count / groups * size, &all, &copies));
    std::set<int32_t> taken;
    for (const std::vector<int32_t>& group : all.blocks) taken.insert(group.begin(), group.end());
    EXPECT_EQ(static_cast<int64_t>(taken.size()), count / groups * groups);
    EXPECT_LT(blocks.available(), groups);
  }
  EXPECT_GT(hits, 100);
  EXPECT_GT(passed, 1000);
}

// Blocks behind the window go back, and those that were computed last are still found by who
// needs no more than them.
TEST(BlockManagerTest, AWindowHoldsItsBlocksAlone) {
  BlockManager blocks(20, 4, true, {10});
  EXPECT_EQ(blocks.MostBlocks(1000, 1), 4);  // ten tokens, wherever blocks begin
  EXPECT_EQ(blocks.MostBlocks(1000, 8), 5);
  EXPECT_EQ(blocks.MostBlocks(7, 8), 2);
  const auto tokens = Tokens(64);
  std::vector<BlockCopy> copies;
  BlockTable first;
  for (int64_t n = 0; n < 64; ++n) {
    ASSERT_TRUE(blocks.Reserve(n, n + 1, &first, &copies));
    EXPECT_LE(20 - blocks.available(), 4);
    blocks.Publish(tokens, n + 1, &first);
    blocks.GiveBackPassed(n + 1, &first);
  }
  EXPECT_EQ(20 - blocks.available(), 3);
  // The whole text and a shorter one, of each what the next token sees.
  BlockTable whole, shorter;
  EXPECT_EQ(blocks.AcquirePrefix(tokens, 64, &whole), 64);
  EXPECT_EQ(whole.blocks, first.blocks);
  EXPECT_EQ(whole.blocks[0][12], kNoBlock);
  EXPECT_NE(whole.blocks[0][13], kNoBlock);
  EXPECT_EQ(blocks.AcquirePrefix(tokens, 35, &shorter), 32);
  EXPECT_EQ(shorter.blocks[0].size(), 8u);
  EXPECT_EQ(shorter.blocks[0][4], kNoBlock);
  // Taken over by others in the middle, a text is found as far as its windows are whole.
  for (BlockTable* table : {&first, &whole, &shorter}) blocks.Release(table);
  BlockTable other;
  ASSERT_TRUE(blocks.Reserve(0, 16, &other, &copies));
  blocks.Release(&other);
  const int64_t left = blocks.AcquirePrefix(tokens, 64, &whole);
  EXPECT_EQ(left % 4, 0);
  EXPECT_LE(left, 64);
}

TEST(BlockManagerTest, LayersWithAndWithoutAWindowShareOnePool) {
  BlockManager blocks(30, 4, true, {0, 8});
  const auto tokens = Tokens(40);
  std::vector<BlockCopy> copies;
  BlockTable table;
  ASSERT_TRUE(blocks.Reserve(0, 40, &table, &copies));
  EXPECT_EQ(30 - blocks.available(), 20);
  blocks.Publish(tokens, 40, &table);
  blocks.GiveBackPassed(40, &table);
  EXPECT_EQ(30 - blocks.available(), 10 + 2);
  // What is found needs all blocks of the one and the last of the other.
  BlockTable found;
  EXPECT_EQ(blocks.AcquirePrefix(tokens, 40, &found), 40);
  EXPECT_EQ(found.blocks, table.blocks);
  EXPECT_EQ(30 - blocks.available(), 12);
}

// Where layers have states: a slot for each table with blocks, and nothing is found again.
TEST(BlockManagerTest, SlotsOfStatesGoWithTheBlocks) {
  BlockManager manager(8, 4, /*prefix_caching=*/true, {0}, /*states=*/2);
  std::vector<BlockCopy> copies;
  BlockTable first, second, third;
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5};
  ASSERT_TRUE(manager.Reserve(0, 5, &first, &copies));
  manager.Publish(tokens, 5, &first);
  EXPECT_EQ(manager.AcquirePrefix(tokens, 5, &second), 0);
  manager.Fork(first, &second);
  EXPECT_NE(first.state, second.state);
  EXPECT_EQ(first.blocks, second.blocks);
  EXPECT_FALSE(manager.has_slot());
  EXPECT_FALSE(manager.Reserve(0, 1, &third, &copies));
  EXPECT_EQ(third.size(), 0);
  EXPECT_THROW(manager.Fork(first, &third), Error);
  // A table that has a slot keeps it.
  const int32_t state = second.state;
  ASSERT_TRUE(manager.Reserve(5, 9, &second, &copies));
  EXPECT_EQ(second.state, state);
  manager.Release(&first);
  EXPECT_EQ(first.state, kNoBlock);
  EXPECT_TRUE(manager.Reserve(0, 1, &third, &copies));
  manager.Release(&second);
  manager.Release(&third);
  EXPECT_EQ(manager.available(), 8);
}

}  // namespace
}  // namespace keel::rollout
