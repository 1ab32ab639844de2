// A file of tokens that somebody writes to while it is read gives no more tokens; one whose name
// somebody gives to another file does.
#include "trainer/data/tokens/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "common/files/file_system.h"
#include "tests/trainer/data/tokens/scratch_folder.h"
#include "trainer/data/tokens/megatron_file.h"
#include "trainer/data/tokens/raw_ids_file.h"
#include "trainer/data/tokens/shard_file.h"
#include "trainer/data/tokens/shard_writer.h"

namespace keel::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int64_t kTokens = 60'000;  // more than a page, and than a block of a shard

std::string Ids() {
  std::string ids;
  for (int64_t i = 0; i < kTokens; ++i) ids += Bytes(static_cast<uint16_t>(i % 50'000));
  return ids;
}

// Some format's file of the same tokens, and its name.
struct Kind {
  const char* name;
  std::shared_ptr<const TokenStore> (*open)(const ScratchFolder& folder);
  const char* file;
};

std::shared_ptr<const TokenStore> OpenRaw(const ScratchFolder& folder) {
  return ValueOrThrow(RawIdsFile::Open(folder.Write("x.bin", Ids())));
}

std::shared_ptr<const TokenStore> OpenMegatron(const ScratchFolder& folder) {
  folder.Write("x.bin", Ids());
  folder.Write("x.idx", std::string("MMIDIDX\0\0", 9) + Bytes(uint64_t{1}) + Bytes(uint8_t{8}) +
                            Bytes(uint64_t{1}) + Bytes(uint64_t{2}) +
                            Bytes(static_cast<int32_t>(kTokens)) + Bytes(int64_t{0}) +
                            Bytes(int64_t{0}) + Bytes(int64_t{1}));
  return ValueOrThrow(MegatronFile::Open(folder.Path("x")));
}

std::shared_ptr<const TokenStore> OpenShard(const ScratchFolder& folder) {
  auto files = ValueOrThrow(OpenPosixFileSystem(folder.path(), false));
  auto writer = ValueOrThrow(ShardWriter::Create(*files, "x.tokens", 2, Digest128{7, 9}));
  std::vector<int32_t> ids(static_cast<size_t>(kTokens));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 50'000);
  ThrowIfError(writer.Add(ids, std::vector<uint8_t>(ids.size(), 1)));
  ThrowIfError(writer.Finish({{"program", "keel 0.1.0"}}).status());
  return ValueOrThrow(ShardFile::Open(folder.Path("x.tokens")));
}

class MappedFileTest : public ::testing::TestWithParam<Kind> {
 protected:
  MappedFileTest() : store_(GetParam().open(folder_)), path_(folder_.Path(GetParam().file)) {}
  Status ReadAt(int64_t begin) {
    std::vector<int32_t> ids(64);
    std::vector<uint8_t> learn(ids.size());
    const Status read = store_->Read(begin, ids, learn);
    if (read.ok()) {
      EXPECT_EQ(ids[63], (begin + 63) % 50'000);
    }
    return read;
  }
  // The clock of a file system goes in steps of some milliseconds; a test is faster.
  void Later() {
    fs::last_write_time(path_, fs::last_write_time(path_) + std::chrono::milliseconds(20));
  }

  ScratchFolder folder_;
  std::shared_ptr<const TokenStore> store_;
  std::string path_;
};

TEST_P(MappedFileTest, WhatIsWrittenOverGivesNoMoreTokens) {
  ThrowIfError(ReadAt(0));
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-2000, std::ios::end);
    file << "anything else";
  }
  Later();
  const Status read = ReadAt(0);
  EXPECT_EQ(read.code(), StatusCode::kDataLoss);
  EXPECT_THAT(read.message(), HasSubstr(path_ + ": was written to while this run reads it"));
}

// Mapped bytes behind the end of a file end the process.
TEST_P(MappedFileTest, WhatIsCutShortIsNotTouched) {
  ThrowIfError(ReadAt(0));
  fs::resize_file(path_, 4096);
  EXPECT_EQ(store_->tokens(), kTokens);
  const Status read = ReadAt(kTokens - 64);
  EXPECT_EQ(read.code(), StatusCode::kDataLoss);
  EXPECT_THAT(read.message(), HasSubstr("bytes before, 4096 now"));
}

TEST_P(MappedFileTest, AnotherFileOfTheNameIsNotThisOne) {
  folder_.Write("other", "something else");
  fs::rename(folder_.Path("other"), path_);
  ThrowIfError(ReadAt(0));
  ThrowIfError(ReadAt(kTokens - 64));
  fs::remove(path_);
  ThrowIfError(ReadAt(100));
}

INSTANTIATE_TEST_SUITE_P(Formats, MappedFileTest,
                         ::testing::Values(Kind{"Raw", OpenRaw, "x.bin"},
                                           Kind{"Megatron", OpenMegatron, "x.bin"},
                                           Kind{"Shard", OpenShard, "x.tokens"}),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace keel::trainer
