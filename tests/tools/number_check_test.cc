// What a number on the command line may look like.
#include "tools/number_check.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace keel::tools {
namespace {

struct Values {
  int64_t whole = 7;
  std::optional<int64_t> perhaps;
  uint64_t seed = 7;
  double fraction = 7;
  std::vector<int64_t> several;
  std::string text;
  bool flag = false;
};

// What is wrong with `arguments`, or "".
std::string Problem(std::vector<std::string> arguments, Values* v) {
  CLI::App app("", "keel");
  CLI::App* draw = app.add_subcommand("data")->add_subcommand("draw");
  draw->add_option("--whole", v->whole)->check(AtLeast(-5));
  draw->add_option("--perhaps", v->perhaps)->check(AtLeast(1));
  draw->add_option("--seed", v->seed);
  draw->add_option("--fraction", v->fraction);
  draw->add_option("--several", v->several)->delimiter(',');
  draw->add_option("--text", v->text);
  draw->add_flag("--flag", v->flag);
  const std::string help = draw->help();
  CheckNumbers(app);
  EXPECT_EQ(draw->help(), help);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  reversed.insert(reversed.end(), {"draw", "data"});
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(NumberCheck, DecimalNumbersAreTaken) {
  Values v;
  EXPECT_EQ(Problem({"--whole", "-5", "--perhaps=10", "--seed", "18446744073709551615",
                     "--fraction", "1e-3", "--several", "0,10,9", "--text", "010", "--flag"},
                    &v),
            "");
  EXPECT_EQ(v.whole, -5);
  EXPECT_EQ(v.perhaps, 10);
  EXPECT_EQ(v.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(v.fraction, 1e-3);
  EXPECT_EQ(v.several, (std::vector<int64_t>{0, 10, 9}));
  EXPECT_EQ(v.text, "010");
  EXPECT_TRUE(v.flag);
}

TEST(NumberCheck, OthersAreRefusedWithWhatWasFound) {
  for (const char* option : {"--whole", "--perhaps", "--seed", "--several"}) {
    for (const char* wrong :
         {"010", "0x10", "00", "+1", "1.5", "1e3", " 1", "1 ", "99999999999999999999"}) {
      Values v;
      const std::string problem = Problem({option, wrong}, &v);
      EXPECT_NE(problem.find(option), std::string::npos) << option << " " << wrong;
      EXPECT_NE(problem.find("found '" + std::string(wrong) + "'"), std::string::npos) << problem;
    }
  }
  Values v;
  EXPECT_NE(Problem({"--seed", "-1"}, &v), "");
  EXPECT_NE(Problem({"--seed", "18446744073709551616"}, &v), "");
  EXPECT_NE(Problem({"--whole", "-9223372036854775809"}, &v), "");
  EXPECT_NE(Problem({"--several", "1,010"}, &v), "");
  for (const char* wrong : {"nan", "inf", "-inf", "1e999", "0x10", "1,5", ""})
    EXPECT_NE(Problem({"--fraction", wrong}, &v), "") << wrong;
}

}  // namespace
}  // namespace keel::tools
