#include "trainer/rl/generation/sample_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/config/config.h"

namespace keel::trainer::rl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SampleChangesTest, NamesWhatAResponseOrItsScoreDependsOnAndNothingElse) {
  Config config;
  options::Schema schema = MakeSchema(config);
  const ReadContents contents = {{"the reward's file", "digest 1"}, {"rows", "digest 2"}};
  ReadContents all = contents;
  all["content of data.val_files"] = "digest 3";
  const std::map<std::string, std::string> documents = {
      {"config.yaml", schema.Dump(false)}, {"data_state.json", DataStateJson({}, {}, all)}};
  // What says nothing of a sample may change.
  config.trainer.total_training_steps = 7;
  config.actor_rollout_ref.actor.optim.lr = 0.1;
  config.actor_rollout_ref.rollout.max_num_seqs = 3;
  config.reward.num_workers = 9;
  EXPECT_THAT(ValueOrThrow(SampleChanges(documents, schema.Dump(false), contents)), IsEmpty());

  config.actor_rollout_ref.rollout.temperature = 0.5;
  config.data.max_response_length = 3;
  config.reward.format_score = 0.25;
  EXPECT_THAT(ValueOrThrow(SampleChanges(documents, schema.Dump(false),
                                         {{"another file", "digest 1"}, {"rows", "digest 4"}})),
              ElementsAre("actor_rollout_ref.rollout.temperature", "data.max_response_length",
                          "reward.format_score", "another file", "rows"));
}

TEST(SampleChangesTest, TheEntriesOfAMapAreOfIt) {
  const auto with = [](const char* kwargs) {
    return std::string("reward: {custom_reward_function: {reward_kwargs: ") + kwargs + "}}\n";
  };
  const std::map<std::string, std::string> documents = {{"config.yaml", with("{tolerance: 1}")}};
  EXPECT_THAT(ValueOrThrow(SampleChanges(documents, with("{tolerance: 2}"), {})),
              ElementsAre("reward.custom_reward_function.reward_kwargs.tolerance"));
  EXPECT_THAT(ValueOrThrow(SampleChanges(documents, "{", {})),
              ElementsAre("config.yaml, which cannot be read"));
}

}  // namespace
}  // namespace keel::trainer::rl
