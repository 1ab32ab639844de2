// The simulated disk itself: what a power cut may leave is exactly what its crash model says.
#include "tests/checkpoint/support/sim_file_system.h"

#include <gmock/gmock.h>

#include <cerrno>
#include <set>

namespace keel::checkpoint::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;
using Survives = SimFileSystem::Survives;

constexpr auto kNoReplace = FileSystem::RenameMode::kNoReplace;

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::unique_ptr<File> Make(SimFileSystem& disk, const std::string& path, const std::string& text) {
  std::unique_ptr<File> file = ValueOrThrow(disk.Create(path, {}));
  ThrowIfError(file->WriteAt(0, Bytes(text)));
  return file;
}

// "a b/ b/c": what is there.
std::string Names(const SimFileSystem& disk) {
  std::string text;
  for (const std::string& path : disk.AllFiles()) text += (text.empty() ? "" : " ") + path;
  return text;
}

// All disks, as text, that a power cut may leave.
std::set<std::string> AllCuts(const SimFileSystem& disk,
                              const std::function<std::string(const SimFileSystem&)>& say) {
  std::set<std::string> found;
  EXPECT_TRUE(disk.ForEachPowerCut(
      {}, [&](std::unique_ptr<SimFileSystem> after) { found.insert(say(*after)); }));
  return found;
}

TEST(SimFileSystem, WhatIsSyncedStays) {
  SimFileSystem disk;
  ThrowIfError(Make(disk, "a", "text")->Sync());
  ThrowIfError(disk.SyncDirectory("."));
  EXPECT_THAT(AllCuts(disk, [](const SimFileSystem& d) { return d.Content("a"); }),
              UnorderedElementsAre("text"));
}

TEST(SimFileSystem, ANameIsNotTheContentAndTheContentIsNotTheName) {
  SimFileSystem disk;
  const auto file = Make(disk, "a", "text");
  ThrowIfError(file->Sync());
  EXPECT_THAT(AllCuts(disk, Names), UnorderedElementsAre("", "a"));

  SimFileSystem other;
  const auto unsynced = Make(other, "a", "text");
  ThrowIfError(other.SyncDirectory("."));
  EXPECT_THAT(AllCuts(other, [](const SimFileSystem& d) { return d.Content("a"); }),
              UnorderedElementsAre("", "text", std::string(4, '\0')));
}

TEST(SimFileSystem, PagesSurviveOneByOne) {
  SimFileSystem disk;
  const std::string before = std::string(4096, 'a') + std::string(4096, 'b');
  const auto file = Make(disk, "f", before);
  ThrowIfError(file->Sync());
  ThrowIfError(disk.SyncDirectory("."));
  ThrowIfError(file->WriteAt(0, Bytes(std::string(4096, 'A') + std::string(4096, 'B'))));
  const auto ends = [](const SimFileSystem& d) {
    const std::string text = d.Content("f");
    return std::string{text.at(0), text.at(4096)};
  };
  EXPECT_THAT(AllCuts(disk, ends), UnorderedElementsAre("ab", "Ab", "aB", "AB"));
  // Torn at a sector, in some of the random ones, and nowhere else.
  std::set<size_t> borders;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::string text = disk.AfterPowerCut(Survives::kSubset, seed)->Content("f");
    for (size_t i = 1; i < 4096; ++i) {
      if (text[i] != text[i - 1]) borders.insert(i);
    }
  }
  EXPECT_THAT(borders, ElementsAre(512, 1024, 1536, 2048, 2560, 3072, 3584));
}

TEST(SimFileSystem, ASizeMayAdvanceWithoutItsData) {
  SimFileSystem disk;
  const auto file = Make(disk, "f", "old");
  ThrowIfError(file->Sync());
  ThrowIfError(disk.SyncDirectory("."));
  ThrowIfError(file->WriteAt(0, Bytes("longer")));
  EXPECT_THAT(AllCuts(disk, [](const SimFileSystem& d) { return d.Content("f"); }),
              UnorderedElementsAre("old", std::string("old\0\0\0", 6), "lon", "longer"));
  ThrowIfError(file->Truncate(1));
  EXPECT_THAT(AllCuts(disk, [](const SimFileSystem& d) { return d.Content("f"); }),
              UnorderedElementsAre("old", "o", std::string("l\0\0", 3), "l"));
}

TEST(SimFileSystem, ARenameIsAllOrNothingAndTakesNoOrder) {
  SimFileSystem disk;
  ThrowIfError(disk.MakeDirectory("t"));
  ThrowIfError(Make(disk, "t/f", "x")->Sync());
  ThrowIfError(disk.SyncDirectory("t"));
  ThrowIfError(disk.SyncDirectory("."));
  ThrowIfError(disk.Rename("t", "final", kNoReplace));
  ThrowIfError(Make(disk, "later", "y")->Sync());
  EXPECT_THAT(AllCuts(disk, Names),
              UnorderedElementsAre("t/f", "final/f", "later t/f", "final/f later"));
}

TEST(SimFileSystem, ARenamePersistsBeforeTheDataOfTheFile) {
  SimFileSystem disk;
  ThrowIfError(Make(disk, "tracker", "10")->Sync());
  ThrowIfError(disk.SyncDirectory("."));
  const auto file = Make(disk, "tracker.tmp", "20");  // not synced: the mistake
  ThrowIfError(disk.Rename("tracker.tmp", "tracker", FileSystem::RenameMode::kReplace));
  EXPECT_THAT(AllCuts(disk, [](const SimFileSystem& d) { return d.Content("tracker"); }),
              ::testing::IsSupersetOf({std::string("10"), std::string("20"), std::string()}));
}

TEST(SimFileSystem, AFailedSyncLosesItsPagesAndTheNextOneLies) {
  SimFileSystem disk;
  const auto file = Make(disk, "f", "old");
  ThrowIfError(file->Sync());
  ThrowIfError(disk.SyncDirectory("."));
  ThrowIfError(file->WriteAt(0, Bytes("new")));
  disk.SetFault([](int64_t, std::string_view operation, std::string_view path) {
    return operation == "fsync" ? Status::FromErrno(EIO, operation, path) : Status::Ok();
  });
  EXPECT_FALSE(file->Sync().ok());
  disk.SetFault({});
  // The file itself is dead, as the interface promises; another opening knows nothing of it.
  EXPECT_FALSE(file->Sync().ok());
  EXPECT_FALSE(file->WriteAt(0, Bytes("more")).ok());
  EXPECT_FALSE(file->Close().ok());
  const auto again = ValueOrThrow(disk.Open("f"));
  EXPECT_EQ(again->Sync().ToString(), "ok");
  EXPECT_EQ(disk.Content("f"), "new");  // from the cache
  EXPECT_THAT(AllCuts(disk, [](const SimFileSystem& d) { return d.Content("f"); }),
              UnorderedElementsAre("old"));
  disk.DropCaches();
  EXPECT_EQ(disk.Content("f"), "old");
}

TEST(SimFileSystem, AFailedWriteMayBeShort) {
  SimFileSystem disk;
  const auto file = Make(disk, "f", "");
  disk.SetShortWrites(true);
  disk.SetFault([](int64_t, std::string_view operation, std::string_view path) {
    return operation == "write" ? Status::FromErrno(ENOSPC, operation, path) : Status::Ok();
  });
  EXPECT_EQ(file->WriteAt(0, Bytes("abcd")).code(), StatusCode::kNoSpace);
  EXPECT_EQ(disk.Content("f"), "ab");
}

TEST(SimFileSystem, WhatNobodyLooksAtIsNotEnumerated) {
  SimFileSystem disk;
  ThrowIfError(disk.MakeDirectory("scratch"));
  ThrowIfError(disk.SyncDirectory("."));
  for (int i = 0; i < 20; ++i) Make(disk, "scratch/" + std::to_string(i), "x");
  Make(disk, "f", "");
  const auto count = [&](const SimFileSystem::PowerCuts& cuts, bool all) {
    int64_t disks = 0;
    EXPECT_EQ(disk.ForEachPowerCut(cuts, [&](const auto&) { ++disks; }), all);
    return disks;
  };
  SimFileSystem::PowerCuts cuts;
  cuts.random = 3;
  // 1 + 20 names, and size and page of each of the 20.
  EXPECT_EQ(count(cuts, false), 2 + 2 * 61 + 3);
  cuts.ignored = [](std::string_view path) { return path == "scratch"; };
  EXPECT_EQ(count(cuts, true), 2 + 3);
  // The same directory under another name counts.
  ThrowIfError(disk.Rename("scratch", "final", kNoReplace));
  EXPECT_EQ(count(cuts, false), 2 + 2 * 62 + 3);
}

TEST(SimFileSystem, OneHolderOfALock) {
  SimFileSystem disk;
  auto held = ValueOrThrow(disk.Lock("lock", "the first"));
  const Status refused = disk.Mount()->Lock("lock", "the second").status();
  EXPECT_EQ(refused.code(), StatusCode::kBusy);
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("held by the first"));
  EXPECT_EQ(disk.Content("lock"), "the first");
  held.reset();
  EXPECT_TRUE(disk.Lock("lock", "the second").ok());
}

TEST(SimFileSystem, AMountHasItsOwnFaults) {
  SimFileSystem disk;
  const auto mount = disk.Mount();
  disk.SetFault(
      [](int64_t, std::string_view, std::string_view) { return Status(StatusCode::kIo, "off"); });
  EXPECT_EQ(mount->MakeDirectory("d").ToString(), "ok");
  EXPECT_EQ(mount->calls(), 1);
  EXPECT_FALSE(disk.Stat("d").ok());
  disk.SetFault({});
  EXPECT_TRUE(disk.Stat("d").ok());
  EXPECT_EQ(disk.calls(), 2);
}

TEST(SimFileSystem, ADigestIsOfNamesAndContents) {
  SimFileSystem a;
  Make(a, "f", "x");
  ThrowIfError(a.MakeDirectory("d"));
  Make(a, "d/g", "y");
  EXPECT_EQ(a.Digest(), a.Clone()->Digest());
  const auto b = a.Clone();
  b->SetContent("d/g", "z");
  EXPECT_NE(a.Digest(), b->Digest());
  const auto ignored = [](std::string_view path) { return path == "d"; };
  EXPECT_EQ(a.Digest(".", ignored), b->Digest(".", ignored));
  EXPECT_NE(a.Digest("d"), b->Digest("d"));
}

}  // namespace
}  // namespace keel::checkpoint::testing
