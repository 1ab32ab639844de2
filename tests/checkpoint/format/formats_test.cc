// Names, manifest and index: what they accept, and that the golden files of each version still
// load.
#include <gmock/gmock.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>

#include "checkpoint/format/index.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/names.h"
#include "checkpoint/format/records.h"
#include "checkpoint/read/verifier.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using ::testing::HasSubstr;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

TEST(Names, StepDirectories) {
  EXPECT_EQ(StepDirectory(40), "global_step_40");
  EXPECT_EQ(ParseStepDirectory("global_step_0"), 0);
  EXPECT_EQ(ParseStepDirectory("global_step_9223372036854775807"), INT64_MAX);
  for (const char* name :
       {"global_step_", "global_step_-1", "global_step_04", "global_step_4 ", "global_step_+4",
        "global_step_9223372036854775808", "xglobal_step_4", "global_step_4.set-aside-1"}) {
    EXPECT_EQ(ParseStepDirectory(name), std::nullopt) << name;
  }
}

TEST(Names, ScratchNamesProveThatTheyAreOurs) {
  const std::string id = MakeSaveId(0x0123456789abcdef);
  EXPECT_TRUE(IsSaveId(id));
  for (const ScratchKind kind :
       {ScratchKind::kTemporary, ScratchKind::kReplaced, ScratchKind::kTrash}) {
    const std::string name = ScratchDirectory(kind, 40, id);
    const auto parsed = ParseScratchDirectory(name);
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(parsed->kind, kind);
    EXPECT_EQ(parsed->step, 40);
    EXPECT_EQ(parsed->save_id, id);
    for (size_t i = 0; i < name.size(); ++i) {
      std::string other = name;
      other[i] = other[i] == '7' ? '8' : '7';
      // Only the step may be another number and still be a name of ours.
      const auto changed = ParseScratchDirectory(other);
      EXPECT_TRUE(!changed || changed->step != 40) << other;
    }
  }
  for (const char* name : {".tmp-40", ".tmp-40-", ".tmp-40-backup",
                           ".trash-1-0123456789abcdef00000000", ".tmp", "tmp"}) {
    EXPECT_FALSE(ParseScratchDirectory(name).has_value()) << name;
  }
}

std::vector<std::string> EventsOf(const FileSystem& fs) {
  std::vector<std::string> events;
  ThrowIfError(VisitRecords(fs, [&](const Json& record) { events.push_back(record.at("event")); }));
  return events;
}

// The process was killed within a line, or the disk was full.
TEST(Records, ALineThatWasCutOffTakesNoOtherWithIt) {
  const TempDir dir;
  const auto fs = dir.Open();
  EXPECT_TRUE(EventsOf(*fs).empty());
  ThrowIfError(AppendRecord(*fs, kRecordsName, {{"event", "load"}}));
  ThrowIfError(fs->Append(kRecordsName, R"({"event":"save","total_s)"));
  ThrowIfError(AppendRecord(*fs, kRecordsName, {{"event", "begin"}, {"next_sequence", 7}}));
  ThrowIfError(AppendRecord(*fs, kRecordsName, {{"event", "save"}}));
  EXPECT_EQ(EventsOf(*fs), (std::vector<std::string>{"load", "begin", "save"}));
}

TEST(Records, OfAnySizeAreRead) {
  const TempDir dir;
  const auto fs = dir.Open();
  for (const int megabytes : {0, 3, 1})
    ThrowIfError(AppendRecord(*fs, kRecordsName,
                              {{"event", std::to_string(megabytes)},
                               {"ranks", std::string(static_cast<size_t>(megabytes) << 20, ' ')}}));
  // Whole, but for its end.
  ThrowIfError(fs->Append(kRecordsName, R"({"event":"last"})"));
  EXPECT_EQ(EventsOf(*fs), (std::vector<std::string>{"0", "3", "1", "last"}));
}

// Else a job's restart would take it that the job had never begun.
TEST(Records, ThatCannotBeReadAreAnError) {
  const TempDir dir;
  const auto fs = dir.Open();
  ThrowIfError(fs->MakeDirectory(kRecordsName));
  EXPECT_FALSE(VisitRecords(*fs, [](const Json&) {}).ok());
}

TEST(Names, RelativePaths) {
  for (const char* path : {"a", "a/b/c.json", "..a", "a..b/.c"})
    EXPECT_TRUE(CheckRelativePath(path, "x").ok()) << path;
  for (const char* path : {"", "/a", "a/", "a//b", "..", "a/../b", ".", "./a", "a\nb", "a\\b"}) {
    EXPECT_FALSE(CheckRelativePath(path, "x").ok()) << path;
  }
}

Manifest SampleManifest() {
  Manifest manifest;
  manifest.run_id = "run";
  manifest.save_id = MakeSaveId(1);
  manifest.sequence = 3;
  manifest.step = 40;
  manifest.created = "2026-11-21T05:00:00Z";
  manifest.config_digest = "abc";
  manifest.layout = {{"tp", 2}};
  manifest.roles = {"actor"};
  manifest.metric = 0.25;
  manifest.chunk_bytes = 4096;
  manifest.index_size = 100;
  manifest.index_digest = {1, 2};
  manifest.files = {{"actor/model/rank_00000.safetensors", FileRole::kModel, 8192, {3, 4}},
                    {"trainer_state.json", FileRole::kExtra, 10, {5, 6}}};
  return manifest;
}

TEST(ManifestFormat, RoundTrip) {
  const std::string text = SampleManifest().Serialize();
  const auto parsed = Manifest::Parse(text, "m");
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->Serialize(), text);
  EXPECT_EQ(parsed->metric, 0.25);
  EXPECT_EQ(parsed->own_digest, Manifest::OwnDigest(text));
  ASSERT_NE(parsed->Find("trainer_state.json"), nullptr);
  EXPECT_EQ(parsed->Find("trainer_state.json")->size, 10);
  EXPECT_EQ(parsed->Find("nothing"), nullptr);
  EXPECT_EQ(parsed->TotalBytes(), 8192 + 10 + 100);
}

// The manifest with another value at `key`, and a digest that is right.
std::string WithValue(const std::string& key, const Json& value) {
  Json root = Json::parse(SampleManifest().Serialize());
  root.erase("digest");
  if (value.is_discarded()) {
    root.erase(key);
  } else {
    root[key] = value;
  }
  std::string text = root.dump(2);
  text.resize(text.size() - 2);
  text += ",\n";
  return text + "  \"digest\": \"" + Hash128(std::as_bytes(std::span(text))).ToHex() + "\"\n}\n";
}

TEST(ManifestFormat, StrictInWhatItAccepts) {
  EXPECT_TRUE(Manifest::Parse(WithValue("step", 41), "m").ok());
  const Json absent(Json::value_t::discarded);
  for (const char* key : {"format", "format_version", "run_id", "save_id", "sequence", "step",
                          "created", "config_digest", "layout", "roles", "contents", "metric",
                          "chunk_bytes", "index", "files"}) {
    const auto parsed = Manifest::Parse(WithValue(key, absent), "m");
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidData) << key;
    EXPECT_THAT(parsed.status().message(), HasSubstr("m")) << key;
  }
  const std::vector<std::pair<std::string, Json>> wrong = {
      {"format", "other"},
      {"format_version", "2.0"},
      {"format_version", "1"},
      {"step", -1},
      {"step", "40"},
      {"step", 1.5},
      {"contents", {"everything"}},
      {"contents", "model"},
      {"chunk_bytes", 0},
      {"roles", {1}},
      {"sequence", std::numeric_limits<int64_t>::max()},
      {"index", {{"size", int64_t{1} << 62 | 1}, {"digest", std::string(32, '0')}}},
      {"files",
       {{"x", {{"role", "model"}, {"size", int64_t{1} << 62}, {"digest", std::string(32, '0')}}}}},
      {"files", Json::array()},
      {"unknown", 1},
      {"index", {{"size", 1}}},
      {"files", {{"../x", {{"role", "model"}, {"size", 1}, {"digest", std::string(32, '0')}}}}},
      {"files", {{"x", {{"role", "spy"}, {"size", 1}, {"digest", std::string(32, '0')}}}}},
      {"files", {{"x", {{"role", "model"}, {"size", -1}, {"digest", std::string(32, '0')}}}}},
      {"files", {{"x", {{"role", "model"}, {"size", 1}, {"digest", "zz"}}}}}};
  for (const auto& [key, value] : wrong) {
    EXPECT_EQ(Manifest::Parse(WithValue(key, value), "m").status().code(), StatusCode::kInvalidData)
        << key << value.dump();
  }
}

std::string SampleIndex() {
  IndexBuilder builder(4096);
  builder.AddFile("b.safetensors", {9000, {{1, 1}, {2, 2}, {3, 3}}, {}});
  builder.AddFile("a.safetensors", {4096, {{4, 4}}, {}});
  const TensorInfo w{"w", DType::kF32, Dims{4, 8}};
  builder.AddBox("actor/model", w, {Dims{2, 0}, Dims{2, 8}}, "a.safetensors", 100);
  builder.AddBox("actor/model", w, {Dims{0, 0}, Dims{2, 8}}, "b.safetensors", 4096);
  builder.AddBox("actor/model", {"a", DType::kBF16, Dims{}}, {Dims{}, Dims{}}, "b.safetensors",
                 4160);
  builder.AddBox("actor/optimizer", {"w", DType::kF32, Dims{3}}, {Dims{0}, Dims{3}},
                 "b.safetensors", 8000);
  return ValueOrThrow(builder.Build());
}

TEST(IndexFormat, FindsBoxesAndChunks) {
  const Index index = ValueOrThrow(Index::Parse(SampleIndex(), "i"));
  EXPECT_EQ(index.files(), 2);
  EXPECT_EQ(index.file(0).path, "a.safetensors");
  EXPECT_EQ(index.chunk(index.file(1), 2), (Digest128{3, 3}));
  ASSERT_EQ(index.scopes(), 2);
  EXPECT_EQ(index.FindScope("actor/optimizer"), 1);
  EXPECT_EQ(index.FindScope("critic/model"), -1);
  const int64_t w = index.FindTensor(0, "w");
  ASSERT_GE(w, 0);
  EXPECT_EQ(index.tensor(w).shape, (Dims{4, 8}));
  EXPECT_EQ(index.tensor(w).box_count, 2);
  const IndexBox first = index.box(index.tensor(w).first_box);
  EXPECT_EQ(first.box, (Box{Dims{0, 0}, Dims{2, 8}}));
  EXPECT_EQ(first.file, 1);
  EXPECT_EQ(first.bytes, 64);
  EXPECT_EQ(index.tensor(index.FindTensor(0, "a")).shape, Dims{});
  EXPECT_EQ(index.FindTensor(1, "a"), -1);
  EXPECT_EQ(index.TensorsIn(1, 4100, 4101), std::vector<std::string>{"w"});
  EXPECT_TRUE(index.TensorsIn(1, 0, 4096).empty());
}

// No byte of a hostile index makes the reader look outside it (under AddressSanitizer), and
// whatever is accepted is consistent.
TEST(IndexFormat, HostileBytes) {
  const std::string whole = SampleIndex();
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(Index::Parse(whole.substr(0, size), "i").ok()) << size;
  EXPECT_FALSE(Index::Parse(whole + "x", "i").ok());
  std::mt19937_64 random(11);
  const uint64_t interesting[] = {0,
                                  1,
                                  7,
                                  255,
                                  INT64_MAX,
                                  ~uint64_t{0},
                                  uint64_t{1} << 63,
                                  uint64_t{1} << 32,
                                  uint64_t{1} << 61};
  for (int round = 0; round < 50000; ++round) {
    std::string bytes = whole;
    for (uint64_t i = 0; i <= random() % 2; ++i) {
      const size_t at = random() % (bytes.size() / 8) * 8;
      const uint64_t value =
          random() % 2 == 0 ? interesting[random() % std::size(interesting)] : random() % 300;
      std::memcpy(bytes.data() + at, &value, std::min<size_t>(8, bytes.size() - at));
    }
    const auto index = Index::Parse(bytes, "i");
    if (!index.ok()) continue;
    for (int f = 0; f < index->files(); ++f)
      EXPECT_EQ(static_cast<int64_t>(index->chunks(index->file(f)).size()),
                index->file(f).chunk_count);
    for (int64_t t = 0; t < index->tensors(); ++t) {
      const IndexTensor tensor = index->tensor(t);
      for (int64_t b = tensor.first_box; b < tensor.first_box + tensor.box_count; ++b) {
        const IndexBox box = index->box(b);
        EXPECT_TRUE(box.box.Within(tensor.shape));
        EXPECT_LE(box.begin + box.bytes, index->file(box.file).size);
      }
    }
  }
}

// tests/checkpoint/format/golden/1.0 was written by the first version of the format. It must load
// for ever.
TEST(Golden, CheckpointsOfEveryVersionLoad) {
  const char* source = std::getenv("KEEL_SOURCE_DIR");
  ASSERT_NE(source, nullptr);
  const auto fs = ValueOrThrow(
      OpenPosixFileSystem(std::string(source) + "/tests/checkpoint/format/golden/1.0", false));
  const VerifyReport report = VerifyCheckpoint(*fs, "global_step_7", 1);
  ASSERT_TRUE(report.problems.empty()) << report.problems[0];
  EXPECT_EQ(report.tensors, 2 + 2);
  // And with the values it was saved with.
  const TempDir copy;
  std::filesystem::copy(std::string(source) + "/tests/checkpoint/format/golden/1.0", copy.path(),
                        std::filesystem::copy_options::recursive);
  const auto opened = copy.Open();
  Cut cut({1}, 1);
  cut.model[0] = RankPart();
  cut.optimizer[0] = RankPart();
  const TensorInfo weight{"w", DType::kBF16, Dims{3, 4}};
  const TensorInfo bias{"b", DType::kF32, Dims{}};
  for (const TensorInfo& info : {weight, bias}) {
    cut.model[0].AddBox(info, Box::Whole(info.shape));
    cut.optimizer[0].AddBox({"optimizer.master." + info.name, DType::kF32, info.shape},
                            Box::Whole(info.shape));
  }
  const auto loaded = LoadFrom(*opened, cut);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ((*loaded)->step, 7);
  const auto byte = [](const RankPart& part, size_t box, size_t at) {
    return static_cast<int>((*part.memory[box])[at]);
  };
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(byte(cut.model[0], 0, i), static_cast<int>(i));
  for (size_t i = 0; i < 48; ++i)
    EXPECT_EQ(byte(cut.optimizer[0], 0, i), static_cast<int>(100 + i));
}

}  // namespace
}  // namespace keel::checkpoint
