#include "trainer/rl/generation/rollout_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "trainer/inputs/run_model.h"

namespace keel::trainer::rl {
namespace {

std::string WriteText(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "/rollout_options_" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(RolloutFactsTest, AWorkerThatWritesToolsTextsByAnotherTemplateIsToldApart) {
  LoadedConfig loaded;
  Config& c = loaded.config;
  c.data.tokenizer = model::TokenizerKind::kBytes;
  c.actor_rollout_ref.model.config = {{"model_type", "llama"},      {"hidden_size", 16},
                                      {"intermediate_size", 16},    {"num_hidden_layers", 1},
                                      {"num_attention_heads", 1},   {"num_key_value_heads", 1},
                                      {"tie_word_embeddings", true}};
  turns::MultiTurnSection& turns = c.actor_rollout_ref.rollout.multi_turn;
  turns.enable = true;
  turns.format = turns::ToolFormat::kHermes;
  turns.tool_config_path = WriteText(
      "tools.yaml",
      "tools:\n  - class_name: x\n    config: {command: [cat]}\n"
      "    tool_schema: {type: function, function: {name: look, parameters: {type: object}}}\n");
  loaded.resolved = MakeSchema(c).Dump(false);
  const auto facts = [&](const std::string& mark) {
    c.data.chat_template =
        WriteText("chat.jinja", "{% for m in messages %}" + mark + "{{ m.content }}{% endfor %}");
    const ModelSource model = ValueOrThrow(OpenRunModel(c));
    const auto run = ValueOrThrow(OpenRunTurns(c, model));
    return RolloutFacts(loaded, at::kCPU, model, run.get());
  };
  const SharedFacts ours = facts(">"), theirs = facts("#");
  EXPECT_EQ(facts(">"), ours);
  EXPECT_NE(ours.at("the chat template"), theirs.at("the chat template"));
}

}  // namespace
}  // namespace keel::trainer::rl
