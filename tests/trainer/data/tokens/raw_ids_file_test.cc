// nanoGPT's files, and what else is called .bin.
#include "trainer/data/tokens/raw_ids_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/trainer/data/tokens/scratch_folder.h"

namespace keel::trainer {
namespace {

using ::testing::HasSubstr;

TEST(RawIdsFileTest, IdsAreReadAsTheyStand) {
  const ScratchFolder folder;
  const auto file = ValueOrThrow(RawIdsFile::Open(folder.Write(
      "train.bin", Bytes<uint16_t>(7) + Bytes<uint16_t>(50256) + Bytes<uint16_t>(65535))));
  ASSERT_EQ(file->tokens(), 3);
  ASSERT_EQ(file->documents(), 1);
  std::vector<int32_t> ids(2);
  std::vector<uint8_t> learn(2);
  ThrowIfError(file->Read(1, ids, learn));
  EXPECT_THAT(ids, ::testing::ElementsAre(50256, 65535));
  EXPECT_THAT(learn, ::testing::ElementsAre(1, 1));
}

// To look at some pages of a file is not to hold it, though a fault maps what lies around a page.
TEST(RawIdsFileTest, AFileThatIsLookedAtIsNotHeld) {
  const ScratchFolder folder;
  const std::string path = folder.Write("big.bin", std::string(size_t{192} << 20, '\x90'));
  const auto most = [] {  // resident since it was last set back, in bytes
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
    return 0LL;
  };
  std::ofstream("/proc/self/clear_refs") << "5";
  const int64_t before = most();
  ValueOrThrow(RawIdsFile::Open(path));
  EXPECT_LT(most() - before, int64_t{48} << 20);
}

TEST(RawIdsFileTest, WhatIsNoneIsRefusedByName) {
  const ScratchFolder folder;
  const auto refusal = [&](const std::string& bytes) {
    return RawIdsFile::Open(folder.Write("x.bin", bytes)).status().message();
  };
  EXPECT_THAT(refusal("abc"), HasSubstr("3 bytes, which are no 16-bit ids"));
  EXPECT_THAT(refusal("It is a truth universally acknowledged"), HasSubstr("is text"));
  EXPECT_THAT(refusal(std::string(2047, 'a') + std::string(2049, 'b').append("\xc3\xa9 more")),
              HasSubstr("is text"));
  EXPECT_THAT(refusal(std::string(4095, 'a') + "\xc3\xa9 more"), HasSubstr("is text"));
  EXPECT_THAT(refusal(""), HasSubstr("x.bin: is empty"));
  EXPECT_THAT(refusal(std::string("PK\3\4....")), HasSubstr("a zip file"));
  EXPECT_THAT(refusal(Bytes<int32_t>(20240520) + Bytes<int32_t>(1)), HasSubstr("llm.c"));
  EXPECT_THAT(refusal(Bytes<int32_t>(20240801) + Bytes<int32_t>(7)), HasSubstr("ids of 32 bits"));
  EXPECT_THAT(refusal(Bytes<int32_t>(278895051) + Bytes<int32_t>(1)), HasSubstr("NeMo's"));
  // Whose header it is is not known.
  const std::string header =
      Bytes<int32_t>(20991231) + Bytes<int32_t>(3) + std::string(1024 - 8, '\0');
  EXPECT_THAT(refusal(header + Bytes<uint16_t>(5)),
              HasSubstr("a header, of 1024 bytes all but a few of which are 0"));
  EXPECT_EQ(refusal(std::string(1024, '\0') + Bytes<uint16_t>(5)), "");
  EXPECT_EQ(RawIdsFile::Open(folder.Path("none.bin")).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(RawIdsFile::Open(folder.path()).status().message(), HasSubstr("regular file"));
}

TEST(RawIdsFileTest, IdsOf32BitsAreNotReadAsTwiceAsManyOf16) {
  const ScratchFolder folder;
  std::string wide, letters, text;
  for (uint32_t i = 0; i < 4000; ++i) {
    wide += Bytes<uint32_t>(i * 48'271 % 128'000);
    letters += Bytes(static_cast<uint16_t>(i * 48'271 % 7 % 4));
    text += Bytes(static_cast<uint16_t>(i * 48'271 % 50'257));
  }
  const auto open = [&](const std::string& bytes) {
    return RawIdsFile::Open(folder.Write("x.bin", bytes)).status();
  };
  EXPECT_THAT(open(wide).message(), HasSubstr("x.bin: looks like ids of 32 bits (np.uint32)"));
  ThrowIfError(open(letters));  // none of which is above 3
  ThrowIfError(open(text));
  ThrowIfError(open(wide.substr(0, 16)));  // too few to tell
}

}  // namespace
}  // namespace keel::trainer
