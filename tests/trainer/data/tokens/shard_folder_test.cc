// A folder's index is believed only as far as its digest and the shards' headers go.
#include "trainer/data/tokens/shard_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/data/tokens/scratch_folder.h"
#include "trainer/data/tokens/shard_writer.h"

namespace keel::trainer {
namespace {

using ::testing::HasSubstr;

class ShardFolderTest : public ::testing::Test {
 protected:
  ShardFolderTest() {
    auto files = ValueOrThrow(OpenPosixFileSystem(folder_.path(), false));
    index_.tokenizer = "bytes";
    index_.id_bytes = 2;
    index_.largest_id = 60;
    for (int32_t shard = 0; shard < 3; ++shard) {
      const std::string name = std::to_string(shard) + ".tokens";
      auto writer = ValueOrThrow(ShardWriter::Create(*files, name, 2, {}));
      for (int32_t d = 0; d <= shard; ++d) {
        const int32_t ids[] = {shard, d, 60};
        const uint8_t learn[] = {1, 1, 1};
        ThrowIfError(writer.Add(ids, learn));
      }
      const ShardHeader header = ValueOrThrow(writer.Finish(Json::object()));
      index_.shards.push_back({name, header.tokens, header.documents,
                               ShardLayout::Of(header).file_bytes, header.header});
    }
    folder_.Write(kShardFolderName, index_.ToJson());
  }
  std::string Refusal() { return ShardFolder::Open(folder_.path()).status().message(); }

  ScratchFolder folder_;
  ShardFolderIndex index_;
};

TEST_F(ShardFolderTest, ShardsAreOneStoreInOrder) {
  const ShardFolder folder = ValueOrThrow(ShardFolder::Open(folder_.path()));
  const auto store = folder.tokens();
  ASSERT_EQ(store->documents(), 6);
  ASSERT_EQ(store->tokens(), 18);
  std::vector<int32_t> ids(18);
  std::vector<uint8_t> learn(18);
  ThrowIfError(store->Read(0, ids, learn));
  EXPECT_THAT(ids,
              ::testing::ElementsAre(0, 0, 60, 1, 0, 60, 1, 1, 60, 2, 0, 60, 2, 1, 60, 2, 2, 60));
  for (int64_t from = 0; from < 18; ++from) {
    for (int64_t count = 1; from + count <= 18; ++count) {
      std::vector<int32_t> some(static_cast<size_t>(count));
      ThrowIfError(store->Read(from, some, {}));
      EXPECT_TRUE(std::equal(some.begin(), some.end(), ids.begin() + from));
    }
    EXPECT_EQ(store->DocumentOf(from), from / 3);
  }
}

TEST_F(ShardFolderTest, EveryChangedByteOfTheIndexIsNoticed) {
  const std::string good = folder_.Read(kShardFolderName);
  for (size_t i = 0; i < good.size(); ++i) {
    if (good[i] == ' ' || good[i] == '\n') continue;  // may stand between anything
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    folder_.Write(kShardFolderName, bad);
    ASSERT_FALSE(ShardFolder::Open(folder_.path()).ok()) << i;
  }
}

TEST_F(ShardFolderTest, MixedUnfinishedAndForeignFoldersAreRefusedByName) {
  std::filesystem::copy_file(folder_.Path("1.tokens"), folder_.Path("2.tokens"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(Refusal(), HasSubstr("2.tokens: is not the one that tokens.json"));
  std::filesystem::remove(folder_.Path("0.tokens"));
  EXPECT_THAT(Refusal(), HasSubstr("0.tokens"));
  index_.shards[0].file = "../0.tokens";
  folder_.Write(kShardFolderName, index_.ToJson());
  EXPECT_THAT(Refusal(), HasSubstr("no name of a file beside it"));
  std::filesystem::remove(folder_.Path(kShardFolderName));
  EXPECT_THAT(Refusal(), HasSubstr("without tokens.json"));
}

}  // namespace
}  // namespace keel::trainer
