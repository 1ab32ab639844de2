#include "trainer/foreign/translation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/foreign/foreign_fixture.h"

namespace keel::trainer::foreign {
namespace {

using testing::HasSubstr;
using testing::Not;

Result<Json> Refused(const Json&) { return Status(StatusCode::kConfig, "no such value here"); }

constexpr Row kTranslated[] = {
    Taken("trainer.seed", "7"),
    Renamed("steps", "null", "trainer.total_training_steps"),
    Renamed("also_steps", "null", "trainer.total_training_steps"),
    Taken("trainer.key_of_another_build", "1"),
    Taken("algorithm.adv_estimator", "gae"),
    Taken("data.apply_chat_template_kwargs", "{}"),
    Taken("data.shuffle", "False", Refused),
    NotNeeded("unneeded", "why not"),
    NotSupported("switch", "False|null", "another way"),
    NotSupported("size", "=steps", "as many as steps"),
    Taken("data.train_files", "", nullptr),
};

struct Translated {
  std::string yaml, report;
  std::vector<AnsweredKey> keys;
  std::vector<std::string> unresolved;
};
Translated Translate(const std::string& text) {
  Config config;
  const options::Schema schema = MakeSchema(config);
  const KeyTable table(kTranslated);
  GivenValues given(table, RequestFor("", "").environment);
  EXPECT_TRUE(given.AddFile({"a.yaml", text}).ok());
  Translation translation("other 1.0", table, schema, given);
  translation.TakeAll();
  return {translation.Yaml("title"), translation.Report("a.yaml"), translation.keys(),
          translation.unresolved()};
}

TEST(Translation, KeysAreTakenRenamedAndCounted) {
  const Translated made = Translate("trainer: {seed: 3}\nsteps: 10\nunneeded: x\nswitch: null\n");
  EXPECT_THAT(made.yaml, HasSubstr("trainer:\n  total_training_steps: 10  # steps\n  seed: 3\n"));
  EXPECT_THAT(made.report, HasSubstr("4 of 4 keys are other 1.0's: 1 taken, 1 renamed, 1 not "
                                     "needed here, 1 not supported"));
  EXPECT_THAT(made.report, HasSubstr("  unneeded: why not\n"));
  EXPECT_THAT(made.report, Not(HasSubstr("asked for")));
}

TEST(Translation, DefaultsThatDifferAreWritten) {
  EXPECT_THAT(Translate("unneeded: 1\n").yaml, HasSubstr("seed: 7  # other 1.0's default\n"));
}

TEST(Translation, WhatIsAskedForAndNotSupportedStandsFirst) {
  const Translated made = Translate("unneeded: 1\nswitch: true\nsteps: 4\nsize: 5\nodd: 1\n");
  EXPECT_THAT(made.report, HasSubstr("not supported, and asked for:\n  switch: true (another way)\n"
                                     "  size: 5 (as many as steps)\n"));
  EXPECT_THAT(made.report, HasSubstr("no keys of other 1.0:\n  odd: 1\n"));
  EXPECT_THAT(made.yaml, HasSubstr("# NOT TAKEN: switch: true (another way)\n"));
  EXPECT_THAT(Translate("steps: 4\nsize: 4\nswitch: false\n").report, Not(HasSubstr("asked for")));
}

TEST(Translation, AKeyThatThisBuildLacksIsNotSupportedInIt) {
  const Translated quiet = Translate("trainer: {key_of_another_build: 1}\n");
  EXPECT_EQ(quiet.keys[0].answer, Answer::kNotSupported);
  EXPECT_FALSE(quiet.keys[0].asked);
  const Translated asked = Translate("trainer: {key_of_another_build: 2}\n");
  EXPECT_TRUE(asked.keys[0].asked);
  EXPECT_THAT(asked.keys[0].why, HasSubstr("this build of Keel has no trainer.key_of_another"));
  EXPECT_THAT(asked.yaml, HasSubstr("# NOT TAKEN: trainer.key_of_another_build: 2"));
}

TEST(Translation, AValueThatThisBuildLacksStaysSoThatTheFileIsRefused) {
  const Translated made = Translate("algorithm: {adv_estimator: of_another_build}\n");
  EXPECT_TRUE(made.keys[0].asked);
  EXPECT_EQ(made.keys[0].answer, Answer::kNotSupported);
  EXPECT_THAT(made.yaml, HasSubstr("adv_estimator: of_another_build"));
  EXPECT_THAT(Load(made.yaml).problem, HasSubstr("expected one of gae"));
}

TEST(Translation, AValueThatNoConversionKnowsIsNotTaken) {
  const Translated made = Translate("data: {shuffle: random}\n");
  EXPECT_TRUE(made.keys[0].asked);
  EXPECT_THAT(made.report, HasSubstr("data.shuffle: random (no such value here)"));
}

TEST(Translation, TwoKeysThatSayDifferentThingsAreNotChosenBetween) {
  const Translated made = Translate("steps: 4\nalso_steps: 5\n");
  ASSERT_EQ(made.unresolved.size(), 1u);
  EXPECT_THAT(made.unresolved[0], HasSubstr("also_steps says 5, steps says 4"));
  EXPECT_TRUE(Translate("steps: 4\nalso_steps: 4\n").unresolved.empty());
  EXPECT_TRUE(Translate("steps: 4\nalso_steps: null\n").unresolved.empty());
  EXPECT_TRUE(Translate("steps: null\nalso_steps: 5\n").unresolved.empty());
}

TEST(Translation, WhatIsNotResolvedStaysAsItIsWritten) {
  const Translated made = Translate("steps: ${nowhere}\n");
  ASSERT_EQ(made.unresolved.size(), 1u);
  EXPECT_THAT(made.yaml, HasSubstr("total_training_steps: \"${nowhere}\""));
  EXPECT_THAT(Load(made.yaml).problem, HasSubstr("expected an integer"));
}

TEST(Translation, AFreeMapIsTakenWhole) {
  const Translated made =
      Translate("data: {apply_chat_template_kwargs: {enable_thinking: False, deep: {a: 1}}}\n");
  const LoadedText loaded = Load(made.yaml);
  EXPECT_EQ(loaded.problem, "");
  EXPECT_EQ(loaded.config.data.apply_chat_template_kwargs,
            Json({{"enable_thinking", false}, {"deep", {{"a", 1}}}}));
}

TEST(Translation, TextOfTheFileBreaksNoLineOfTheOutput) {
  const Translated made = Translate("\"odd\\nseed: 1\": \"x\\ntrainer: {}\"\n");
  for (const std::string& text : {made.yaml, made.report})
    EXPECT_THAT(text, Not(HasSubstr("\ntrainer: {}")));
}

}  // namespace
}  // namespace keel::trainer::foreign
