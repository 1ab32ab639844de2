#include "checkpoint/hf/hf_model_dir.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <random>

#include "checkpoint/format/names.h"
#include "checkpoint/hf/hf_export_directory.h"
#include "checkpoint/read/step_reader.h"
#include "checkpoint/tools/hf_import.h"
#include "common/tensors/float_convert.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

// The state as one safetensors file.
std::string PlainFile(const GlobalState& state, const std::vector<std::string>& names) {
  std::vector<SafetensorsPart> parts;
  std::string data;
  for (const std::string& name : names) {
    const GlobalTensor& tensor = state.at(name);
    parts.push_back({name, tensor.info.dtype, tensor.info.shape, {}});
    data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  return ValueOrThrow(BuildSafetensorsHeader(parts, {{"format", "pt"}}, 8)) + data;
}

std::vector<std::string> NamesOf(const GlobalState& state) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state) names.push_back(name);
  return names;
}

TEST(HfModelDir, AnyShardsOfOneFileOrOfMany) {
  const GlobalState state =
      MakeState(SampleModel(40), 1);  // the largest tensor spans several reads
  std::vector<std::string> names = NamesOf(state);
  SimFileSystem one;
  one.SetContent("model.safetensors", PlainFile(state, names));
  SimFileSystem many;
  Json map = Json::object();
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string file = "model-" + std::to_string(i % 3) + ".safetensors";
    map[names[i]] = file;
  }
  for (int f = 0; f < 3; ++f) {
    std::vector<std::string> part;
    for (size_t i = static_cast<size_t>(f); i < names.size(); i += 3) part.push_back(names[i]);
    many.SetContent("model-" + std::to_string(f) + ".safetensors", PlainFile(state, part));
  }
  many.SetContent("model.safetensors.index.json",
                  Json{{"metadata", Json::object()}, {"weight_map", map}}.dump());
  for (const SimFileSystem* disk : {&one, &many}) {
    const auto model = HfModelDir::Open(*disk, ".");
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    EXPECT_EQ(model->source().tensors().size(), names.size());
    std::mt19937_64 random(3);
    for (int round = 0; round < 10; ++round) {
      LayoutOptions options;
      options.world = 1 + round % 4;
      for (RankPart& part : RandomLayout(SampleModel(40), options, random)) {
        part.Clear(0x66);
        const Status read = model->ReadInto(part.table, {});
        ASSERT_TRUE(read.ok()) << read.ToString();
        EXPECT_EQ(part.FirstDifference(state), "");
      }
    }
  }
}

TEST(HfModelDir, ReadsOnlyTheRowsItNeeds) {
  const TensorInfo info{"w", DType::kF32, Dims{1000, 64}};
  const GlobalState state = MakeState({info}, 1);
  SimFileSystem disk;
  disk.SetContent("model.safetensors", PlainFile(state, {"w"}));
  const auto model = ValueOrThrow(HfModelDir::Open(disk, "."));
  RankPart part;
  part.AddBox(info, {Dims{100, 0}, Dims{10, 64}});
  disk.ResetCalls();
  int64_t reads = 0;
  disk.SetFault([&](int64_t, std::string_view operation, std::string_view) {
    reads += operation == "read";
    return Status::Ok();
  });
  ThrowIfError(model.ReadInto(part.table, {}));
  EXPECT_EQ(reads, 1);
  EXPECT_EQ(part.FirstDifference(state), "");
}

TEST(HfModelDir, ConvertsFloats) {
  const std::vector<float> values = {0.0f,  -0.0f,    1.0f,      -2.5f, 3.14159f,    65504.0f,
                                     1e-7f, INFINITY, -INFINITY, NAN,   1.00390625f, 1.01171875f};
  const auto n = static_cast<int64_t>(values.size());
  GlobalState state;
  state["w"] = {{"w", DType::kF32, Dims{n}}, {}};
  state["w"].bytes.resize(values.size() * 4);
  std::memcpy(state["w"].bytes.data(), values.data(), values.size() * 4);
  SimFileSystem disk;
  disk.SetContent("model.safetensors", PlainFile(state, {"w"}));
  const auto model = ValueOrThrow(HfModelDir::Open(disk, "."));
  RankPart part;
  part.AddBox({"w", DType::kBF16, Dims{n}}, Box::Whole(Dims{n}));
  ThrowIfError(model.ReadInto(part.table, {}));
  std::vector<uint16_t> bits(values.size());
  std::memcpy(bits.data(), part.memory[0]->data(), bits.size() * 2);
  // 1.00390625 lies half way between two bf16 values, as does 1.01171875: both go to the even one.
  const std::vector<uint16_t> expected = {0x0000, 0x8000, 0x3f80, 0xc020, 0x4049, 0x4780,
                                          0x33d7, 0x7f80, 0xff80, 0x7fc0, 0x3f80, 0x3f82};
  EXPECT_EQ(bits, expected);
}

// As PyTorch has it, doubles become floats first: what is a little above half way is half way then.
TEST(HfModelDir, ConvertsDoubles) {
  const std::vector<double> values = {0.1, -2.5, 1e-300, 1.00390625 + std::ldexp(1, -30)};
  GlobalState state;
  state["w"] = {{"w", DType::kF64, Dims{4}}, {}};
  state["w"].bytes.resize(values.size() * 8);
  std::memcpy(state["w"].bytes.data(), values.data(), values.size() * 8);
  SimFileSystem disk;
  disk.SetContent("model.safetensors", PlainFile(state, {"w"}));
  const auto model = ValueOrThrow(HfModelDir::Open(disk, "."));
  RankPart wide, narrow;
  wide.AddBox({"w", DType::kF32, Dims{4}}, Box::Whole(Dims{4}));
  narrow.AddBox({"w", DType::kBF16, Dims{4}}, Box::Whole(Dims{4}));
  for (const RankPart* part : {&wide, &narrow}) ThrowIfError(model.ReadInto(part->table, {}));
  std::vector<float> floats(4);
  std::memcpy(floats.data(), wide.memory[0]->data(), 16);
  EXPECT_EQ(floats, (std::vector<float>{0.1F, -2.5F, 0.0F, 1.00390625F}));
  std::vector<uint16_t> bits(4);
  std::memcpy(bits.data(), narrow.memory[0]->data(), 8);
  EXPECT_EQ(bits, (std::vector<uint16_t>{0x3dcd, 0xc020, 0x0000, 0x3f80}));
}

TEST(FloatConvert, HalfPrecisionIsExact) {
  // Against the definition, for every bit pattern.
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = static_cast<int>((bits >> 10) & 31);
    const int mantissa = static_cast<int>(bits & 1023);
    double expected =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (bits & 0x8000) expected = -expected;
    const float got = Float16ToFloat(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(got), mantissa != 0);
      EXPECT_EQ(std::isinf(got), mantissa == 0);
    } else {
      ASSERT_EQ(static_cast<double>(got), expected) << bits;
    }
    const float wide = BFloat16ToFloat(static_cast<uint16_t>(bits));
    if (!std::isnan(wide)) {
      ASSERT_EQ(FloatToBFloat16(wide), bits);
    }
  }
}

TEST(HfModelDir, ListsEverythingThatIsWrong) {
  const GlobalState state = MakeState(SampleModel(), 1);
  SimFileSystem disk;
  disk.SetContent("model.safetensors", PlainFile(state, NamesOf(state)));
  const auto model = ValueOrThrow(HfModelDir::Open(disk, "."));
  RankPart part;
  part.AddBox({"nope.a", DType::kF32, Dims{1}}, Box::Whole(Dims{1}));
  part.AddBox({"nope.b", DType::kF32, Dims{1}}, Box::Whole(Dims{1}));
  part.AddBox({"model.norm.weight", DType::kBF16, Dims{99}}, Box::Whole(Dims{99}));
  const Status status = model.ReadInto(part.table, {});
  EXPECT_EQ(status.code(), StatusCode::kInvalidData);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("nope.a"), HasSubstr("nope.b"),
                                      HasSubstr("model.norm.weight"), HasSubstr("[99]")));

  RankPart tied;
  tied.AddBox({"lm_head.weight", DType::kBF16, Dims{4}}, Box::Whole(Dims{4}));
  EXPECT_FALSE(model.ReadInto(tied.table, {}).ok());
  HfReadOptions options;
  options.allow_missing = {"lm_head.weight"};
  EXPECT_TRUE(model.ReadInto(tied.table, options).ok());

  RankPart integer;
  integer.AddBox({"model.counter", DType::kF32, Dims{}}, Box::Whole(Dims{}));
  EXPECT_THAT(model.ReadInto(integer.table, {}).message(), HasSubstr("model.counter (I64 to F32)"));
}

TEST(HfModelDir, AnIndexLeadsNowhereElse) {
  const GlobalState state = MakeState(SampleModel(), 1);
  for (const char* name :
       {"../secret.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "a\\b"}) {
    SimFileSystem disk;
    disk.SetContent("model.safetensors.index.json", Json{{"weight_map", {{"w", name}}}}.dump());
    const auto model = HfModelDir::Open(disk, ".");
    EXPECT_EQ(model.status().code(), StatusCode::kInvalidData) << name;
    EXPECT_THAT(model.status().message(), HasSubstr("plain file name")) << name;
  }
  SimFileSystem disk;
  EXPECT_EQ(HfModelDir::Open(disk, ".").status().code(), StatusCode::kNotFound);
  disk.SetContent("model.safetensors.index.json", R"({"weight_map":{"w":"gone.safetensors"}})");
  EXPECT_EQ(HfModelDir::Open(disk, ".").status().code(), StatusCode::kNotFound);
  disk.SetContent("gone.safetensors", PlainFile(state, {"model.norm.weight"}));
  EXPECT_THAT(HfModelDir::Open(disk, ".").status().message(), HasSubstr("lacks tensors"));
}

// transformers takes the later file's, whatever the index says.
TEST(HfModelDir, ATensorOfTwoShardsIsRefused) {
  const GlobalState state = MakeState(SampleModel(), 1);
  const std::vector<std::string> names = NamesOf(state);
  for (const char* named : {"a.safetensors", "b.safetensors", ""}) {
    SimFileSystem disk;
    disk.SetContent("a.safetensors", PlainFile(state, names));
    disk.SetContent("b.safetensors", PlainFile(state, {names.back()}));
    Json map = Json::object();
    for (const std::string& name : names) map[name] = "a.safetensors";
    map.erase(names.back());
    if (*named != '\0') map[names.back()] = named;
    if (std::string(named) != "b.safetensors") {  // another tensor brings the file in
      disk.SetContent("b.safetensors", PlainFile(state, {names[1], names.back()}));
      disk.SetContent("a.safetensors", [&] {
        std::vector<std::string> others = names;
        others.erase(others.begin() + 1);
        return PlainFile(state, others);
      }());
      map[names[1]] = "b.safetensors";
    }
    disk.SetContent("model.safetensors.index.json", Json{{"weight_map", map}}.dump());
    const auto model = HfModelDir::Open(disk, ".");
    EXPECT_EQ(model.status().code(), StatusCode::kInvalidData) << named;
    EXPECT_THAT(model.status().message(), AllOf(HasSubstr("b.safetensors: holds " + names.back()),
                                                HasSubstr("and so does a.safetensors")));
  }
}

TEST(HfModelDir, APointerOfGitLfsIsCalledOne) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 1234567\n";
  SimFileSystem weights;
  weights.SetContent("model.safetensors", pointer);
  EXPECT_THAT(HfModelDir::Open(weights, ".").status().message(),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("git lfs pull")));
  SimFileSystem index;
  index.SetContent("model.safetensors.index.json", pointer);
  EXPECT_THAT(HfModelDir::Open(index, ".").status().message(), HasSubstr("git lfs pull"));
}

TEST(HfModelDir, WhatADownloadDidNotBringIsSaid) {
  for (const auto& [content, said] : std::vector<std::pair<std::string, std::string>>{
           {"", "is empty: download or copy it again"},
           {"\n<!DOCTYPE HTML>\n<html><body>401</body></html>", "is a page of a web site"},
           {"<?xml version='1.0'?><Error/>", "is a page of a web site"}}) {
    for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
      SimFileSystem disk;
      disk.SetContent(name, content);
      EXPECT_THAT(HfModelDir::Open(disk, ".").status().message(),
                  AllOf(HasSubstr(std::string(name) + ": "), HasSubstr(said)));
    }
  }
  SimFileSystem text;
  text.SetContent("model.safetensors", "Invalid username or password.");
  EXPECT_THAT(HfModelDir::Open(text, ".").status().message(),
              HasSubstr("it is text, and begins with \"Invalid username or password.\""));
}

TEST(HfModelDir, WhatIsThereInstead) {
  for (const auto& [file, way] : std::vector<std::pair<std::string, std::string>>{
           {"pytorch_model.bin", "save_pretrained"},
           {"consolidated.00.pth", "consolidated.00.pth is PyTorch's own"},
           {"adapter_config.json", "keel ckpt merge-adapter"},
           {"m.Q4_K.gguf", "keel ckpt import-gguf makes a model directory of m.Q4_K.gguf"},
           {"consolidated.safetensors", "consolidated.safetensors is Mistral's own format"},
           {"model.fp16.safetensors", "model.fp16.safetensors is there: if it is the whole model"},
           {"model-00001-of-00002.safetensors", "model.safetensors.index.json, which says"}}) {
    SimFileSystem disk;
    disk.SetContent(file, "x");
    EXPECT_THAT(HfModelDir::Open(disk, ".").status().message(),
                AllOf(HasSubstr("has neither model.safetensors"), HasSubstr(way)));
  }
  SimFileSystem lacking;
  lacking.SetContent("model.safetensors.index.json",
                     R"({"weight_map": {"w": "model-00002-of-00002.safetensors"}})");
  EXPECT_THAT(HfModelDir::Open(lacking, ".").status().message(),
              HasSubstr("names model-00002-of-00002.safetensors, which is not there"));
}

TEST(HfExport, WholeTensorsFromAnyLayoutAndBack) {
  const TrainingState state = MakeTrainingState(6);
  SimFileSystem disk;
  Cut cut({3}, 2);
  cut.Fill(state);
  ThrowIfError(SaveOn(disk, cut, 9, SmallOptions()));
  const StepReader reader = ValueOrThrow(StepReader::Open(disk, "global_step_9"));
  Logger log(Quiet());
  for (const int64_t max_shard : {int64_t{1} << 40, int64_t{1500}}) {
    SimFileSystem out;
    HfExportOptions options;
    options.max_shard_bytes = max_shard;
    options.buffer_bytes = 2000;  // several batches
    ASSERT_EQ(ExportHuggingFace(reader, "actor", out, "model", options, log).ToString(), "ok");
    const std::vector<std::string> files = out.AllFiles();
    EXPECT_EQ(std::count(files.begin(), files.end(), "model/model.safetensors"), max_shard > 2000);
    EXPECT_EQ(std::count(files.begin(), files.end(), "model/model.safetensors.index.json"),
              max_shard <= 2000);
    EXPECT_EQ(std::count(files.begin(), files.end(), "model/config.json"), 1);
    const auto model = HfModelDir::Open(out, "model");
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    RankPart whole;
    for (const TensorInfo& tensor : SampleModel()) whole.AddBox(tensor, Box::Whole(tensor.shape));
    ThrowIfError(model->ReadInto(whole.table, {}));
    EXPECT_EQ(whole.FirstDifference(state.model), "");
    EXPECT_EQ(ExportHuggingFace(reader, "actor", out, "model", options, log).code(),
              StatusCode::kAlreadyExists);
  }
}

TEST(HfExport, TiedHeadIsLeftOutAndDamageIsFound) {
  const TensorInfo embed{"model.embed_tokens.weight", DType::kBF16, Dims{50, 64}};
  const TensorInfo head{"lm_head.weight", DType::kBF16, Dims{50, 64}};
  for (const bool tied : {true, false}) {
    SimFileSystem disk;
    Cut cut({1}, 1);
    cut.model[0] = RankPart();
    cut.optimizer[0] = RankPart();
    for (const TensorInfo& tensor : {embed, head})
      cut.model[0].AddBox(tensor, Box::Whole(tensor.shape));
    cut.model[0].Fill(MakeState({embed, head}, 1));
    ThrowIfError(SaveOn(disk, cut, 1, SmallOptions(), [&](SaveRequest& r) {
      r.documents[1].content =
          tied ? R"({"tie_word_embeddings": true})" : R"({"tie_word_embeddings": false})";
      r.contents.optimizer = false;
    }));
    const StepReader reader = ValueOrThrow(StepReader::Open(disk, "global_step_1"));
    SimFileSystem out;
    Logger log(Quiet());
    ThrowIfError(ExportHuggingFace(reader, "actor", out, "m", {}, log));
    EXPECT_EQ(ValueOrThrow(HfModelDir::Open(out, "m")).source().Find("lm_head.weight") >= 0, !tied);

    std::string content = disk.Content("global_step_1/actor/model/rank_00000.safetensors");
    content[content.size() - 1] = static_cast<char>(content.back() ^ 1);
    disk.SetContent("global_step_1/actor/model/rank_00000.safetensors", content);
    SimFileSystem damaged;
    const Status status = ExportHuggingFace(reader, "actor", damaged, "m", {}, log);
    // The damage is in the head, which an export of tied embeddings need not read.
    if (!tied) {
      EXPECT_EQ(status.code(), StatusCode::kDataLoss);
      EXPECT_TRUE(damaged.AllFiles().empty());  // nothing half-made is left
    }
  }
}

class ExportThatEnds : public ::testing::Test {
 protected:
  ExportThatEnds() : log_(Quiet()) {
    Cut cut({2}, 2, ModelSize::kTiny);
    cut.Fill(MakeTrainingState(6, ModelSize::kTiny));
    ThrowIfError(SaveOn(disk_, cut, 9, SmallOptions()));
    reader_ = ValueOrThrow(StepReader::Open(disk_, "global_step_9"));
  }
  Status Export(FileSystem& out) {
    return ExportHuggingFace(*reader_, "actor", out, "m", {}, log_);
  }
  static std::vector<std::string> Names(const FileSystem& fs) {
    std::vector<std::string> names;
    for (const FileInfo& info : ValueOrThrow(fs.List("."))) names.push_back(info.name);
    return names;
  }
  SimFileSystem disk_;
  std::optional<StepReader> reader_;
  Logger log_;
};

// Killed at every call: the next export to the same name removes what is left, and nothing else.
TEST_F(ExportThatEnds, NothingOfOneThatWasKilledStays) {
  const std::vector<std::string> others = {".m.0123abcd.partial", ".m.notes.partial",
                                           ".m2." + MakeSaveId(7) + ".partial"};
  SimFileSystem out;
  for (const std::string& name : others) ThrowIfError(out.MakeDirectory(name));
  std::vector<std::unique_ptr<SimFileSystem>> killed;
  out.SetFault([&](int64_t, std::string_view, std::string_view) {
    killed.push_back(out.Clone());
    return Status::Ok();
  });
  ASSERT_EQ(Export(out).ToString(), "ok");
  out.SetFault({});
  killed.push_back(out.Clone());
  std::vector<std::string> expected = others;
  expected.emplace_back("m");
  size_t left = 0;
  for (const auto& disk : killed) {
    left += Names(*disk).size() > expected.size();
    const Status status = Export(*disk);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kAlreadyExists) << status.ToString();
    EXPECT_EQ(Names(*disk), expected);
    EXPECT_TRUE(HfModelDir::Open(*disk, "m").ok());
  }
  EXPECT_GT(left, 0u);
}

// A second export to the same name at every call of a first one, which it leaves alone.
TEST_F(ExportThatEnds, OneThatIsBeingWrittenIsLeftAlone) {
  for (int64_t at = 1;; ++at) {
    SimFileSystem out;
    const auto other = out.Mount();
    std::string during;
    Status second;
    out.SetFault([&](int64_t call, std::string_view operation, std::string_view) {
      if (call != at) return Status::Ok();
      during = operation;
      second = Export(*other);
      return Status::Ok();
    });
    const Status first = Export(out);
    out.SetFault({});
    if (during.empty()) break;
    EXPECT_NE(first.ok(), second.ok()) << during << ": " << first.ToString();
    EXPECT_EQ(Names(out), std::vector<std::string>{"m"});
    EXPECT_TRUE(HfModelDir::Open(out, "m").ok());
    if (during == "write" && second.ok()) {
      EXPECT_EQ(first.code(), StatusCode::kAlreadyExists) << first.ToString();
    }
  }
}

TEST(HfModelContent, OneWholeModelInTheCheckpoint) {
  const TrainingState state = MakeTrainingState(8);
  for (const bool with_shards : {true, false}) {
    SimFileSystem disk;
    Cut cut({2}, 4);
    cut.Fill(state);
    ThrowIfError(SaveOn(disk, cut, 3, SmallOptions(), [&](SaveRequest& r) {
      r.contents.hf_model = true;
      r.contents.model = with_shards;
    }));
    const auto model = HfModelDir::Open(disk, "global_step_3/actor/huggingface");
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    RankPart whole;
    for (const TensorInfo& tensor : SampleModel()) whole.AddBox(tensor, Box::Whole(tensor.shape));
    ThrowIfError(model->ReadInto(whole.table, {}));
    EXPECT_EQ(whole.FirstDifference(state.model), "");
    EXPECT_EQ(disk.Stat("global_step_3/actor/model/rank_00000.safetensors").ok(), with_shards);
    EXPECT_EQ(disk.Stat("global_step_3/actor/model").ok(), with_shards);
    cut.Clear(0);
    const auto loaded = LoadFrom(disk, cut, [&](LoadRequest& r) {
      r.contents.hf_model = true;
      r.contents.model = with_shards;
    });
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    if (with_shards) {
      EXPECT_EQ(cut.FirstDifference(state), "");
    }
  }
}

// One of them under the files' name, and one under the model's.
TEST(HfModelDir, TwoNamesOfOneTensorAreBothNamed) {
  SimFileSystem disk;
  const GlobalState state = MakeState(
      {{"embed_out.weight", DType::kF32, Dims{2, 3}}, {"lm_head.weight", DType::kF32, Dims{2, 3}}},
      7);
  disk.SetContent("config.json", R"({"model_type": "gpt_neox"})");
  disk.SetContent("model.safetensors", PlainFile(state, NamesOf(state)));
  EXPECT_THAT(HfModelDir::Open(disk, ".").status().message(),
              ::testing::AllOf(::testing::HasSubstr("embed_out.weight"),
                               ::testing::HasSubstr("lm_head.weight"),
                               ::testing::HasSubstr("the same tensor of the model")));
}

// Some of its tensors are F16, which no run has.
std::vector<TensorInfo> WidenedModel() {
  std::vector<TensorInfo> tensors = SampleModel();
  for (TensorInfo& tensor : tensors)
    if (tensor.dtype == DType::kF16) tensor.dtype = DType::kF32;
  return tensors;
}

TEST(HfImport, HalvesBecomeTheTypeOfARun) {
  const TensorInfo half = {"model.norm.weight", DType::kF16, Dims{2}};
  GlobalState state = MakeState({half}, 1);
  state.at(half.name).bytes = {std::byte{0}, std::byte{0x3c}, std::byte{0}, std::byte{0xc0}};
  ModelTensors model;
  model.needed = {half};
  SimFileSystem hf, run;
  hf.SetContent("model.safetensors", PlainFile(state, NamesOf(state)));
  Logger log(Quiet());
  const auto imported = ImportHuggingFace(hf, model, run, SystemClock(), log, {});
  ASSERT_TRUE(imported.ok()) << imported.status().ToString();
  const StepReader reader = ValueOrThrow(StepReader::Open(run, "global_step_0"));
  const ShardTable tensors = ValueOrThrow(reader.Tensors("actor/model"));
  ASSERT_EQ(tensors.tensors().size(), 1U);
  EXPECT_EQ(tensors.tensors()[0].dtype, DType::kF32);
  const std::string bytes = run.Content("global_step_0/actor/model/rank_00000.safetensors");
  const float values[] = {1, -2};
  EXPECT_NE(bytes.find(std::string(reinterpret_cast<const char*>(values), sizeof(values))),
            std::string::npos);
}

TEST(HfImport, BecomesACheckpoint) {
  GlobalState state = MakeState(WidenedModel(), 1);
  for (auto& [name, tensor] : state) {  // random bits, but finite
    for (std::byte& byte : tensor.bytes) byte &= std::byte{0x3f};
  }
  ModelTensors model;
  model.needed = WidenedModel();
  SimFileSystem hf;
  hf.SetContent("model.safetensors", PlainFile(state, NamesOf(state)));
  hf.SetContent("config.json", R"({"model_type": "llama"})");
  hf.SetContent("tokenizer.json", "{}");
  hf.SetContent("README.md", "not needed");
  SimFileSystem run;
  Logger log(Quiet());
  HfImportOptions options;
  options.step = 0;
  const auto imported = ImportHuggingFace(hf, model, run, SystemClock(), log, options);
  ASSERT_TRUE(imported.ok()) << imported.status().ToString();
  Cut cut({1}, 1);
  cut.model[0] = RankPart();
  for (const TensorInfo& tensor : WidenedModel())
    cut.model[0].AddBox(tensor, Box::Whole(tensor.shape));
  cut.Clear(0);
  const auto loaded = LoadFrom(run, cut, [](LoadRequest& r) {
    r.contents.optimizer = false;
    r.contents.extra = false;
  });
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ((*loaded)->documents.at("actor/huggingface/tokenizer.json"), "{}");
  EXPECT_EQ((*loaded)->documents.size(), 2u);
  for (const RankPart& part : cut.model) EXPECT_EQ(part.FirstDifference(state), "");
  EXPECT_EQ(ImportHuggingFace(hf, model, run, SystemClock(), log, options).status().code(),
            StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace keel::checkpoint
