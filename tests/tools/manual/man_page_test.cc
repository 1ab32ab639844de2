#include "tools/manual/man_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace keel::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ManPageTest, TextPrintsAsItIs) {
  EXPECT_EQ(RoffText(R"(a\b)"), R"(a\eb)");
  EXPECT_EQ(RoffText("--x-y"), R"(\-\-x\-y)");
  EXPECT_EQ(RoffText(".br\n.sp"), "\\&.br\n\\&.sp");
  EXPECT_EQ(RoffText("'quoted' ~a"), R"(\&\(aqquoted\(aq \(tia)");
  EXPECT_EQ(RoffText("`key` and `"), R"(\fBkey\fR and \(ga)");
  EXPECT_EQ(RoffText("\u2026 \u00d7 \U0001F600"), R"(\[u2026] \[u00D7] \[u1F600])");
  EXPECT_EQ(RoffText("\xff"), "?");  // not UTF-8: no read beyond the end
}

TEST(ManPageTest, ThereIsAPageForEachCommandAndOneForTheConfiguration) {
  CLI::App app{"Trains.", "keel"};
  std::string form;
  CLI::App* data = app.add_subcommand("data", "Rows");
  CLI::App* make = data->add_subcommand("make", "Make rows");
  make->add_option("--form", form, "What of them")->required()->check(CLI::IsMember({"rl", "sft"}));
  make->footer("Examples:\n  keel data make --form rl\n");
  app.add_subcommand("hidden", "Not for people")->group("");
  app.add_subcommand("launch", "Start ranks");
  options::Schema schema;
  int64_t seed = 17;
  std::string key = "hush";
  schema.Add("trainer.seed", seed, "Of all draws.").Unit("draws");
  schema.Add("trainer.key", key, "A password.").Secret();
  const std::vector<LaunchFlag> flags = LaunchFlags();

  const std::vector<ManPage> pages = ManPages({app, flags, schema});
  std::vector<std::string> files;
  for (const ManPage& page : pages) files.push_back(page.file());
  EXPECT_THAT(files, ::testing::ElementsAre("keel.1", "keel-data.1", "keel-data-make.1",
                                            "keel-launch.1", "keel.yaml.5"));
  EXPECT_THAT(pages[0].text, AllOf(HasSubstr("KEEL_TORCH_DIR"), HasSubstr(".BR keel\\-data (1)"),
                                   Not(HasSubstr("hidden"))));
  EXPECT_THAT(pages[0].text, HasSubstr(".TP\n78\nconfiguration"));
  EXPECT_THAT(pages[2].text,
              AllOf(HasSubstr("\\fB\\-\\-form\\fR rl|\\:sft (required)\nWhat of them"),
                    HasSubstr("keel data make \\-\\-form rl\n")));
  for (const LaunchFlag& flag : flags)
    EXPECT_THAT(pages[3].text, HasSubstr(RoffText("--" + flag.name))) << flag.name;
  EXPECT_THAT(
      pages[4].text,
      HasSubstr("\\fBtrainer.\\:seed\\fR: whole number [draws],\\: default 17\nOf all draws."));
  EXPECT_THAT(pages[4].text, Not(HasSubstr("hush")));
}

}  // namespace
}  // namespace keel::tools
