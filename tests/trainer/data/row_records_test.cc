// Records are the same from memory and from shards, in however many parts; shards are made once,
// and again for whatever else they follow from.
#include "trainer/data/row_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "tests/trainer/data/tokens/scratch_folder.h"
#include "trainer/data/rows/ready_ids.h"

namespace keel::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Row n of {"n": n, "size": s}: s bytes of n; left out where n is a multiple of five.
class RowRecordsTest : public ::testing::Test {
 protected:
  RowRecordsTest() {
    rule_.settings = {{"test", 1}};
    rule_.make = [this](const Json& row, const RowContext& context,
                        WireWriter* record) -> Result<bool> {
      ++made_;
      KEEL_RETURN_IF_ERROR(
          context.notes.Look(row, {"n", "size"}, RowNotes::Form::kIds, context.where));
      KEEL_ASSIGN_OR_RETURN(const int64_t n, GetInt(row, "n", context.where));
      KEEL_ASSIGN_OR_RETURN(const int64_t size, GetInt(row, "size", context.where));
      if (n % 5 == 0) return false;
      record->Raw(std::string(static_cast<size_t>(size), static_cast<char>(n % 251)));
      return true;
    };
    cache_.folder = folder_.Path("cache");
    cache_.part_bytes = 2000;
  }
  static std::string Rows(int64_t from, int64_t to) {
    std::string rows;
    for (int64_t n = from; n < to; ++n) {
      const int64_t size = n % 100 == 77 ? (int64_t{3} << 20) : 1 + n % 60;
      rows += "{\"n\": " + std::to_string(n) + ", \"size\": " + std::to_string(size) + "}\n";
      if (n % 7 == 0) rows += "\n";
    }
    return rows;
  }
  Result<RowRecords> Open(const std::vector<std::string>& files, bool cached) {
    return OpenRecords(files, rule_, {}, cached ? cache_ : TokenCache{});
  }
  // Each record with the place of its row.
  static std::vector<std::pair<int64_t, std::vector<std::byte>>> All(const RowRecords& records) {
    std::vector<std::pair<int64_t, std::vector<std::byte>>> all;
    ThrowIfError(records.ForEach([&](int64_t index, int64_t row, std::span<const std::byte> bytes) {
      EXPECT_EQ(index, std::ssize(all));
      all.emplace_back(row, std::vector<std::byte>(bytes.begin(), bytes.end()));
      return Status::Ok();
    }));
    return all;
  }
  size_t Folders() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(cache_.folder),
                                             std::filesystem::directory_iterator()));
  }

  ScratchFolder folder_;
  RecordRule rule_;
  TokenCache cache_;
  std::atomic<int64_t> made_ = 0;
};

TEST_F(RowRecordsTest, MemoryAndShardsGiveTheSame) {
  const std::vector<std::string> files = {folder_.Write("a.jsonl", Rows(0, 333)),
                                          folder_.Write("b.jsonl", Rows(333, 500))};
  const RowRecords memory = ValueOrThrow(Open(files, false));
  cache_.threads = 3;
  const RowRecords shards = ValueOrThrow(Open(files, true));
  TokenCache beside;
  beside.spill = folder_.Path("beside");
  std::filesystem::create_directories(beside.spill);
  const RowRecords spilled = ValueOrThrow(OpenRecords(files, rule_, {}, beside));
  EXPECT_TRUE(std::filesystem::is_empty(beside.spill));  // it has no name
  for (const RowRecords* records : {&memory, &shards, &spilled}) {
    ASSERT_EQ(records->size(), 400);
    EXPECT_EQ(records->skipped_rows(), 100);
    EXPECT_TRUE(records->warnings().empty());
    const auto all = All(*records);
    ASSERT_EQ(all.size(), 400u);
    int64_t index = 0;
    for (int64_t n = 0; n < 500; ++n) {
      if (n % 5 == 0) continue;
      const auto& [row, bytes] = all[static_cast<size_t>(index)];
      const RowRecords::Record record = ValueOrThrow(records->Get(index++));
      ASSERT_EQ(row, n);
      ASSERT_EQ(record.row, n);
      ASSERT_EQ(record.bytes, bytes);
      ASSERT_EQ(std::ssize(bytes), n % 100 == 77 ? (int64_t{3} << 20) : 1 + n % 60);
      ASSERT_TRUE(std::all_of(bytes.begin(), bytes.end(),
                              [&](std::byte b) { return b == static_cast<std::byte>(n % 251); }));
    }
  }
}

TEST_F(RowRecordsTest, ShardsAreMadeOnceAndAgainForOtherSettingsAndFiles) {
  const std::string file = folder_.Write("a.jsonl", Rows(0, 200));
  ValueOrThrow(Open({file}, true));
  EXPECT_EQ(made_, 200);
  ValueOrThrow(Open({file}, true));
  EXPECT_EQ(made_, 200);
  EXPECT_EQ(Folders(), 1u);
  rule_.settings["test"] = 2;
  ValueOrThrow(Open({file}, true));
  EXPECT_EQ(made_, 400);
  folder_.Write("a.jsonl", Rows(0, 201));
  EXPECT_EQ(ValueOrThrow(Open({file}, true)).size(), 160);
  EXPECT_EQ(made_, 601);
  EXPECT_EQ(Folders(), 3u);
}

TEST_F(RowRecordsTest, ProcessesThatComeTogetherMakeThemOnce) {
  const std::string file = folder_.Write("a.jsonl", Rows(0, 2000));
  std::vector<std::thread> threads;
  std::atomic<int64_t> sizes = 0;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] { sizes += ValueOrThrow(Open({file}, true)).size(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sizes, 3 * 1600);
  EXPECT_EQ(made_, 2000);
}

TEST_F(RowRecordsTest, WhatIsWrongIsSaidWithItsLineWhereverItLies) {
  const std::string rows = Rows(0, 300);
  const auto lines = std::count(rows.begin(), rows.end(), '\n');
  const std::string file = folder_.Write("bad.jsonl", rows + "{\"n\": 1, \"other\": 2}\n");
  for (const bool cached : {false, true}) {
    const Status status = Open({file}, cached).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidData);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("bad.jsonl:" + std::to_string(lines + 1)), HasSubstr("size")));
    EXPECT_EQ(Open({folder_.Path("none.jsonl")}, cached).status().code(), StatusCode::kNotFound);
  }
}

TEST_F(RowRecordsTest, KeysThatNothingReadsAreNamed) {
  const std::string file = folder_.Write("a.jsonl", "{\"n\": 1, \"size\": 1, \"id\": 3}\n");
  for (int start = 0; start < 3; ++start) {
    const RowRecords records = ValueOrThrow(Open({file}, start > 0));
    ASSERT_EQ(records.warnings().size(), 1u);
    EXPECT_THAT(records.warnings()[0], HasSubstr("id (1)"));
  }
}

TEST_F(RowRecordsTest, ADamagedShardIsNamed) {
  const std::string file = folder_.Write("a.jsonl", Rows(0, 60));
  ValueOrThrow(Open({file}, true));
  const auto made =
      std::filesystem::directory_iterator(cache_.folder)->path() / "part-00000.tokens";
  const std::string name = std::filesystem::relative(made, folder_.path()).string();
  std::string bytes = folder_.Read(name);
  bytes[5000] = static_cast<char>(bytes[5000] ^ 1);
  folder_.Write(name, bytes);
  const auto records = Open({file}, true);
  const Status status = records.ok() ? records->Get(30).status() : records.status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("part-00000.tokens"));
}

TEST_F(RowRecordsTest, ASplitIsTheSameWhereverTheyLie) {
  const std::vector<std::string> files = {folder_.Write("a.jsonl", Rows(0, 70)),
                                          folder_.Write("b.jsonl", Rows(70, 300))};
  std::vector<std::vector<int64_t>> found[2];
  for (const bool cached : {false, true}) {
    ChosenRecords stay(ValueOrThrow(Open(files, cached)));
    EXPECT_EQ(stay.skipped_rows(), 60);
    const ChosenRecords apart = ValueOrThrow(stay.SplitOff(0.25, 3, 9));
    const ChosenRecords more = ValueOrThrow(stay.SplitOff(0.5, 4, 9));
    EXPECT_EQ(stay.skipped_rows() + apart.skipped_rows() + more.skipped_rows(), 60);
    std::vector<int64_t> all;
    for (const ChosenRecords* set :
         std::initializer_list<const ChosenRecords*>{&stay, &apart, &more}) {
      std::vector<int64_t>& rows = found[cached].emplace_back();
      ThrowIfError(set->ForEach([&](int64_t row, std::span<const std::byte>) {
        EXPECT_EQ(ValueOrThrow(set->Get(std::ssize(rows))).row, row);
        rows.push_back(row);
        return Status::Ok();
      }));
      EXPECT_GT(rows.size(), 20u);
      EXPECT_EQ(std::ssize(rows), set->size());
      EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
      all.insert(all.end(), rows.begin(), rows.end());
    }
    std::sort(all.begin(), all.end());
    EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
    EXPECT_EQ(all.size(), 240u);
  }
  EXPECT_EQ(found[0], found[1]);
}

}  // namespace
}  // namespace keel::trainer
