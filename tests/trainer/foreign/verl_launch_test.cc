// Which command of a script is a launch of verl's main_ppo, and what of it verl would get.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/foreign/verl_fixture.h"

namespace keel::trainer::foreign {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(VerlLaunch, WhatIsNoLaunchOfMainPpoIsRefused) {
  EXPECT_THAT(ImportVerl("a.sh", "python -m verl.trainer.sft_trainer x=1\n").status().message(),
              HasSubstr("no command in it is python -m verl.trainer.main_ppo"));
  EXPECT_THAT(
      ImportVerl("a.sh",
                 "python -m verl.trainer.main_ppo a=1\npython -m verl.trainer.main_ppo b=1\n")
          .status()
          .message(),
      HasSubstr("lines 1 and 2"));
  EXPECT_THAT(Made("a.sh", "python -m verl.trainer.main_ppo --config-name mine a.b\n").unresolved,
              ElementsAre(HasSubstr("--config-name mine"), HasSubstr("a.b is no key=value")));
}

TEST(VerlLaunch, AScriptThatEndsBeforeItsLaunchSaysWhere) {
  const std::string script =
      "if [ $# -lt 1 ]; then\n  echo usage\n  exit 1\nfi\n"
      "python -m verl.trainer.main_ppo data.train_batch_size=$1\n";
  EXPECT_THAT(ImportVerl("a.sh", script).status().message(), HasSubstr("it ends at line 3"));
  EXPECT_TRUE(ImportVerl("a.sh", script, {"64"}).ok());
}

TEST(VerlLaunch, ALaunchOfAnotherTrainerThatWasMadeOfVerlsIsRefused) {
  for (const char* other : {"-m verl_tool.trainer.main_ppo", "-m verl.trainer.main_ppo_async",
                            "-m recipe.one_step_off_policy.main_ppo", "mine/main_ppo.py"}) {
    EXPECT_THAT(ImportVerl("a.sh", fmt::format("python {} a=1\n", other)).status().message(),
                HasSubstr("no command in it is python -m verl.trainer.main_ppo"));
  }
}

TEST(VerlLaunch, ValuesThatACommentCutsOffAreNamed) {
  for (const char* end : {"\\\n  # of the actor\n", "\\  # [\"pow\"]\n"}) {
    const std::string script =
        std::string("python3 -m verl.trainer.main_ppo data.train_batch_size=64 ") + end +
        "  trainer.nnodes=2 \\\n  trainer.save_freq=5\n";
    const Imported imported = Made("run.sh", script);
    EXPECT_THAT(imported.unresolved, ElementsAre(HasSubstr("trainer.nnodes=2 is no part"))) << end;
    EXPECT_THAT(imported.yaml, Not(HasSubstr("save_freq: 5")));
  }
  EXPECT_THAT(
      Made("run.sh",
           "python3 -m verl.trainer.main_ppo trainer.save_freq=5 # end\n# more\n./eval.sh a.b=1\n")
          .unresolved,
      IsEmpty());
}

TEST(VerlLaunch, AFlagOfHydrasTakesNoOverrideForItsValue) {
  const Imported imported = Made(
      "run.sh",
      "python3 -m verl.trainer.main_ppo --config-path config --config-name ppo_trainer --resolve "
      "trainer.save_freq=5 --multirun trainer.test_freq=7 --cfg job data.train_batch_size=64\n");
  const LoadedText loaded = Load(imported.yaml);
  EXPECT_EQ(loaded.config.trainer.save_freq, 5);
  EXPECT_EQ(loaded.config.trainer.test_freq, 7);
  EXPECT_EQ(loaded.config.data.train_batch_size, 64);
  EXPECT_THAT(imported.unresolved, IsEmpty());
}

}  // namespace
}  // namespace keel::trainer::foreign
