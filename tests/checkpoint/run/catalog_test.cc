// What a run directory is found to hold, once and again.
#include "checkpoint/run/catalog.h"

#include <gmock/gmock.h>

#include <cerrno>
#include <filesystem>

#include "checkpoint/format/names.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

class CatalogTest : public ::testing::Test {
 protected:
  void Save(int64_t step, const std::string& run = "test-run") {
    CheckpointOptions options = SmallOptions();
    options.run_id = run;
    ThrowIfError(SaveOn(disk_, cut_, step, options));
  }
  static std::string ManifestOf(int64_t step) {
    return StepDirectory(step) + "/" + std::string(kManifestName);
  }
  // What `catalog` lists is what one without a memory lists; the steps of it.
  std::vector<int64_t> Steps(Catalog& catalog) {
    const std::vector<CatalogEntry> entries = ValueOrThrow(catalog.List(disk_));
    const std::vector<CatalogEntry> fresh = ValueOrThrow(ListCheckpoints(disk_));
    std::vector<int64_t> steps;
    EXPECT_EQ(entries.size(), fresh.size());
    for (size_t i = 0; i < std::min(entries.size(), fresh.size()); ++i) {
      EXPECT_EQ(entries[i].directory, fresh[i].directory);
      EXPECT_EQ(entries[i].manifest.has_value(), fresh[i].manifest.has_value());
      EXPECT_EQ(entries[i].status.ToString(), fresh[i].status.ToString());
      if (!entries[i].manifest || !fresh[i].manifest) continue;
      EXPECT_EQ(entries[i].manifest->Serialize(), fresh[i].manifest->Serialize());
      steps.push_back(entries[i].step);
    }
    return steps;
  }
  // How many manifests one more look opens.
  int64_t Opened(Catalog& catalog) {
    int64_t opened = 0;
    disk_.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
      if (operation == "open" && path.ends_with(kManifestName)) ++opened;
      return Status::Ok();
    });
    EXPECT_TRUE(catalog.List(disk_).ok());
    disk_.SetFault(nullptr);
    return opened;
  }

  SimFileSystem disk_;
  Cut cut_{{1}, 1, ModelSize::kTiny};
  Catalog catalog_;
};

TEST_F(CatalogTest, ReadsAManifestOnce) {
  for (const int64_t step : {1, 2, 3}) Save(step);
  EXPECT_THAT(Steps(catalog_), ElementsAre(3, 2, 1));
  EXPECT_EQ(Opened(catalog_), 0);
  Save(4);
  EXPECT_EQ(Opened(catalog_), 1);
  EXPECT_THAT(Steps(catalog_), ElementsAre(4, 3, 2, 1));
}

TEST_F(CatalogTest, SeesWhatHasTakenAName) {
  Save(1);
  Save(2);
  EXPECT_THAT(Steps(catalog_), ElementsAre(2, 1));
  Save(1);  // once more: now it is the newest commit, with a manifest of the same size
  EXPECT_THAT(Steps(catalog_), ElementsAre(1, 2));
  EXPECT_EQ(Opened(catalog_), 0);
}

TEST(CatalogOnDisk, ALinkIsListedAndNotFollowed) {
  const TempDir dir;
  const auto fs = dir.Open();
  Cut cut({1}, 1, ModelSize::kTiny);
  for (const int64_t step : {1, 2}) ThrowIfError(SaveOn(*fs, cut, step, SmallOptions()));
  std::filesystem::rename(dir / "global_step_2", dir / "elsewhere");
  std::filesystem::create_directory_symlink(dir / "elsewhere", dir / "global_step_2");
  const std::vector<CatalogEntry> entries = ValueOrThrow(ListCheckpoints(*fs));
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].step, 1);
  EXPECT_TRUE(entries[0].manifest.has_value());
  EXPECT_EQ(entries[1].step, 2);
  EXPECT_FALSE(entries[1].manifest.has_value());
  EXPECT_THAT(entries[1].status.message(), HasSubstr("symbolic link"));
  // Nobody falls back past it unasked, and nobody writes through it.
  const auto loaded = LoadFrom(*fs, cut);
  EXPECT_EQ(loaded.status().code(), StatusCode::kConfig);
  EXPECT_THAT(loaded.status().message(), HasSubstr("global_step_2"));
  ThrowIfError(SaveOn(*fs, cut, 2, SmallOptions()));
  EXPECT_FALSE(std::filesystem::is_symlink(dir / "global_step_2"));
  EXPECT_EQ((*LoadFrom(*fs, cut))->step, 2);
  EXPECT_TRUE(std::filesystem::exists(dir / "elsewhere/manifest.json"));
  // An older one that was moved away is in nobody's way.
  std::filesystem::rename(dir / "global_step_1", dir / "older");
  std::filesystem::create_directory_symlink(dir / "older", dir / "global_step_1");
  EXPECT_EQ((*LoadFrom(*fs, cut))->step, 2);
}

TEST_F(CatalogTest, ForgetsWhatIsGone) {
  Save(1);
  Save(2);
  EXPECT_THAT(Steps(catalog_), ElementsAre(2, 1));
  ThrowIfError(RemoveTree(disk_, StepDirectory(2)));
  EXPECT_THAT(Steps(catalog_), ElementsAre(1));
  Save(2);
  EXPECT_EQ(Opened(catalog_), 1);
  EXPECT_THAT(Steps(catalog_), ElementsAre(2, 1));
}

TEST_F(CatalogTest, LooksAgainAtWhatCouldNotBeRead) {
  Save(1);
  Save(2);
  const std::string whole = disk_.Content(ManifestOf(2));
  disk_.SetContent(ManifestOf(2), whole.substr(0, whole.size() / 2));
  EXPECT_THAT(Steps(catalog_), ElementsAre(1));
  disk_.SetContent(ManifestOf(2), whole);
  EXPECT_THAT(Steps(catalog_), ElementsAre(2, 1));
}

TEST_F(CatalogTest, AnErrorOfTheDiskIsNotRemembered) {
  Save(1);
  disk_.SetFault([](int64_t, std::string_view operation, std::string_view path) {
    const bool manifest = path.ends_with(kManifestName);
    return manifest && (operation == "open" || operation == "stat")
               ? Status(StatusCode::kIo, "the disk is away")
               : Status::Ok();
  });
  const std::vector<CatalogEntry> entries = ValueOrThrow(catalog_.List(disk_));
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_FALSE(entries[0].manifest.has_value());
  const Status read = CheckAllRead(disk_, entries);
  EXPECT_EQ(read.code(), StatusCode::kIo);
  EXPECT_THAT(read.message(), HasSubstr("global_step_1"));
  EXPECT_FALSE(IsUnusable(entries[0].status));
  disk_.SetFault(nullptr);
  EXPECT_THAT(Steps(catalog_), ElementsAre(1));
}

// A directory of another user, a bad sector: saves go on, and the newest of them stays the newest
// when the other one can be read again.
TEST_F(CatalogTest, AManifestThatCannotBeReadStopsNoSave) {
  for (const int64_t unread : {1, 3}) {  // the oldest, the newest
    disk_.SetFault(nullptr);
    for (const int64_t step : {1, 2, 3}) Save(step);
    disk_.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
      const bool refused = path == ManifestOf(unread) && operation == "open";
      return refused ? Status::FromErrno(EACCES, operation, path) : Status::Ok();
    });
    Save(4);
    Save(5);
    disk_.SetFault(nullptr);
    EXPECT_THAT(Steps(catalog_), ElementsAre(5, 4, 3, 2, 1));
    for (const int64_t step : {1, 2, 3, 4, 5}) ThrowIfError(RemoveTree(disk_, StepDirectory(step)));
  }
}

TEST_F(CatalogTest, RetentionNeitherCountsNorRemovesWhatCannotBeRead) {
  for (const int64_t step : {1, 2, 3}) Save(step);
  disk_.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
    const bool refused = path == ManifestOf(3) && operation == "open";
    return refused ? Status::FromErrno(EIO, operation, path) : Status::Ok();
  });
  CheckpointOptions options = SmallOptions();
  options.max_ckpts_to_keep = 1;
  ThrowIfError(SaveOn(disk_, cut_, 4, options));
  disk_.SetFault(nullptr);
  EXPECT_THAT(Steps(catalog_), ElementsAre(4, 3));
}

TEST(Sequence, AboveAllThatCanBeReadAndThatCannot) {
  const auto entry = [](int64_t sequence) {
    CatalogEntry one;
    one.manifest.emplace().sequence = sequence;
    return one;
  };
  CatalogEntry unread, damaged;
  unread.status = Status(StatusCode::kIo, "EACCES");
  damaged.status = Status(StatusCode::kDataLoss, "cut off");
  EXPECT_EQ(ValueOrThrow(NextSequence({})), 1);
  const std::vector<CatalogEntry> read = {entry(3), entry(7), damaged};
  EXPECT_EQ(ValueOrThrow(NextSequence(read)), 8);
  EXPECT_EQ(ValueOrThrow(NextSequence(read, 20)), 21);
  const std::vector<CatalogEntry> some = {entry(3), unread, entry(7)};
  EXPECT_EQ(NewestSequence(some), 7);
  EXPECT_GT(ValueOrThrow(NextSequence(some)), 1'000'000'000);
  EXPECT_EQ(ValueOrThrow(NextSequence(some, 20)), 21);  // it is below that
  const std::vector<CatalogEntry> last = {entry(Manifest::kMaxNumber)};
  EXPECT_EQ(NextSequence(last).status().code(), StatusCode::kInvalidData);
  const std::vector<CatalogEntry> nearly = {entry(Manifest::kMaxNumber - 1), unread};
  EXPECT_EQ(ValueOrThrow(NextSequence(nearly)), Manifest::kMaxNumber);
}

}  // namespace
}  // namespace keel::checkpoint
