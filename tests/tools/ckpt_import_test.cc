// `keel ckpt export-hf` and `import-hf`: what becomes a checkpoint, and what does not.

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

#include "checkpoint/format/safetensors.h"
#include "common/json.h"
#include "model/config/hf_tensors.h"
#include "tests/tools/ckpt_commands_fixture.h"

namespace keel::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kTinyLlama =
    R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 37,
        "max_position_embeddings": 64})";

// A Hugging Face directory, with what `change` does to its tensors; `one` of them has these values.
void WriteTinyLlama(const std::string& directory,
                    const std::function<void(std::map<std::string, Dims>&)>& change = {},
                    const std::string& one = "", float value = 0.25f) {
  const auto config = ValueOrThrow(model::ParseHfConfig(Json::parse(kTinyLlama), "config.json"));
  std::map<std::string, Dims> shapes;
  for (const TensorInfo& tensor : model::TensorsOf(config, model::Head::kVocabulary).needed)
    shapes[tensor.name] = tensor.shape;
  if (change) change(shapes);
  std::vector<checkpoint::SafetensorsPart> parts;
  std::string data;
  for (const auto& [name, shape] : shapes) {
    parts.push_back({name, DType::kF32, shape, {}});
    const std::vector<float> values(static_cast<size_t>(shape.elements()),
                                    name == one ? value : 0.25f);
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
  WriteAll(directory + "/model.safetensors",
           ValueOrThrow(checkpoint::BuildSafetensorsHeader(parts, {{"format", "pt"}}, 8)) + data);
  WriteAll(directory + "/config.json", kTinyLlama);
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
  EXPECT_FALSE(std::filesystem::exists(imports.run));
  // Weights of another model than its config.json describes are refused by name.
  WriteAll(target / "hf/model/config.json", kTinyLlama);
  const Outcome other = Call(CkptImportHf, imports);
  EXPECT_EQ(other.code, 65);
  EXPECT_THAT(other.err, AllOf(HasSubstr("missing tensors (7): lm_head.weight"),
                               HasSubstr("model.layers.0.self_attn.k_proj.weight"),
                               HasSubstr("model.layers.0.bias"), HasSubstr("model.flag")));
  EXPECT_FALSE(std::filesystem::exists(imports.run));
  WriteTinyLlama(target / "hf/model");
  // Weights that cannot be read leave no folder behind.
  std::filesystem::rename(target / "hf/model/model.safetensors", target / "away");
  EXPECT_NE(Call(CkptImportHf, imports).code, 0);
  EXPECT_FALSE(std::filesystem::exists(imports.run));
  std::filesystem::rename(target / "away", target / "hf/model/model.safetensors");
  const Outcome imported = Call(CkptImportHf, imports);
  EXPECT_EQ(imported.code, 0) << imported.err;
  EXPECT_EQ(imported.err, "");
  EXPECT_EQ(Call(CkptVerify, CkptVerifyOptions{target / "run", 2}).code, 0);
  // As a critic it lacks the value head, and its own head is left out.
  imports.run = target / "critic";
  imports.role = "critic";
  EXPECT_EQ(Call(CkptImportHf, imports).code, 0);
  const Outcome shown =
      Call(CkptInspect, CkptInspectOptions{imports.run + "/global_step_0", false, true});
  EXPECT_THAT(shown.out, AllOf(HasSubstr("model.norm.weight"), Not(HasSubstr("lm_head"))));
}

TEST_F(CkptCommands, AnImportRefusesIdsThatNoTokenHas) {
  const TempDir target;
  CkptImportOptions imports;
  imports.source = target / "hf";
  imports.run = target / "run";
  std::filesystem::create_directories(imports.source);
  WriteTinyLlama(imports.source);
  for (const char* file : {"config.json", "generation_config.json"}) {
    for (const char* ids : {R"("eos_token_id": 37)", R"("eos_token_id": [2, -1])",
                            R"("bos_token_id": 40)", R"("pad_token_id": -2)"}) {
      std::string text = file == std::string("config.json") ? kTinyLlama : "{ }";
      text.insert(text.size() - 1, (text.size() > 3 ? ", " : "") + std::string(ids));
      WriteAll(imports.source + "/" + file, text);
      const Outcome run = Call(CkptImportHf, imports);
      EXPECT_EQ(run.code, 65) << text;
      const std::string key(ids + 1, 12);
      EXPECT_THAT(run.err, AllOf(HasSubstr(std::string(file) + ": " + key),
                                 HasSubstr("outside the vocabulary of 37")));
      EXPECT_FALSE(std::filesystem::exists(imports.run));
    }
    WriteTinyLlama(imports.source);
  }
  WriteAll(imports.source + "/generation_config.json",
           R"({"eos_token_id": [36, 0], "bos_token_id": null, "pad_token_id": -1})");
  const Outcome run = Call(CkptImportHf, imports);
  EXPECT_EQ(run.code, 0) << run.err;
}

TEST_F(CkptCommands, AnImportRefusesWhatIsNoFileUnderTheNameOfOne) {
  const TempDir target;
  CkptImportOptions imports;
  imports.source = target / "hf";
  imports.run = target / "run";
  std::filesystem::create_directories(imports.source);
  WriteTinyLlama(imports.source);
  for (const char* name : {"tokenizer.json", "merges.txt", "generation_config.json"}) {
    const std::string path = imports.source + "/" + name;
    for (const bool device : {false, true}) {
      if (device) {
        std::filesystem::create_symlink("/dev/null", path);
      } else {
        ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
      }
      const Outcome run = Call(CkptImportHf, imports);
      EXPECT_NE(run.code, 0) << path;
      EXPECT_THAT(run.err, AllOf(HasSubstr(name), HasSubstr("not a regular file")));
      EXPECT_FALSE(std::filesystem::exists(imports.run));
      std::filesystem::remove(path);
    }
  }
}

TEST_F(CkptCommands, AnImportChecksEveryTensor) {
  const TempDir target;
  const auto refused = [&](const std::string& name, const Dims& shape, const std::string& what,
                           float value = 0.5f) {
    CkptImportOptions imports;
    imports.source = target / "hf";
    imports.run = target / "run";
    std::filesystem::remove_all(imports.source);
    std::filesystem::create_directories(imports.source);
    WriteTinyLlama(
        imports.source,
        [&](std::map<std::string, Dims>& tensors) {
          if (shape.size() == 0) {
            tensors.erase(name);
          } else {
            tensors[name] = shape;
          }
        },
        name, value);
    const Outcome run = Call(CkptImportHf, imports);
    EXPECT_EQ(run.code, 65) << name;
    EXPECT_THAT(run.err, HasSubstr(what));
    EXPECT_FALSE(std::filesystem::exists(imports.run));
  };
  refused("model.layers.0.mlp.up_proj.weight", {},
          "missing tensors (1): model.layers.0.mlp.up_proj.weight");
  refused("model.norm.weight", {17}, "model.norm.weight is [17], expected [16]");
  refused("model.layers.1.mlp.up_proj.weight", {24, 16},
          "no place for (1): model.layers.1.mlp.up_proj.weight");
  refused("model.layers.0.self_attn.q_proj.bias", {16},
          "no place for (1): model.layers.0.self_attn.q_proj.bias");
  refused("\x1b[31m../../evil\n", {1}, "no place for (1): \\x1b[31m../../evil\\x0a");
  refused("model.norm.weight", {16}, "model.norm.weight has values that are not finite", NAN);
}

}  // namespace
}  // namespace keel::tools
