#include "common/files/spilled_bytes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

namespace keel {
namespace {

namespace fs = std::filesystem;

class SpilledBytesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("keel-spilled-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  // Byte i of all that is appended.
  static std::byte At(int64_t i) { return static_cast<std::byte>((i * 7 + i / 251) % 253); }
  static void Append(int64_t count, SpilledBytes* to) {
    std::vector<std::byte> bytes;
    for (int64_t i = 0; i < count; ++i) bytes.push_back(At(to->size() + i));
    ThrowIfError(to->Append(bytes));
  }
  static void ExpectAll(const SpilledBytes& spilled, int64_t begin, int64_t end) {
    std::vector<std::byte> bytes(static_cast<size_t>(end - begin));
    ThrowIfError(spilled.Read(begin, bytes));
    for (int64_t i = begin; i < end; ++i)
      ASSERT_EQ(bytes[static_cast<size_t>(i - begin)], At(i)) << "byte " << i;
  }
  fs::path folder_;
};

TEST_F(SpilledBytesTest, WhatIsAppendedIsReadWhereverItLies) {
  SpilledBytes spilled(folder_);
  const auto held = static_cast<int64_t>(SpilledBytes::kHeld);
  // Through the end of what memory holds, exactly up to it, and more than it at once.
  for (const int64_t count : {int64_t{10}, held - 11, int64_t{1}, int64_t{100}, 2 * held, held - 1})
    Append(count, &spilled);
  EXPECT_EQ(spilled.size(), 4 * held + 99);
  ExpectAll(spilled, 0, spilled.size());
  for (int64_t begin = 0; begin < spilled.size(); begin += held / 3)
    ExpectAll(spilled, begin, std::min(begin + held / 2, spilled.size()));
  ThrowIfError(spilled.Read(spilled.size(), {}));
  EXPECT_TRUE(fs::is_empty(folder_));  // it has no name
  ThrowIfError(spilled.Clear());
  EXPECT_EQ(spilled.size(), 0);
  Append(held + 5, &spilled);
  ExpectAll(spilled, 0, held + 5);
}

TEST_F(SpilledBytesTest, AFolderIsNeededOnceMemoryHoldsNoMore) {
  SpilledBytes spilled(folder_ / "none");
  Append(static_cast<int64_t>(SpilledBytes::kHeld) - 1, &spilled);
  ExpectAll(spilled, 0, spilled.size());
  const std::byte one{};
  const Status status = spilled.Append({&one, 1});
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find((folder_ / "none").string()), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace keel
