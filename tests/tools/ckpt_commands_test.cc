#include "tools/ckpt/ckpt_commands.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <sstream>

#include "common/json.h"
#include "tests/checkpoint/test_support.h"

namespace keel::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

struct Outcome {
  int code = 0;
  std::string out;
  std::string err;
};

template <typename Options>
Outcome Call(int (*command)(const Options&, std::ostream&, std::ostream&), const Options& options) {
  std::ostringstream out, err;
  const int code = command(options, out, err);
  return {code, out.str(), err.str()};
}

class CkptCommands : public ::testing::Test {
 protected:
  CkptCommands() : cut_({2}, 1) {
    const auto fs = dir_.Open();
    for (const int64_t step : {20, 40}) {
      cut_.Fill(MakeTrainingState(static_cast<uint64_t>(step)));
      ThrowIfError(checkpoint::testing::SaveOn(*fs, cut_, step, SmallOptions()));
    }
  }
  void FlipByte(const std::string& file, size_t at) {
    std::string content = ReadAll(dir_ / file);
    content[at] = static_cast<char>(content[at] ^ 16);
    WriteAll(dir_ / file, content);
  }
  TempDir dir_;
  Cut cut_;
};

TEST_F(CkptCommands, LsShowsTheNewestFirst) {
  std::filesystem::create_directory(dir_ / "global_step_60");
  const Outcome run = Call(CkptLs, CkptLsOptions{dir_.path(), false});
  EXPECT_EQ(run.code, 0);
  EXPECT_LT(run.out.find("global_step_40"), run.out.find("global_step_20"));
  EXPECT_THAT(run.out, AllOf(HasSubstr("world2"), HasSubstr("model,optimizer,extra"),
                             HasSubstr("global_step_60"), HasSubstr("not a valid checkpoint")));
  const Json json = Json::parse(Call(CkptLs, CkptLsOptions{dir_.path(), true}).out);
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[0]["step"], 40);
  EXPECT_EQ(json[2]["valid_manifest"], false);
  EXPECT_NE(Call(CkptLs, CkptLsOptions{dir_ / "nowhere", false}).code, 0);
}

TEST_F(CkptCommands, InspectTellsWhatIsInside) {
  const Outcome run = Call(CkptInspect, CkptInspectOptions{dir_ / "global_step_40/", false, true});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("step      40"), HasSubstr("actor/model"),
                    HasSubstr("model.norm.weight BF16[16]"), HasSubstr("rank_00000.safetensors")));
  const Json json =
      Json::parse(Call(CkptInspect, CkptInspectOptions{dir_ / "global_step_40", true, true}).out);
  EXPECT_EQ(json["scopes"]["actor/model"]["list"]["model.norm.weight"]["shape"][0], 16);
}

TEST_F(CkptCommands, VerifyProvesEveryByte) {
  EXPECT_EQ(Call(CkptVerify, CkptVerifyOptions{dir_.path(), 2}).code, 0);
  EXPECT_EQ(Call(CkptVerify, CkptVerifyOptions{dir_ / "global_step_20", 1}).code, 0);

  FlipByte("global_step_20/actor/optimizer/rank_00001.safetensors", 9000);
  const Outcome damaged = Call(CkptVerify, CkptVerifyOptions{dir_.path(), 2});
  EXPECT_EQ(damaged.code, 1);
  EXPECT_THAT(damaged.out, AllOf(HasSubstr("global_step_40: ok"),
                                 HasSubstr("global_step_20: DAMAGED: 1 problem")));
  EXPECT_THAT(damaged.err,
              AllOf(HasSubstr("global_step_20/actor/optimizer/rank_00001.safetensors"),
                    HasSubstr("chunk 2"), HasSubstr("step 20"), HasSubstr("optimizer.")));
  EXPECT_EQ(Call(CkptVerify, CkptVerifyOptions{dir_ / "global_step_40", 2}).code, 0);

  std::filesystem::remove(dir_ / "global_step_40/manifest.json");
  EXPECT_EQ(Call(CkptVerify, CkptVerifyOptions{dir_ / "global_step_40", 2}).code, 1);
  const TempDir empty;
  EXPECT_GT(Call(CkptVerify, CkptVerifyOptions{empty.path(), 2}).code, 1);
}

TEST_F(CkptCommands, ExportAndImport) {
  const TempDir target;
  CkptExportOptions exports;
  exports.step = dir_ / "global_step_40";
  exports.output = target / "hf/model";
  const Outcome exported = Call(CkptExportHf, exports);
  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_TRUE(std::filesystem::exists(target / "hf/model/model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(target / "hf/model/config.json"));
  EXPECT_NE(Call(CkptExportHf, exports).code, 0);  // does not overwrite

  CkptImportOptions imports;
  imports.source = target / "hf/model";
  imports.run = target / "run";
  const Outcome refused =
      Call(CkptImportHf, imports);  // the config says nothing of a model's shape
  EXPECT_NE(refused.code, 0);
  WriteAll(
      target / "hf/model/config.json",
      R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
               "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 37, "max_position_embeddings": 64})");
  const Outcome imported = Call(CkptImportHf, imports);
  EXPECT_EQ(imported.code, 0) << imported.err;
  EXPECT_EQ(Call(CkptVerify, CkptVerifyOptions{target / "run", 2}).code, 0);
}

TEST_F(CkptCommands, TheCommandLineReachesThem) {
  int code = -1;
  CLI::App app;
  AddCkptCommands(app, &code);
  ::testing::internal::CaptureStdout();
  app.parse("ckpt verify --threads 1 " + dir_.path());
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("global_step_20: ok"));
  EXPECT_EQ(code, 0);
  for (const char* name : {"ls", "inspect", "verify", "export-hf", "import-hf"}) {
    EXPECT_THAT(app.get_subcommand("ckpt")->get_subcommand(name)->help(), HasSubstr("Examples:"));
  }
}

}  // namespace
}  // namespace keel::tools
