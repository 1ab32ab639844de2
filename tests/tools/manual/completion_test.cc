// What may stand next, on a small program of two commands with launch's flags and a small
// configuration.
#include "tools/manual/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/options/schema.h"

namespace keel::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CompletionTest : public ::testing::Test {
 protected:
  CompletionTest() : flags_(LaunchFlags()) {
    CLI::App* train = app_.add_subcommand("train", "Train");
    train->add_option("CONFIG", config_, "A file")->required();
    train->add_option("overrides", overrides_, "key=value");
    CLI::App* data = app_.add_subcommand("data", "Rows");
    CLI::App* make = data->add_subcommand("make", "Make rows");
    make->add_option("--form", form_, "What of them")->check(CLI::IsMember({"rl", "sft"}));
    make->add_option("--count", count_, "How many");
    make->add_option("-o,--out", out_, "A file");
    make->add_flag("--force", force_, "Write over it");
    app_.add_subcommand("launch", "Start ranks");
    app_.add_subcommand("secret", "Not for people")->group("");
    schema_.Add("trainer.seed", seed_, "Of all draws.");
    schema_.Add("trainer.device", device_, "Where.").OneOf({"cpu", "cuda"});
    schema_.Add("trainer.folder", folder_, "Of the run.");
    schema_.Add("model.deep.below.flag", flag_, "Yes or no.");
  }
  std::vector<std::string> Words(const std::vector<std::string>& line) {
    files_ = "none";
    const Completions found = Complete({app_, flags_, schema_}, line);
    if (found.files) files_ = "after " + found.before_file;
    std::vector<std::string> words;
    for (const Completion& completion : found.words) {
      EXPECT_TRUE(completion.word.starts_with(line.back()));
      words.push_back(completion.word);
    }
    return words;
  }

  CLI::App app_{"A program", "keel"};
  std::string config_, form_, out_, device_, folder_;
  std::vector<std::string> overrides_;
  int64_t count_ = 0, seed_ = 1;
  bool force_ = false, flag_ = false;
  std::vector<LaunchFlag> flags_;
  options::Schema schema_;
  std::string files_;
};

TEST_F(CompletionTest, CommandsAtEachDepth) {
  EXPECT_THAT(Words({""}), ElementsAre("data", "help", "launch", "train"));
  EXPECT_THAT(Words({"t"}), ElementsAre("train"));
  EXPECT_THAT(Words({"data", ""}), ElementsAre("make"));
  EXPECT_THAT(Words({"help", "data", "m"}), ElementsAre("make"));
  EXPECT_THAT(Words({"help", "train", ""}), IsEmpty());
  EXPECT_THAT(Words({"nonsense", ""}), IsEmpty());
  EXPECT_THAT(Words({"--"}), ElementsAre("--help"));
}

TEST_F(CompletionTest, OptionsAndTheirValues) {
  EXPECT_THAT(Words({"data", "make", "--"}),
              ElementsAre("--count", "--force", "--form", "--help", "--out"));
  EXPECT_THAT(Words({"data", "make", "--form", ""}), ElementsAre("rl", "sft"));
  EXPECT_THAT(Words({"data", "make", "--form=s"}), ElementsAre("--form=sft"));
  EXPECT_EQ(files_, "none");
  EXPECT_THAT(Words({"data", "make", "--out=a/"}), IsEmpty());
  EXPECT_EQ(files_, "after --out=");
  EXPECT_THAT(Words({"data", "make", "-o", "x"}), IsEmpty());
  EXPECT_EQ(files_, "after ");
  EXPECT_THAT(Words({"data", "make", "--count", ""}), IsEmpty());
  EXPECT_EQ(files_, "none");
  // A switch takes no value: what follows is an option again.
  EXPECT_THAT(Words({"data", "make", "--force", "--c"}), ElementsAre("--count"));
}

TEST_F(CompletionTest, KeysOfTheConfigurationPartByPart) {
  EXPECT_THAT(Words({"train", ""}), IsEmpty());
  EXPECT_EQ(files_, "after ");
  EXPECT_THAT(Words({"train", "a.yaml", ""}), ElementsAre("model.", "trainer."));
  EXPECT_THAT(Words({"train", "a.yaml", "trainer.seed=2", "trainer."}),
              ElementsAre("trainer.device=", "trainer.folder=", "trainer.seed="));
  EXPECT_THAT(Words({"train", "a.yaml", "mo"}), ElementsAre("model.deep.below.flag="));
  EXPECT_THAT(Words({"train", "a.yaml", "+trainer.d"}), ElementsAre("+trainer.device="));
  EXPECT_THAT(Words({"train", "a.yaml", "~trainer.d"}), ElementsAre("~trainer.device"));
  EXPECT_THAT(Words({"train", "a.yaml", "trainer.device=c"}),
              ElementsAre("trainer.device=cpu", "trainer.device=cuda"));
  EXPECT_THAT(Words({"train", "a.yaml", "model.deep.below.flag="}),
              ElementsAre("model.deep.below.flag=false", "model.deep.below.flag=true"));
  EXPECT_THAT(Words({"train", "a.yaml", "trainer.folder=r"}), IsEmpty());
  EXPECT_EQ(files_, "after trainer.folder=");
  EXPECT_THAT(Words({"train", "a.yaml", "no.such=1"}), IsEmpty());
}

TEST_F(CompletionTest, LaunchHasFlagsThenACommandOrAProgram) {
  EXPECT_THAT(Words({"launch", "--nproc-per-n"}), ElementsAre("--nproc-per-node"));
  EXPECT_THAT(Words({"launch", "--nproc_per_node", "g"}), ElementsAre("gpu"));
  EXPECT_THAT(Words({"launch", "--rdzv-backend=s"}), ElementsAre("--rdzv-backend=static"));
  EXPECT_THAT(Words({"launch", "--standalone", "tr"}), ElementsAre("train"));
  EXPECT_THAT(Words({"launch", "--nnodes", "2", "train", "a.yaml", "trainer.s"}),
              ElementsAre("trainer.seed="));
  EXPECT_THAT(Words({"launch", "--log-dir", ""}), IsEmpty());
  EXPECT_EQ(files_, "after ");
  EXPECT_THAT(Words({"launch", "--", "./prog"}), IsEmpty());
  EXPECT_EQ(files_, "after ");
}

TEST_F(CompletionTest, LinesHaveWordAndMeaningAndWhereFilesStand) {
  EXPECT_EQ(CompletionLines({{{"a=", "first\nsecond"}, {"b", "with\ttab"}}, true, "x="}),
            "a=\tfirst\nb\twith tab\n:files x=\n");
  EXPECT_EQ(CompletionLines({}), "");
}

}  // namespace
}  // namespace keel::tools
