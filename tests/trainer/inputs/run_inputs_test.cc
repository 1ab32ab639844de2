// Model, tokenizer and data of a run, as `train` and `config validate` open them before anything
// connects.

#include "trainer/inputs/run_inputs.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/format/safetensors.h"
#include "model/config/hf_tensors.h"
#include "trainer/data/rows/chat_rules.h"
#include "trainer/inputs/run_model.h"

namespace keel::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const char* const kShape =
    R"("model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
       "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64)";

class RunInputsTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_ + "/hf"); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << content;
  }
  // A directory whose config.json holds these keys, too.
  void WriteModel(const std::string& keys) const {
    Write("hf/config.json", "{" + std::string(kShape) + ", " + keys + "}");
  }
  // Of the model's directory, with a row of `row`.
  Config MakeConfig(TaskKind task, const std::string& row) const {
    Write("rows.jsonl", row + "\n");
    Config config;
    config.trainer.task = task;
    config.trainer.total_training_steps = 1;
    config.trainer.default_local_dir = folder_ + "/run";
    config.data.train_files = {folder_ + "/rows.jsonl"};
    config.data.max_length = 32;
    config.data.max_prompt_length = 16;
    config.data.max_response_length = 16;
    config.actor_rollout_ref.model.path = folder_ + "/hf";
    return config;
  }
  Result<ModelSource> Resolve(const std::string& keys,
                              std::optional<model::TokenizerKind> wanted = {}) const {
    WriteModel(keys);
    ModelOptions options;
    options.tokenizer.kind = wanted;
    return ResolveModel(folder_ + "/hf", Json::object(), DType::kF32, options);
  }
  // The same of the configuration's own keys.
  static Result<ModelSource> Fresh(const std::string& keys,
                                   std::optional<model::TokenizerKind> wanted = {}) {
    const Json json = Json::parse("{" + std::string(kShape) + keys + "}");
    ModelOptions options;
    options.tokenizer.kind = wanted;
    return ResolveModel("", json, DType::kF32, options);
  }

  std::string folder_ = fmt::format("{}/keel_run_inputs_{}", ::testing::TempDir(), ::getpid());
};

constexpr auto kBytes = model::TokenizerKind::kBytes;
constexpr auto kIds = model::TokenizerKind::kIds;

TEST_F(RunInputsTest, TheTokenizerIsTheModelsOwn) {
  // Described by the configuration: bytes, and the export says so.
  const auto fresh = ValueOrThrow(Fresh(""));
  ASSERT_NE(fresh.tokenizer, nullptr);
  EXPECT_EQ(fresh.config.vocab_size, 259);
  EXPECT_THAT(fresh.stop_ids, ElementsAre(257));
  EXPECT_THAT(fresh.documents.back().content, HasSubstr("\"keel_tokenizer\": \"bytes\""));
  // An export of it, also of a release without the mark.
  EXPECT_NE(ValueOrThrow(Resolve(R"("vocab_size": 300, "keel_tokenizer": "bytes")")).tokenizer,
            nullptr);
  EXPECT_NE(ValueOrThrow(Resolve(R"("vocab_size": 259, "bos_token_id": 256, "eos_token_id": 257)"))
                .tokenizer,
            nullptr);
  // Anything else brings ids, unless it is told to be of bytes.
  const auto unknown = ValueOrThrow(Resolve(R"("vocab_size": 300)"));
  EXPECT_EQ(unknown.tokenizer, nullptr);
  EXPECT_THAT(unknown.text.ids_only, HasSubstr("data.tokenizer: bytes"));
  EXPECT_NE(ValueOrThrow(Resolve(R"("vocab_size": 300)", kBytes)).tokenizer, nullptr);
  EXPECT_EQ(ValueOrThrow(Fresh("", kBytes)).config.vocab_size, 259);
  const auto told = ValueOrThrow(Fresh(R"(, "vocab_size": 300)", kIds));
  EXPECT_EQ(told.tokenizer, nullptr);
  EXPECT_THAT(told.text.ids_only, HasSubstr("data.tokenizer is ids"));
  // The configuration's own keys may be of another vocabulary, too.
  EXPECT_EQ(ValueOrThrow(Fresh(R"(, "vocab_size": 300, "eos_token_id": 2)")).tokenizer, nullptr);
  EXPECT_EQ(ValueOrThrow(Fresh(R"(, "vocab_size": 100)")).tokenizer, nullptr);
}

TEST_F(RunInputsTest, ATokenizerOfTheDirectoryIsNotReplacedByBytes) {
  const std::string keys = R"("vocab_size": 259, "bos_token_id": 256, "eos_token_id": 257)";
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json",
                           "tokenizer_config.json"}) {
    Write(fmt::format("hf/{}", name), "{}");
    const auto model = ValueOrThrow(Resolve(keys));
    EXPECT_EQ(model.tokenizer, nullptr) << name;
    EXPECT_THAT(model.text.ids_only, AllOf(HasSubstr(name), HasSubstr("tokenizer of its own")));
    const auto refused = Resolve(keys, kBytes);
    EXPECT_EQ(refused.status().code(), StatusCode::kConfig);
    EXPECT_THAT(refused.status().message(),
                AllOf(HasSubstr(name), HasSubstr("leave data.tokenizer out")));
    // It goes into checkpoints.
    EXPECT_EQ(model.documents.front().path, fmt::format("actor/huggingface/{}", name));
    std::filesystem::remove(folder_ + "/hf/" + name);
  }
}

TEST_F(RunInputsTest, SpecialIdsAreComparedWithTheTokenizers) {
  const auto problem = [&](const std::string& keys) {
    const auto refused = Resolve(R"("vocab_size": 300, )" + keys, kBytes);
    EXPECT_EQ(refused.status().code(), StatusCode::kConfig) << keys;
    return refused.status().message();
  };
  EXPECT_THAT(problem(R"("eos_token_id": 2)"), HasSubstr("eos_token_id is 2"));
  EXPECT_THAT(problem(R"("eos_token_id": [2, 3])"), HasSubstr("eos_token_id is 2, 3"));
  EXPECT_THAT(problem(R"("bos_token_id": 1)"), HasSubstr("bos_token_id is 1"));
  EXPECT_THAT(problem(R"("pad_token_id": 0)"), HasSubstr("pad_token_id 0 is a byte"));
  EXPECT_THAT(problem(R"("bos_token_id": 1, "eos_token_id": 2)"),
              AllOf(HasSubstr("bos_token_id is 1"), HasSubstr("eos_token_id is 2")));
  EXPECT_TRUE(
      Resolve(R"("vocab_size": 300, "eos_token_id": [258, 257], "pad_token_id": -1)", kBytes).ok());
  EXPECT_THAT(Resolve(R"("vocab_size": 100)", kBytes).status().message(),
              HasSubstr("vocab_size 100 is less than the 259 ids"));
  // A mark and ids that contradict it.
  EXPECT_THAT(Resolve(R"("vocab_size": 300, "keel_tokenizer": "bytes", "eos_token_id": 2)")
                  .status()
                  .message(),
              HasSubstr("eos_token_id is 2"));
  Write("hf/generation_config.json", R"({"eos_token_id": 3})");
  EXPECT_THAT(problem(R"("eos_token_id": 257)"), HasSubstr("generation_config.json: eos_token_id"));
  // Both files name ends of texts; an id that no token has would never come.
  EXPECT_THAT(ValueOrThrow(Resolve(R"("vocab_size": 300, "eos_token_id": [7, 3])")).stop_ids,
              ElementsAre(7, 3));
  EXPECT_THAT(ValueOrThrow(Resolve(R"("vocab_size": 300, "eos_token_id": 7)")).stop_ids,
              ElementsAre(7, 3));
  EXPECT_THAT(Resolve(R"("vocab_size": 300, "eos_token_id": 300)").status().message(),
              HasSubstr("outside the vocabulary of 300"));
  EXPECT_THAT(Resolve(R"("vocab_size": 300, "bos_token_id": 301)").status().message(),
              HasSubstr("bos_token_id: 301 is outside the vocabulary of 300"));
}

TEST_F(RunInputsTest, TheDirectorysChatTemplateIsUsedAndChatMlWithoutOne) {
  const std::string keys = R"("vocab_size": 300, "keel_tokenizer": "bytes")";
  const auto source = [&] {
    const ModelSource model = ValueOrThrow(Resolve(keys));
    EXPECT_EQ(model.text.no_chat, "");
    return model.text.chat->chat.source();
  };
  EXPECT_EQ(source(), ChatMl().source());
  Write("hf/chat_template.jinja", "{{ messages }}");
  EXPECT_EQ(source(), "{{ messages }}");
  // One that cannot be read is an error for rows of messages alone.
  Write("hf/chat_template.jinja", "{% if %}");
  EXPECT_THAT(ValueOrThrow(Resolve(keys)).text.no_chat, HasSubstr("chat_template.jinja"));
}

TEST_F(RunInputsTest, AModelThatIsNotThereIsSaidToBeNotLookedUp) {
  ModelOptions options;
  options.path_key = "--model";
  const auto hub = ResolveModel("Qwen/Qwen2-7B-Instruct", Json::object(), DType::kF32, options);
  EXPECT_EQ(hub.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(hub.status().message(),
              AllOf(HasSubstr("--model: Qwen/Qwen2-7B-Instruct"), HasSubstr("not looked up"),
                    ::testing::Not(HasSubstr("actor_rollout_ref"))));
  // Files that are there and cannot be read are not passed over.
  WriteModel(R"("vocab_size": 300)");
  ASSERT_EQ(mkfifo((folder_ + "/hf/tokenizer.json").c_str(), 0600), 0);
  EXPECT_THAT(ResolveModel(folder_ + "/hf", {}, DType::kF32).status().message(),
              AllOf(HasSubstr("tokenizer.json"), HasSubstr("not a regular file")));
  std::filesystem::remove(folder_ + "/hf/tokenizer.json");
  std::filesystem::remove(folder_ + "/hf/config.json");
  ASSERT_EQ(mkfifo((folder_ + "/hf/config.json").c_str(), 0600), 0);
  EXPECT_THAT(ResolveModel(folder_ + "/hf", {}, DType::kF32).status().message(),
              AllOf(HasSubstr("config.json"), HasSubstr("not a regular file")));
}

TEST_F(RunInputsTest, WhatIsNoModelSaysWhatItIs) {
  const auto said = [&](const std::string& path) {
    return ResolveModel(folder_ + "/" + path, {}, DType::kF32).status().message();
  };
  Write("m.gguf", "GGUF");
  EXPECT_THAT(said("m.gguf"), HasSubstr("keel ckpt import-gguf makes a directory of it"));
  Write("model.safetensors", "x");
  EXPECT_THAT(said("model.safetensors"), HasSubstr("give the directory that it lies in"));
  WriteModel(R"("vocab_size": 300)");
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 1\n";
  for (const char* name : {"chat_template.jinja", "tokenizer.json", "config.json"}) {
    Write(std::string("hf/") + name, pointer);
    EXPECT_THAT(said("hf"), AllOf(HasSubstr(name), HasSubstr("git lfs pull")));
    std::filesystem::remove(folder_ + "/hf/" + name);
  }
  EXPECT_THAT(said("hf"),
              HasSubstr("hf: has no config.json: not a Hugging Face model; it is empty"));
  for (const auto& [content, what] :
       {std::pair("", "config.json: is empty"), {"<!doctype html>", "is a page of a web site"}}) {
    Write("hf/config.json", content);
    EXPECT_THAT(said("hf"), HasSubstr(what));
  }
  std::filesystem::remove(folder_ + "/hf/config.json");
  Write("hf/adapter_config.json", "{}");
  EXPECT_THAT(said("hf"), AllOf(HasSubstr("has no config.json"), HasSubstr("merge-adapter")));
  for (const char* step : {"9", "10", "x"})
    std::filesystem::create_directories(
        fmt::format("{}/run/global_step_{}/actor/model", folder_, step));
  EXPECT_THAT(said("run"), AllOf(HasSubstr("is the folder of a run: give what keel ckpt export-hf"),
                                 HasSubstr("such as " + folder_ + "/run/global_step_10")));
  EXPECT_THAT(said("run/global_step_9"), HasSubstr("it is a step of a run: give what"));
  ModelOptions command;
  command.path_key = "--model";
  EXPECT_THAT(ResolveModel(folder_ + "/run", {}, DType::kF32, command).status().message(),
              HasSubstr("is the folder of a run: name a step of it, such as "));
}

TEST_F(RunInputsTest, WithoutTextRulesCannotScoreAndNothingEnds) {
  using rewards::RewardType;
  const auto open = [&](const std::string& keys, RewardType type) {
    WriteModel(keys);
    Config config = MakeConfig(TaskKind::kRl, R"({"input_ids": [1], "answer": 2})");
    config.reward.type = type;
    return OpenRunModel(config).status();
  };
  const std::string ends = R"("vocab_size": 300, "eos_token_id": 9)";
  for (const RewardType rule : {RewardType::kAuto, RewardType::kExact, RewardType::kGsm8k}) {
    EXPECT_THAT(open(ends, rule).message(),
                AllOf(HasSubstr(fmt::format("reward.type is {},", NameOf(rule))),
                      HasSubstr("response_ids")));
  }
  EXPECT_TRUE(open(ends, RewardType::kCommand).ok());
  EXPECT_TRUE(open(ends, RewardType::kHttp).ok());
  EXPECT_THAT(open(R"("vocab_size": 300)", RewardType::kCommand).message(),
              HasSubstr("eos_token_id"));
  EXPECT_TRUE(open(R"("vocab_size": 300, "keel_tokenizer": "bytes")", RewardType::kExact).ok());
}

// "valid" was said of what training refused.
// Of a file that somebody else has written every key may stay; of one's own each is meant.
TEST_F(RunInputsTest, KeysThatNobodyReadsAreSaidOfHandWrittenModels) {
  const auto status = [](const std::string& keys) {
    return Fresh(R"(, "vocab_size": 300, )" + keys).status();
  };
  EXPECT_EQ(status(R"("tie_word_embedding": false)").code(), StatusCode::kConfig);
  EXPECT_THAT(status(R"("tie_word_embedding": false, "rope_thetta": 5)").message(),
              AllOf(HasSubstr("rope_thetta: unknown key, did you mean rope_theta?"),
                    HasSubstr("tie_word_embedding: unknown key, did you mean "
                              "tie_word_embeddings?")));
  const ModelSource model = ValueOrThrow(
      Fresh(R"(, "vocab_size": 300, "zebra": 1, "use_cache": true, "torch_dtype": "float32")"));
  EXPECT_THAT(model.warnings,
              ElementsAre("actor_rollout_ref.model.config: nothing reads zebra: the model is the "
                          "same without"));
  EXPECT_TRUE(Resolve(R"("vocab_size": 300, "rope_thetta": 5, "zebra": 1)").ok());
  // A key that is missing because it is misspelt has no other message.
  const Json json = {{"model_type", "llama"}, {"hiden_size", 16}};
  EXPECT_EQ(ResolveModel("", json, DType::kF32).status().message(),
            "actor_rollout_ref.model.config: hiden_size: unknown key, did you mean hidden_size?");
}

TEST_F(RunInputsTest, AFolderThatNoShellHasWrittenOutIsRefused) {
  WriteModel(R"("vocab_size": 300)");
  Config config = MakeConfig(TaskKind::kSft, R"({"input_ids": [1, 2, 3]})");
  for (const char* folder : {"~/runs", "~", "${HOME}/runs", "/runs/${oc.env:USER}"}) {
    config.trainer.default_local_dir = folder;
    EXPECT_THAT(CheckRunInputs(config).status().message(),
                HasSubstr(std::string("trainer.default_local_dir: ") + folder + " stands as it is"))
        << folder;
  }
  // One that is there is meant.
  config.trainer.default_local_dir = folder_ + "/${x}";
  std::filesystem::create_directories(config.trainer.default_local_dir);
  EXPECT_THAT(CheckRunInputs(config).status().message(), HasSubstr("model.safetensors"));
}

TEST_F(RunInputsTest, ValidatingOpensWhatTrainingOpens) {
  WriteModel(R"("vocab_size": 300)");
  const std::string row = R"({"input_ids": [1, 2, 3], "id": 4})";
  EXPECT_THAT(CheckRunInputs(MakeConfig(TaskKind::kSft, row)).status().message(),
              HasSubstr("model.safetensors"));
  const checkpoint::SafetensorsPart part{"x", DType::kF32, {1}, {}};
  Write("hf/model.safetensors",
        ValueOrThrow(checkpoint::BuildSafetensorsHeader({&part, 1}, {}, 8)) + std::string(4, '\0'));
  EXPECT_THAT(CheckRunInputs(MakeConfig(TaskKind::kSft, row)).status().message(),
              AllOf(HasSubstr("missing tensors"), HasSubstr("no place for (1): x")));
  const ModelSource model =
      ValueOrThrow(ResolveModel(folder_ + "/hf", Json::object(), DType::kF32));
  const ModelTensors tensors = model::TensorsOf(model.config, model::Head::kVocabulary);
  std::vector<checkpoint::SafetensorsPart> parts;
  size_t bytes = 0;
  for (const TensorInfo& tensor : tensors.needed) {
    parts.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
    bytes += static_cast<size_t>(tensor.shape.elements() * DTypeSize(tensor.dtype));
  }
  Write("hf/model.safetensors",
        ValueOrThrow(checkpoint::BuildSafetensorsHeader(parts, {}, 8)) + std::string(bytes, '\0'));
  const auto report = ValueOrThrow(CheckRunInputs(MakeConfig(TaskKind::kSft, row)));
  EXPECT_EQ(report.train_samples, 1);
  EXPECT_THAT(report.warnings,
              ElementsAre(HasSubstr("id (1)"),
                          HasSubstr("data.train_batch_size 8 is more than the 1 samples")));
  Config enough = MakeConfig(TaskKind::kSft, row);
  enough.data.train_batch_size = 1;
  EXPECT_THAT(ValueOrThrow(CheckRunInputs(enough)).warnings, ElementsAre(HasSubstr("id (1)")));

  const auto problem = [&](const Config& config) {
    return CheckRunInputs(config).status().message();
  };
  EXPECT_THAT(problem(MakeConfig(TaskKind::kSft, R"({"prompt": "a", "response": "b"})")),
              AllOf(HasSubstr("rows.jsonl:1"), HasSubstr("input_ids")));
  EXPECT_THAT(
      problem(MakeConfig(TaskKind::kDpo, R"({"prompt": "a", "chosen": "b", "rejected": "c"})")),
      HasSubstr("chosen_input_ids"));
  EXPECT_THAT(problem(MakeConfig(TaskKind::kSft, R"({"input_ids": [1, 300]})")),
              AllOf(HasSubstr("rows.jsonl:1"), HasSubstr("vocabulary of 300")));
  Config config = MakeConfig(TaskKind::kSft, row);
  config.actor_rollout_ref.actor.megatron.tensor_model_parallel_size = 5;
  EXPECT_THAT(problem(config), AllOf(HasSubstr("num_attention_heads 4 leaves some of the ranks"),
                                     HasSubstr("at most 4 fit")));
  config = MakeConfig(TaskKind::kSft, row);
  config.data.max_length = 65;
  EXPECT_THAT(problem(config), HasSubstr("data.max_length: 65 positions"));
  config = MakeConfig(TaskKind::kRl, row);
  config.data.tokenizer = kBytes;
  config.actor_rollout_ref.rollout.max_model_len = 65;
  EXPECT_THAT(problem(config), HasSubstr("actor_rollout_ref.rollout.max_model_len: 65 positions"));
  config = MakeConfig(TaskKind::kSft, row);
  config.data.val_files = {folder_};
  EXPECT_THAT(problem(config), HasSubstr("is a directory without tokens.json"));
  for (const std::string name :
       {"none.jsonl", "none.parquet", "~/rows.jsonl", "$X/a.txt", "*.txt"}) {
    config.data.val_files = {folder_ + "/rows.jsonl", name};
    EXPECT_THAT(problem(config), AllOf(HasSubstr("data.val_files: "), HasSubstr(name)));
    EXPECT_EQ(problem(config).find("are a shell's") != std::string::npos, name[0] != 'n') << name;
  }
  config.data.train_files = {"none.jsonl"};
  EXPECT_THAT(problem(config), HasSubstr("data.train_files: "));
  config = MakeConfig(TaskKind::kSft, row);
  std::filesystem::create_directory(folder_ + "/run");
  Write("run/manifest.json", "{}");
  EXPECT_THAT(problem(config), HasSubstr("is a checkpoint itself"));
  std::filesystem::remove_all(folder_ + "/run");
  config.trainer.resume_mode = ResumeKind::kPath;
  config.trainer.resume_from_path = folder_ + "/none";
  EXPECT_THAT(problem(config), HasSubstr("trainer.resume_from_path"));
}

}  // namespace
}  // namespace keel::trainer
