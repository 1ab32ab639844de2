// What becomes of the keys by which verl asks for adapters.

#include "trainer/foreign/adapter_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/trainer/foreign/verl_fixture.h"

namespace keel::trainer::foreign {
namespace {

using testing::HasSubstr;

TEST(VerlImport, AdaptersAreTakenByTheKeysOfEitherEngine) {
  const std::string key = "actor_rollout_ref.model.";
  const auto made = [](const std::string& overrides) {
    return Made("a.sh", "python -m verl.trainer.main_ppo " + overrides + "\n");
  };
  const auto model = [&](const std::string& overrides) {
    const LoadedText loaded = Load(made(overrides).yaml);
    EXPECT_EQ(loaded.problem, "");
    return loaded.config.actor_rollout_ref.model;
  };
  EXPECT_FALSE(model(key + "lora_alpha=8").HasAdapters());
  const auto peft = model(key + "lora_rank=64 " + key + "exclude_modules=[o_proj]");
  EXPECT_EQ(peft.lora_rank, 64);
  EXPECT_EQ(peft.lora_alpha, 16);
  EXPECT_EQ(peft.target_modules, std::vector<std::string>{"all-linear"});
  EXPECT_EQ(peft.exclude_modules, std::vector<std::string>{"o_proj"});
  const auto megatron = model(key + "lora.rank=8");
  EXPECT_EQ(megatron.lora_rank, 8);
  EXPECT_EQ(megatron.lora_alpha, 32);
  EXPECT_EQ(megatron.target_modules,
            (std::vector<std::string>{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                                      "up_proj", "down_proj"}));
  const auto from = model(key + "lora_rank=8 " + key + "lora_adapter_path=a");
  EXPECT_EQ(from.lora_adapter_path, "a");
  EXPECT_EQ(from.lora_rank, 0);
  EXPECT_THAT(made(key + "lora_rank=8 " + key + "target_modules='.*_proj'").report,
              HasSubstr("expected names of modules"));
}

}  // namespace
}  // namespace keel::trainer::foreign
