// Every kind of damage to a checkpoint is found before live memory changes, is named, and makes the
// loader fall back to the older one.
#include <gmock/gmock.h>

#include <random>

#include "checkpoint/checkpointer.h"
#include "checkpoint/format/chunk_digest.h"
#include "checkpoint/format/index.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/read/verifier.h"
#include "checkpoint/run/catalog.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"
#include "tests/support/nightly.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

class Damage : public ::testing::Test {
 protected:
  Damage()
      : cut_({2, true, true, true}, 1), older_(MakeTrainingState(1)), newer_(MakeTrainingState(2)) {
    cut_.Fill(older_);
    ThrowIfError(SaveOn(disk_, cut_, 10, SmallOptions()));
    cut_.Fill(newer_);
    ThrowIfError(SaveOn(disk_, cut_, 20, SmallOptions()));
    for (const std::string& path : disk_.AllFiles()) {
      if (path.starts_with("global_step_20/")) files_.push_back(path);
    }
  }

  // The damaged step is refused by name and memory stays as it was; without a name the older one is
  // loaded. Returns the reason.
  std::string ExpectRefused(SimFileSystem& disk) {
    cut_.Clear(0x77);
    const auto forced =
        LoadFrom(disk, cut_, [](LoadRequest& r) { r.resume_path = "global_step_20"; });
    EXPECT_FALSE(forced.ok());
    for (const auto* parts : {&cut_.model, &cut_.optimizer}) {
      for (const RankPart& part : *parts) {
        for (const auto& block : part.memory) {
          EXPECT_TRUE(std::all_of(block->begin(), block->end(),
                                  [](std::byte b) { return b == std::byte{0x77}; }));
        }
      }
    }
    const auto loaded = LoadFrom(disk, cut_);
    EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
    if (!loaded.ok() || !loaded->has_value()) return "";
    EXPECT_EQ((*loaded)->step, 10);
    EXPECT_EQ(cut_.FirstDifference(older_), "");
    EXPECT_EQ((*loaded)->skipped.size(), 1u);
    return (*loaded)->skipped.empty() ? "" : (*loaded)->skipped[0].reason;
  }

  Cut cut_;
  const TrainingState older_;
  const TrainingState newer_;
  SimFileSystem disk_;
  std::vector<std::string> files_;
};

TEST_F(Damage, EveryFlippedBitIsFoundAndPlaced) {
  std::mt19937_64 random(42);
  for (int round = 0; round < 1000; ++round) {
    const auto disk = disk_.Clone();
    const std::string& path = files_[random() % files_.size()];
    std::string content = disk->Content(path);
    const size_t at = random() % content.size();
    content[at] = static_cast<char>(content[at] ^ (1 << (random() % 8)));
    disk->SetContent(path, content);
    const std::string reason = ExpectRefused(*disk);
    ASSERT_THAT(reason, HasSubstr(path)) << "byte " << at;
    if (path.ends_with(".safetensors")) {
      ASSERT_THAT(reason,
                  AllOf(HasSubstr("chunk " + std::to_string(at / 4096)), HasSubstr("step 20")))
          << reason;
      ASSERT_THAT(reason, HasSubstr(at < 4096 ? "its header" : "tensor"));
    }
    if (HasFailure()) FAIL() << path << " byte " << at << ": " << reason;
  }
}

TEST_F(Damage, EveryByteOfTheManifestCounts) {
  const std::string path = "global_step_20/manifest.json";
  const std::string content = disk_.Content(path);
  for (size_t at = 0; at < content.size(); ++at) {
    std::string damaged = content;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_FALSE(Manifest::Parse(damaged, path).ok()) << "byte " << at;
    EXPECT_FALSE(Manifest::Parse(content.substr(0, at), path).ok()) << "cut at " << at;
  }
}

TEST_F(Damage, StructureOfEachFile) {
  for (const std::string& path : files_) {
    const std::string content = disk_.Content(path);
    std::vector<std::pair<std::string, std::string>> cases = {
        {"cut by a byte", content.substr(0, content.size() - 1)},
        {"cut to half", content.substr(0, content.size() / 2)},
        {"emptied", ""},
        {"longer by a byte", content + "x"},
        {"zero page", std::string(content)},
        {"all zero", std::string(content.size(), '\0')}};
    const size_t page = content.size() > 8192 ? 4096 : 0;
    cases[4].second.replace(page, std::min<size_t>(4096, content.size() - page),
                            std::string(std::min<size_t>(4096, content.size() - page), '\0'));
    for (const auto& [what, damaged] : cases) {
      SCOPED_TRACE(path + " " + what);
      const auto disk = disk_.Clone();
      disk->SetContent(path, damaged);
      EXPECT_THAT(ExpectRefused(*disk), HasSubstr(path));
    }
    SCOPED_TRACE(path + " deleted");
    const auto disk = disk_.Clone();
    disk->Erase(path);
    EXPECT_THAT(ExpectRefused(*disk), HasSubstr(path));
  }
}

TEST_F(Damage, ForeignPartsAreRefused) {
  // Each file of step 20 replaced by the same file of step 10: valid in itself, of the wrong step.
  for (const std::string& path : files_) {
    if (path.ends_with("manifest.json")) continue;  // see below
    SCOPED_TRACE(path);
    const auto disk = disk_.Clone();
    const std::string other = "global_step_10/" + path.substr(path.find('/') + 1);
    if (disk->Content(other) == disk->Content(path))
      continue;  // config.json is the same at every step
    disk->SetContent(path, disk->Content(other));
    ExpectRefused(*disk);
  }
}

// Whoever has renamed or copied it may still have all of it, and the older step would lose work.
TEST_F(Damage, AStepUnderAnotherNameStopsTheLoad) {
  const auto expect_stop = [&](SimFileSystem& disk, const std::string& directory, int64_t step) {
    for (const char* forced : {"", directory.c_str()}) {
      cut_.Clear(0x77);
      const auto loaded =
          LoadFrom(disk, cut_, [&](LoadRequest& request) { request.resume_path = forced; });
      ASSERT_FALSE(loaded.ok());
      EXPECT_EQ(loaded.status().code(),
                *forced == '\0' ? StatusCode::kConfig : StatusCode::kInvalidData);
      EXPECT_THAT(loaded.status().message(),
                  AllOf(HasSubstr(directory + "/manifest.json: is the manifest of step " +
                                  std::to_string(step) + ","),
                        HasSubstr("rename it back to global_step_" + std::to_string(step))));
      EXPECT_EQ((*cut_.model[0].memory[0])[0], std::byte{0x77});
    }
    EXPECT_EQ(VerifyCheckpoint(disk, directory, 1).unproven, StatusCode::kInvalidData);
    for (const CatalogEntry& entry : ValueOrThrow(ListCheckpoints(disk)))
      EXPECT_EQ(entry.manifest.has_value(), entry.directory != directory);
  };
  const auto renamed = disk_.Clone();
  ThrowIfError(
      renamed->Rename("global_step_20", "global_step_30", FileSystem::RenameMode::kNoReplace));
  expect_stop(*renamed, "global_step_30", 20);
  ThrowIfError(
      renamed->Rename("global_step_30", "global_step_20", FileSystem::RenameMode::kNoReplace));
  const auto loaded = LoadFrom(*renamed, cut_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ((*loaded)->step, 20);

  const auto exchanged = disk_.Clone();
  exchanged->SetContent("global_step_20/manifest.json",
                        exchanged->Content("global_step_10/manifest.json"));
  expect_stop(*exchanged, "global_step_20", 10);

  // Of several, all are named at once.
  const auto both = disk_.Clone();
  for (const auto& [from, to] : {std::pair{"global_step_20", "global_step_30"},
                                 std::pair{"global_step_10", "global_step_40"}})
    ThrowIfError(both->Rename(from, to, FileSystem::RenameMode::kNoReplace));
  EXPECT_THAT(LoadFrom(*both, cut_).status().message(),
              AllOf(HasSubstr("global_step_40/manifest.json: is the manifest of step 10"),
                    HasSubstr("; neither are global_step_30 read")));
}

// T15: the same step of another run, with the same shapes; only the values differ.
TEST_F(Damage, PartsOfAnotherRunAreRefused) {
  SimFileSystem other;
  CheckpointOptions options = SmallOptions();
  options.run_id = "another-run";
  cut_.Fill(MakeTrainingState(3));
  ThrowIfError(SaveOn(other, cut_, 20, options));
  int substituted = 0;
  for (const std::string& path : files_) {
    SCOPED_TRACE(path);
    if (other.Content(path) == disk_.Content(path)) continue;
    ++substituted;
    const auto disk = disk_.Clone();
    disk->SetContent(path, other.Content(path));
    if (path.ends_with("manifest.json")) {
      // By it the whole directory is another run's.
      const auto loaded = LoadFrom(*disk, cut_);
      ASSERT_TRUE(loaded.ok());
      EXPECT_EQ((*loaded)->step, 10);
      continue;
    }
    EXPECT_THAT(ExpectRefused(*disk), HasSubstr(path));
  }
  EXPECT_GT(substituted, 5);
}

// T14: any two files of a step in each other's place, and one in the place of another.
TEST_F(Damage, ExchangedFilesAreRefused) {
  for (const std::string& a : files_) {
    for (const std::string& b : files_) {
      if (a >= b || disk_.Content(a) == disk_.Content(b)) continue;
      SCOPED_TRACE(a + " and " + b);
      for (const bool both : {true, false}) {
        const auto disk = disk_.Clone();
        disk->SetContent(b, disk_.Content(a));
        if (both) disk->SetContent(a, disk_.Content(b));
        EXPECT_THAT(ExpectRefused(*disk), ::testing::AnyOf(HasSubstr(a), HasSubstr(b)));
      }
    }
  }
}

// An index that gives two tensors each other's place, with a manifest that fits it: all digests
// agree, and only the headers of the files know better.
TEST_F(Damage, AnIndexThatExchangesTensorsIsRefused) {
  Manifest manifest = ValueOrThrow(ReadManifest(disk_, "global_step_20"));
  const Index index =
      ValueOrThrow(Index::Parse(disk_.Content("global_step_20/index.bin"), "index.bin"));
  int exchanged = 0;
  const auto exchange = [&](int64_t a, int64_t b) {
    IndexBuilder other(index.chunk_bytes());
    for (int f = 0; f < index.files(); ++f) {
      const IndexFile file = index.file(f);
      const std::vector<Digest128> chunks = index.chunks(file);
      other.AddFile(std::string(file.path), {file.size, chunks, DigestOfChunks(file.size, chunks)});
    }
    for (int64_t t = 0; t < index.tensors(); ++t) {
      const IndexTensor tensor = index.tensor(t);
      for (int64_t i = tensor.first_box; i < tensor.first_box + tensor.box_count; ++i) {
        const IndexBox box = index.box(i);
        other.AddBox(index.scope_name(tensor.scope), tensor.Info(), box.box,
                     index.file(box.file).path,
                     index.box_begin(i == a   ? b
                                     : i == b ? a
                                              : i));
      }
    }
    const auto disk = disk_.Clone();
    const std::string bytes = ValueOrThrow(other.Build());
    disk->SetContent("global_step_20/index.bin", bytes);
    manifest.index_digest = DigestOfText(bytes, manifest.chunk_bytes).whole;
    disk->SetContent("global_step_20/manifest.json", manifest.Serialize());
    const std::string file(index.file(index.box(a).file).path);
    EXPECT_THAT(ExpectRefused(*disk), AllOf(HasSubstr(file), HasSubstr("where the index says")));
    EXPECT_THAT(VerifyCheckpoint(*disk, "global_step_20", 1).problems,
                ElementsAre(AllOf(HasSubstr(file), HasSubstr("where the index says"))));
    ++exchanged;
  };
  const auto tensor_of = [&](int64_t box) {
    int64_t t = 0;
    while (index.tensor(t).first_box + index.tensor(t).box_count <= box) ++t;
    return index.tensor(t);
  };
  for (int64_t a = 0; a < index.boxes(); ++a) {
    for (int64_t b = a + 1; b < index.boxes() && exchanged < 10; ++b) {
      const IndexBox x = index.box(a), y = index.box(b);
      if (x.file == y.file && x.bytes == y.bytes && x.bytes > 0 &&
          tensor_of(a).dtype == tensor_of(b).dtype)
        exchange(a, b);
    }
  }
  EXPECT_GE(exchanged, 3);
}

// What is there besides is none of ours, and in nobody's way.
TEST_F(Damage, AFileMoreIsNoDamage) {
  disk_.SetContent("global_step_20/actor/model/rank_00000 (copy).safetensors",
                   disk_.Content("global_step_20/actor/model/rank_00000.safetensors"));
  disk_.SetContent("global_step_20/notes.txt", "keep this one");
  const auto loaded = LoadFrom(disk_, cut_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ((*loaded)->step, 20);
  EXPECT_EQ(cut_.FirstDifference(newer_), "");
  EXPECT_TRUE((*loaded)->skipped.empty());
}

// T13: and nothing that is whole is ever taken for damaged.
TEST_F(Damage, NoFalseAlarm) {
  const int loads = keel::testing::Nightly() ? 10'000 : 300;
  for (int i = 0; i < loads; ++i) {
    const auto loaded = LoadFrom(disk_, cut_);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    ASSERT_EQ((*loaded)->step, 20);
    ASSERT_TRUE((*loaded)->skipped.empty());
  }
  EXPECT_EQ(cut_.FirstDifference(newer_), "");
}

TEST_F(Damage, TheNewestOfSeveralThatIsWhole) {
  cut_.Fill(MakeTrainingState(3));
  ThrowIfError(SaveOn(disk_, cut_, 30, SmallOptions()));
  cut_.Fill(MakeTrainingState(4));
  ThrowIfError(SaveOn(disk_, cut_, 40, SmallOptions()));
  disk_.SetContent("global_step_40/manifest.json", "{}");
  disk_.Erase("global_step_30/actor/optimizer/rank_00001.safetensors");
  std::string index = disk_.Content("global_step_20/index.bin");
  index[200] = static_cast<char>(index[200] + 1);
  disk_.SetContent("global_step_20/index.bin", index);
  const auto loaded = LoadFrom(disk_, cut_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ((*loaded)->step, 10);
  EXPECT_EQ(cut_.FirstDifference(older_), "");
  EXPECT_EQ((*loaded)->skipped.size(), 3u);
}

TEST_F(Damage, NoneValidIsAnErrorWithEveryReason) {
  disk_.SetContent("global_step_10/manifest.json", "{}");
  disk_.Erase("global_step_20/actor/model/rank_00000.safetensors");
  cut_.Clear(3);
  const auto loaded = LoadFrom(disk_, cut_);
  EXPECT_EQ(loaded.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(loaded.status().message(),
              AllOf(HasSubstr("none is valid"), HasSubstr("global_step_10/manifest.json"),
                    HasSubstr("global_step_20/actor/model/rank_00000.safetensors")));
  EXPECT_EQ(static_cast<int>((*cut_.model[0].memory[0])[0]), 3);
}

// To move them away, as is advised where they are damaged, would lose what the disk will show
// again.
TEST_F(Damage, WhatCannotBeReadIsNotCalledDamaged) {
  disk_.SetFault([](int64_t, std::string_view operation, std::string_view path) {
    return operation == "open" && path.ends_with("manifest.json")
               ? Status::FromErrno(EIO, "open", path)
               : Status::Ok();
  });
  const auto loaded = LoadFrom(disk_, cut_);
  disk_.SetFault({});
  EXPECT_EQ(loaded.status().code(), StatusCode::kIo);
  EXPECT_THAT(loaded.status().message(),
              AllOf(HasSubstr("none can be read"), HasSubstr("once they can be"),
                    Not(HasSubstr("Move them away")), HasSubstr("global_step_20")));
}

TEST_F(Damage, ANewerFormatIsRefusedNotSkipped) {
  std::string text = disk_.Content("global_step_20/manifest.json");
  const size_t at = text.find("\"format_version\": \"1.0\"");
  ASSERT_NE(at, std::string::npos);
  text[at + 19] = '2';
  // With a digest that is right, as a newer Keel would write it.
  disk_.SetContent("global_step_20/manifest.json", Sign(text));
  const auto loaded = LoadFrom(disk_, cut_);
  EXPECT_FALSE(loaded.ok());
  EXPECT_NE(loaded.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(loaded.status().message(),
              AllOf(HasSubstr("format_version is 2.0"), HasSubstr("newer")));
}

}  // namespace
}  // namespace keel::checkpoint
