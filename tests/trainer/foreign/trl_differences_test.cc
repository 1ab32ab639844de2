// What an import from TRL says of what is not the same there and here, and what it makes of it.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/foreign/foreign_fixture.h"
#include "trainer/foreign/trl_import.h"

namespace keel::trainer::foreign {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Result<Imported> MadeOf(const std::string& name, const std::string& text, TrlMethod method) {
  Config config;
  ImportRequest request = RequestFor(name, text);
  request.world = 1;
  return ImportTrl(request, method, MakeSchema(config));
}
Config ReadBack(const Imported& made) {
  const LoadedText loaded = Load(made.yaml);
  EXPECT_EQ(loaded.problem, "") << made.yaml;
  EXPECT_THAT(ValidateConfig(loaded.config, 1), IsEmpty()) << made.yaml;
  return loaded.config;
}

// TRL's loss of the experts' balance follows from the coefficient alone; the file trained without.
TEST(TrlDifferences, TheBalanceOfExpertsIsSaid) {
  const std::string file = "model_name_or_path: m\ndataset_name: d.jsonl\nmax_steps: 3\n";
  for (const auto& [method, name] : kEnumNames<TrlMethod>) {
    const auto made = MadeOf("f.yaml", file, method);
    ASSERT_TRUE(made.ok()) << name << made.status().ToString();
    EXPECT_THAT(made->report, HasSubstr("set output_router_logits: true in its config.json"))
        << name;
    // What was asked for is said once, by the key's own line.
    const auto asked = MadeOf("f.yaml", file + "router_aux_loss_coef: 0.0\n", method);
    ASSERT_TRUE(asked.ok()) << name << asked.status().ToString();
    EXPECT_THAT(asked->report, Not(HasSubstr("set output_router_logits"))) << name;
    EXPECT_THAT(asked->yaml, AllOf(HasSubstr("# NOT TAKEN: router_aux_loss_coef: 0.0"),
                                   HasSubstr("output_router_logits")))
        << name;
  }
}

// transformers warms this schedule up from its least rate, and cuts off what there is no room for.
TEST(TrlDifferences, AWarmUpBeforeARateThatIsHeldIsSaidWhereItDiffers) {
  const auto report = [](const std::string& ratio, int decay) {
    const auto made =
        MadeOf("f.yaml",
               fmt::format("model_name_or_path: m\ndataset_name: d.jsonl\nmax_steps: 10\n"
                           "warmup_steps: 3\nlr_scheduler_type: warmup_stable_decay\n"
                           "lr_scheduler_kwargs: {{num_decay_steps: {}, decay_type: linear, "
                           "min_lr_ratio: {}}}\n",
                           decay, ratio),
               TrlMethod::kSft);
    return made.ok() ? made->report : made.status().ToString();
  };
  const auto begins = HasSubstr("begins at min_lr_ratio x learning_rate in transformers");
  const auto cut = HasSubstr("warm-up and decay are more than the steps");
  EXPECT_THAT(report("0.1", 4), AllOf(begins, Not(cut)));
  EXPECT_THAT(report("0.0", 7), AllOf(Not(begins), Not(cut)));
  EXPECT_THAT(report("0.0", 8), AllOf(Not(begins), cut));
}

// TRL bounds the ratio of a positive advantage by the lower of the two, and that of a negative one
// by the higher.
TEST(TrlDifferences, ASecondBoundBelowTheFirstIsThatOfPositiveAdvantages) {
  const auto made = [](const std::string& delta) {
    const auto grpo = MadeOf("grpo.yaml",
                             "model_name_or_path: m\ndataset_name: d.jsonl\nmax_steps: 3\n"
                             "epsilon_high: 0.28\ndelta: " +
                                 delta + "\n",
                             TrlMethod::kGrpo);
    ThrowIfError(grpo.status());
    return grpo.value();
  };
  const auto above = ReadBack(made("1.5")).actor_rollout_ref.actor.loss;
  EXPECT_DOUBLE_EQ(*above.clip_ratio_high, 0.28);
  EXPECT_DOUBLE_EQ(above.clip_ratio_c, 1.5);
  const auto below = ReadBack(made("1.125")).actor_rollout_ref.actor.loss;
  EXPECT_DOUBLE_EQ(*below.clip_ratio_high, 0.125);
  EXPECT_DOUBLE_EQ(below.clip_ratio_c, 1.28);
  const Imported none = made("0.9");
  EXPECT_THAT(none.yaml, HasSubstr("# NOT TAKEN: delta: 0.9"));
  EXPECT_EQ(ReadBack(none).actor_rollout_ref.actor.loss.clip_ratio_c, 1e9);
}

TEST(TrlDifferences, WhatAMeanOverTokensIsOverIsSaid) {
  const auto report = [](const std::string& more) {
    const auto made = MadeOf("grpo.yaml",
                             "model_name_or_path: m\ndataset_name: d.jsonl\nmax_steps: 8\n"
                             "epsilon_high: 5.0\ngradient_accumulation_steps: 2\n" +
                                 more,
                             TrlMethod::kGrpo);
    return made.ok() ? made->report : made.status().ToString();
  };
  const auto said = HasSubstr("the mean of the updates of a generation");
  for (const std::string type : {"dapo", "cispo", "vespo"}) {
    EXPECT_THAT(report("loss_type: " + type + "\nsteps_per_generation: 4\n"), said) << type;
    EXPECT_THAT(report("loss_type: " + type + "\n"), Not(said)) << type;
  }
  EXPECT_THAT(report("loss_type: grpo\nsteps_per_generation: 4\n"), Not(said));
}

// An argument of earlier versions was said to be no key at all.
TEST(TrlDifferences, TheLengthOfDposAnswersIsNotTaken) {
  const auto made = MadeOf("dpo.yaml",
                           "model_name_or_path: m\ndataset_name: d.jsonl\n"
                           "max_completion_length: 128\nmax_steps: 3\n",
                           TrlMethod::kDpo);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_THAT(made->report, Not(HasSubstr("no keys of")));
  EXPECT_THAT(made->yaml, AllOf(HasSubstr("# NOT TAKEN: max_completion_length: 128"),
                                HasSubstr("data.max_response_length")));
}

}  // namespace
}  // namespace keel::trainer::foreign
