// What counts as the right answer, how long a bad one may take, and errors apart from scores.

#include "rewards/reward_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rewards/math_answer.h"
#include "rewards/rational.h"

namespace keel::rewards {
namespace {

using ::testing::HasSubstr;

struct Pair {
  const char* answer;
  const char* truth;
  bool same;
};

TEST(MathAnswerTest, OneFormForEqualAnswers) {
  EXPECT_EQ(AnswerForm("1,234.50"), "2469/2");
  EXPECT_EQ(AnswerForm("\\frac{1}{2}"), AnswerForm(".50"));
  EXPECT_EQ(AnswerForm("x = -7."), "-7");
  EXPECT_EQ(AnswerForm("50\\%"), "50%");
  EXPECT_EQ(AnswerForm("3 apples"), AnswerForm("3.0 apple"));
  EXPECT_EQ(AnswerForm(" x + y "), "x+y");
  EXPECT_NE(AnswerForm("(1, 2)"), AnswerForm("(2, 1)"));
  EXPECT_EQ(AnswerForm(std::string(1 << 20, '1')), "");
  EXPECT_EQ(Rational::Make(-6, 8)->Text(), "-3/4");
  EXPECT_EQ(Evaluate("12345678901234567890123")->Text(), "12345678901234567890123");
}

TEST(MathAnswerTest, Pairs) {
  for (const Pair& pair : std::vector<Pair>{
           // Plain numbers.
           {"42", "42", true},
           {" 42. ", "42", true},
           {"42.0", "42", true},
           {"+42", "42", true},
           {"-7", "7", false},
           {".5", "0.5", true},
           {"0.50", "1/2", true},
           {"0.33", "1/3", false},
           {"1e3", "1000", true},
           {"007", "7", true},
           {"12345678901234567890123", "12345678901234567890123", true},
           {"12345678901234567890123", "12345678901234567890124", false},
           // Thousands.
           {"1,234", "1234", true},
           {"1,234,567.5", "1234567.5", true},
           {"12{,}000", "12000", true},
           {"1,23", "123", false},
           {"10\\,000", "10000", true},
           // Fractions.
           {"\\frac{1}{2}", "0.5", true},
           {"\\dfrac{3}{6}", "\\frac12", true},
           {"\\frac1{72}", "\\frac{1}{72}", true},
           {"\\tfrac{-1}{2}", "-\\frac{1}{2}", true},
           {"\\frac{2}{3}", "\\frac{3}{2}", false},
           {"1\\frac{1}{2}", "3/2", true},
           {"-1\\frac{1}{2}", "-1.5", true},
           {"\\frac{\\frac{1}{2}}{3}", "1/6", true},
           {"\\frac{1}{0}", "\\frac{2}{0}", false},
           {"2 3/4", "11/4", true},
           {"-2 3/4 cups", "-2.75", true},
           {"2 3/4", "23/4", false},
           {"2 345/678", "2345/678", false},
           {"1 2", "12", false},
           {"1 000 000", "1000000", true},
           {"1 000 00", "100000", false},
           // Powers, roots and symbols.
           {"2^{10}", "1024", true},
           {"3 \\times 10^{5}", "300000", true},
           {"2\\cdot 3", "6", true},
           {"\\sqrt2", "\\sqrt{2}", true},
           {"3\\sqrt{5}", "3 \\sqrt5", true},
           {"\\sqrt{2}", "1.414", false},
           {"\\sqrt[3]{2}", "\\sqrt{2}", false},
           {"2\\pi", "2 \\pi", true},
           {"2\\pi", "2", false},
           {"\\infty", "\\infty", true},
           // Percent and money.
           {"50\\%", "50", true},
           {"50%", "0.5", true},
           {"50\\%", "50%", true},
           {"50%", "5%", false},
           {"\\$18", "18", true},
           {"$18.00$", "18", true},
           // Units.
           {"5\\text{ cm}", "5", true},
           {"5 \\mathrm{cm}", "5\\text{ cm}", true},
           {"5 cm", "5 km", false},
           {"12 apples", "12", true},
           {"90^\\circ", "90", true},
           {"90^{\\circ}", "90 degrees", true},
           {"10\\text{ cm}^2", "10", true},
           {"3 x", "3", false},
           {"3 n", "3", false},
           {"3 n", "3n", true},
           {"4 n^2", "4n^2", true},
           {"7 h", "7h", true},
           {"5 N", "5", true},
           {"5 \\text{ dollars}", "\\$5", true},
           // Dressing.
           {"x = 5", "5", true},
           {"$x=5$", "5", true},
           {"f(x) = 2x + 1", "2x+1", true},
           {"x \\le 5", "5", false},
           {"\\text{Tuesday}", "tuesday", true},
           {"(C)", "\\text{C}", true},
           {"\\left( \\frac{1}{2}, 3 \\right)", "(0.5,3)", true},
           {"(1,2)", "(2,1)", false},
           {"[0,1)", "[0,1]", false},
           {"[0, 1)", "[0,1)", true},
           {"\\{1,2,3\\}", "\\{3,1,2\\}", true},
           {"\\{1,1,2\\}", "\\{1,2,2\\}", false},
           {"(-\\infty, 2]", "(-\\infty,2]", true},
           {"\xE2\x88\x92"
            "3",
            "-3", true},
           {"x^2+1", "x^{2} + 1", true},
           // Malformed.
           {"\\frac{1}{2", "0.5", false},
           {"\\frac{1", "\\frac{1", true},
           {"}5{", "5", false},
           {"", "0", false},
           {"", "", false},
           {"\\", "0", false},
           {"1/", "1", false},
           {"((1)", "1", false},
       }) {
    EXPECT_EQ(SameAnswer(pair.answer, pair.truth), pair.same) << pair.answer << "  " << pair.truth;
    EXPECT_EQ(SameAnswer(pair.truth, pair.answer), pair.same) << pair.truth << "  " << pair.answer;
  }
}

TEST(MathAnswerTest, LastBoxed) {
  EXPECT_EQ(LastBoxed("so \\boxed{1} or \\boxed{2}"), "2");
  EXPECT_EQ(LastBoxed("\\boxed{\\frac{1}{2}}$."), "\\frac{1}{2}");
  EXPECT_EQ(LastBoxed("\\boxed{\\{1,2\\}}"), "\\{1,2\\}");
  EXPECT_EQ(LastBoxed("\\fbox{7}"), "7");
  EXPECT_EQ(LastBoxed("\\boxed 7$ done"), "7");
  EXPECT_EQ(LastBoxed("\\boxed {7}"), "7");
  EXPECT_EQ(LastBoxed("\\boxed{1} \\boxed{2"), std::nullopt);
  EXPECT_EQ(LastBoxed("\\boxed"), std::nullopt);
  EXPECT_EQ(LastBoxed("the answer is 7"), std::nullopt);
}

TEST(MathAnswerTest, LastNumber) {
  EXPECT_EQ(LastNumber("1 and -1,234.50 in all."), "-1234.50");
  EXPECT_EQ(LastNumber("8-3"), "3");
  EXPECT_EQ(LastNumber("= -3"), "-3");
  EXPECT_EQ(LastNumber("-3"), "-3");
  EXPECT_EQ(LastNumber("it is \u22123"), "-3");
  EXPECT_EQ(LastNumber("\u2212.5"), "-.5");
  EXPECT_EQ(LastNumber("8\u22123"), "3");
  EXPECT_EQ(LastNumber("it is .5"), ".5");
  EXPECT_EQ(LastNumber("42."), "42");
  EXPECT_EQ(LastNumber("none"), std::nullopt);
}

TEST(RationalTest, Expressions) {
  const auto number = [](int64_t a, int64_t b) { return Rational::Make(a, b); };
  EXPECT_EQ(Evaluate("1 + 2 * 3"), number(7, 1));
  EXPECT_EQ(Evaluate("(1 + 2) * 3 / 4"), number(9, 4));
  EXPECT_EQ(Evaluate("-2^2"), number(-4, 1));
  EXPECT_EQ(Evaluate("2^-2"), number(1, 4));
  EXPECT_EQ(Evaluate("2^3^2"), number(512, 1));
  EXPECT_EQ(Evaluate("8 / 2 / 2"), number(2, 1));
  EXPECT_EQ(Evaluate("5 - -3"), number(8, 1));
  for (const char* bad : {"", "+", "1 2", "1/0", "2^0.5", "(1", "1)", "a", "1..2", "9^9^9",
                          "10^200", "2(3)", "1e", "."})
    EXPECT_EQ(Evaluate(bad), std::nullopt) << bad;
  std::vector<Rational> literals;
  ASSERT_TRUE(Evaluate("(3 + 3) * 4", &literals));
  EXPECT_EQ(literals.size(), 3u);
}

RewardResult ScoreOf(const RuleOptions& options, const std::string& response, const Json& truth,
                     const std::string& source = "") {
  const auto verifier = ValueOrThrow(MakeRuleVerifier(options));
  RewardSample sample;
  sample.id = 7;
  sample.data_source = source;
  sample.response = response;
  sample.ground_truth = truth;
  return verifier->Verify({&sample, 1})[0];
}

double Score(RewardType type, const std::string& response, const Json& truth) {
  RuleOptions options;
  options.type = type;
  options.format_score = 0.1;
  const RewardResult result = ScoreOf(options, response, truth);
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(result.id, 7);
  return result.score;
}

TEST(RewardRulesTest, Gsm8k) {
  EXPECT_EQ(Score(RewardType::kGsm8k, "steps\n#### 1,234", "1234"), 1);
  EXPECT_EQ(Score(RewardType::kGsm8k, "#### $18.00", "18"), 1);
  EXPECT_EQ(Score(RewardType::kGsm8k, "#### 18 apples", 18), 1);
  EXPECT_EQ(Score(RewardType::kGsm8k, "#### 3 then\n#### 4", "4"), 1);
  EXPECT_EQ(Score(RewardType::kGsm8k, "#### 5", "He has 2 + 2 = <<2+2=4>>4.\n#### 4"), 0.1);
  EXPECT_EQ(Score(RewardType::kGsm8k, "the answer is 4", "4"), 0);
  EXPECT_EQ(Score(RewardType::kGsm8k, "#### none 4", "4"), 0);
  // As verl finds it: marks that no number follows are headings, or an ornament.
  EXPECT_EQ(Score(RewardType::kGsm8k, "#### 4 ####", "4"), 1);
  EXPECT_EQ(Score(RewardType::kGsm8k, "#### 3\n#### 4\n#### Check\nIt is 5.", "4"), 1);
  EXPECT_EQ(Score(RewardType::kGsm8k, "#### 3-4", "4"), 0.1);
  EXPECT_EQ(Score(RewardType::kGsm8k, "#### -4", "-4"), 1);
  EXPECT_EQ(Score(RewardType::kGsm8k, "####\n4", "4"), 0);
  EXPECT_EQ(Score(RewardType::kGsm8k, std::string(1 << 20, '#') + "\n4", "4"), 0);
  RuleOptions flexible;
  flexible.type = RewardType::kGsm8k;
  flexible.flexible = true;
  EXPECT_EQ(ScoreOf(flexible, "the answer is 4.", "4").score, 1);
  EXPECT_EQ(ScoreOf(flexible, "4 of 5", "4").score, 0);
}

TEST(RewardRulesTest, ArithmeticExactAndMath) {
  EXPECT_EQ(Score(RewardType::kArithmetic, " 46\n", "46"), 1);
  EXPECT_EQ(Score(RewardType::kArithmetic, "12+34=46", 46), 1);
  EXPECT_EQ(Score(RewardType::kArithmetic, "46 or 47", 46), 0.1);
  EXPECT_EQ(Score(RewardType::kArithmetic, "", 46), 0);
  EXPECT_EQ(Score(RewardType::kExact, " abc ", "abc"), 1);
  EXPECT_EQ(Score(RewardType::kExact, "abcd", "abc"), 0.1);
  EXPECT_EQ(Score(RewardType::kMath, "so $\\boxed{\\frac{1}{2}}$", "0.5"), 1);
  EXPECT_EQ(Score(RewardType::kMath, "\\boxed{3}", "we get \\boxed{4}"), 0.1);
  EXPECT_EQ(Score(RewardType::kMath, "0.5", "0.5"), 0);
}

// As verl's math_dapo: the answer is said in a line of its own, and what is not right costs 1.
TEST(RewardRulesTest, MathOfDapoAndAime) {
  const auto score = [](const std::string& response, const Json& truth) {
    RuleOptions options;
    options.format_score = 0.1;
    const double found = ScoreOf(options, response, truth, "math_dapo").score;
    for (const char* alike : {"aime_2024", "math", "math_dapo_reasoning"})
      EXPECT_EQ(ScoreOf(options, response, truth, alike).score, found) << alike;
    return found;
  };
  EXPECT_EQ(score("We add.\nAnswer: 34", "34"), 1);
  EXPECT_EQ(score("Answer: $34$", 34), 1);
  EXPECT_EQ(score("Final ANSWER :\n \\frac12\nDone", "\\frac{1}{2}"), 1);
  EXPECT_EQ(score("Answer: 3\nNo.\nAnswer: 34", "34"), 1);
  EXPECT_EQ(score("Answer: 34\nNo.\nAnswer: 3", "34"), -1);
  // The first of a line has all of it.
  EXPECT_EQ(score("Answer: Answer: 34", "34"), -1);
  // What is dressed as sentences of a model are.
  for (const char* const right :
       {"The answer is $34$.", "It is $34$ so", "a=3, b=34", "\"34\"", "a 34", "34 degrees", "3 4",
        "\\boxed{34}", "\\text{34}", "$x = 34$"})
    EXPECT_EQ(score(std::string("Answer: ") + right, "34"), 1) << right;
  // Text is compared, not values.
  for (const char* const wrong : {"34 apples", "034", "34.0", "34.", "[34]"})
    EXPECT_EQ(score(std::string("Answer: ") + wrong, "34"), -1) << wrong;
  EXPECT_EQ(score("Answer: 0.5", "\\frac12"), -1);
  EXPECT_EQ(score("Answer: 1,234", "1234"), 1);
  EXPECT_EQ(score("Answer: (1,234)", "(1234)"), -1);
  // Without the line a box is the answer, as it stands, within the last 100 characters; a line goes
  // before a box.
  EXPECT_EQ(score("so it is $\\boxed{34}$.", "34"), 1);
  EXPECT_EQ(score("so it is $\\boxed{34}$.", 34), 1);
  EXPECT_EQ(score("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"), 1);
  EXPECT_EQ(score("\\boxed{34}" + std::string(90, 'x'), "34"), 1);
  for (const char* const wrong :
       {"\\boxed{ 34}", "\\boxed{34", "\\boxed{34} \\boxed{3", "\\boxed{34} or \\boxed{3}",
        "\\boxed 34", "\\fbox{34}", "Answer: 7\nno, \\boxed{34}", "\\boxed{$34$}"})
    EXPECT_EQ(score(wrong, "34"), -1) << wrong;
  EXPECT_EQ(score("\\boxed{34}" + std::string(91, 'x'), "34"), -1);
  EXPECT_EQ(score("\\boxed{\\frac12}", "\\frac{1}{2}"), -1);
  EXPECT_EQ(score("Answer: [INVALID]\n\\boxed{34}", "34"), 1);
  EXPECT_EQ(score("34", "34"), -1);
  EXPECT_EQ(score("", "34"), -1);
  EXPECT_EQ(score("Answer:", "34"), -1);
  EXPECT_EQ(score("answe", "34"), -1);
  // No further back than 300 characters, of whatever bytes.
  std::string umlauts;
  for (int i = 0; i < 290; ++i) umlauts += "\u00fc";
  EXPECT_EQ(score("Answer: 34" + std::string("\n") + umlauts.substr(2), "34"), 1);
  EXPECT_EQ(score("Answer: 34\n" + umlauts + "x", "34"), -1);
  RuleOptions options;
  options.format_pattern = "<think>.*";
  options.format_weight = 0.5;
  EXPECT_EQ(ScoreOf(options, "<think> Answer: 2", "2", "math_dapo").score, 0.5);
  EXPECT_EQ(ScoreOf(options, "Answer: 2", "2", "math_dapo").score, -1);
  EXPECT_EQ(ScoreOf(options, "Answer: 2", "2", "math_dapo").extra.at("acc"), 1);
  // Of other sources it is the box alone.
  EXPECT_EQ(ScoreOf(options, "<think> Answer: 2", "2", "lighteval/MATH").score, 0);
}

TEST(RewardRulesTest, Countdown) {
  const Json truth = {{"target", 24}, {"numbers", {4, 6, 8, 8}}};
  EXPECT_EQ(Score(RewardType::kCountdown, "<answer>(8 / 8 + 0*1)</answer>", truth),
            0.1);  // others' numbers
  EXPECT_EQ(Score(RewardType::kCountdown, "think\n<answer> 4 * 6 * 8 / 8 </answer>", truth), 1);
  EXPECT_EQ(Score(RewardType::kCountdown, "4*6*8/8 = 24", truth), 1);
  EXPECT_EQ(Score(RewardType::kCountdown, "let me see\n4*6*8/8", truth), 1);
  EXPECT_EQ(Score(RewardType::kCountdown, "4*6", truth), 0.1);          // not all
  EXPECT_EQ(Score(RewardType::kCountdown, "4*6*8/8+8-8", truth), 0.1);  // one too often
  EXPECT_EQ(Score(RewardType::kCountdown, "4*6*8/0", truth), 0);
  EXPECT_EQ(Score(RewardType::kCountdown, "24", truth), 0.1);
  EXPECT_EQ(Score(RewardType::kCountdown, "__import__('os')", truth), 0);
}

TEST(RewardRulesTest, FormatPattern) {
  RuleOptions options;
  options.type = RewardType::kMath;
  options.format_pattern = "<think>.*</think>.*\\\\boxed\\{.*";
  options.format_weight = 0.5;
  const auto good = ScoreOf(options, "<think>a\nb</think> \\boxed{2}", "2");
  EXPECT_EQ(good.score, 0.5);
  EXPECT_EQ(good.extra.at("format"), 1);
  const auto bad = ScoreOf(options, "\\boxed{2}", "2");
  EXPECT_EQ(bad.score, 0);
  EXPECT_EQ(bad.extra.at("acc"), 1);
  // Characters, and not bytes, are counted and stand in classes.
  for (const auto& [pattern, text, matches] :
       std::vector<std::tuple<std::string, std::string, int>>{
           {"...... .boxed.2.", "dürfte \\boxed{2}", 1},
           {"[^ä]* .boxed.2.", "ö \\boxed{2}", 1},
           {"\\w+ .boxed.2.", "ünï \\boxed{2}", 1},
           {".. .boxed.2.", "\xff\xfe \\boxed{2}", 1}}) {  // no text: of bytes
    options.format_pattern = pattern;
    EXPECT_EQ(ScoreOf(options, text, "2").extra.at("format"), matches) << pattern << " " << text;
  }
  options.format_pattern = "(";
  EXPECT_THAT(MakeRuleVerifier(options).status().message(), HasSubstr("reward.format_pattern"));
}

TEST(RewardRulesTest, ErrorsAreNoScores) {
  RuleOptions options;
  EXPECT_THAT(ScoreOf(options, "1", "1", "my_own").error, HasSubstr("my_own"));
  EXPECT_TRUE(ScoreOf(options, "1", "1", "addition").ok());
  EXPECT_THAT(ScoreOf(options, "1", nullptr, "addition").error, HasSubstr("ground_truth"));
  EXPECT_THAT(ScoreOf(options, "1", "x", "openai/gsm8k").error, HasSubstr("a number"));
  EXPECT_THAT(ScoreOf(options, "1", 24, "countdown").error, HasSubstr("target"));
  options.type = RewardType::kCommand;
  EXPECT_FALSE(MakeRuleVerifier(options).ok());
}

TEST(RewardRulesTest, WhatAGroundTruthMustBe) {
  using enum RewardType;
  const auto said = [](RewardType rule, const Json& truth, const char* source = "") {
    return CheckGroundTruth(rule, source, truth).message();
  };
  const Json task = {{"target", 24}, {"numbers", {1, 2, 3, 4}}};
  for (const auto& [rule, good] :
       std::vector<std::pair<RewardType, Json>>{{kExact, "x"},
                                                {kArithmetic, 4},
                                                {kGsm8k, "2+2=4\n#### 4"},
                                                {kMath, Json::array({"x"})},
                                                {kCountdown, task}}) {
    EXPECT_EQ(said(rule, good), "") << NameOf(rule);
    for (const Json& bad : {Json(), Json(true), Json({{"a", 1}})})
      EXPECT_THAT(said(rule, bad), HasSubstr("ground_truth: expected")) << NameOf(rule);
  }
  EXPECT_THAT(said(kGsm8k, "#### none"), HasSubstr("found 'none'"));
  EXPECT_THAT(said(kMath, Json(), "math_dapo"), HasSubstr("found none"));
  // By which nothing could be right.
  for (const char* empty : {"", " \n", "\\boxed{}", "\\boxed{ }", "$$"})
    EXPECT_THAT(said(kMath, empty), HasSubstr("an answer of 1 to ")) << empty;
  EXPECT_THAT(said(kMath, std::string(1 << 20, '1')), HasSubstr("an answer of 1 to "));
  EXPECT_EQ(said(kAuto, "4", "openai/gsm8k"), "");
  EXPECT_NE(said(kAuto, "four", "openai/gsm8k"), "");
  EXPECT_THAT(said(kAuto, "4", "poems"), HasSubstr("'poems'"));
  EXPECT_EQ(said(kPython, Json()), "") << "it reads what it likes";
}

TEST(RewardRulesTest, DataSourcesOfTheField) {
  EXPECT_EQ(RuleOfDataSource("openai/gsm8k"), RewardType::kGsm8k);
  EXPECT_EQ(RuleOfDataSource("DigitalLearningGmbH/MATH-lighteval"), RewardType::kMath);
  EXPECT_EQ(RuleOfDataSource("math_dapo"), RewardType::kMath);
  EXPECT_EQ(RuleOfDataSource("aime_2024"), RewardType::kMath);
  EXPECT_EQ(RuleOfDataSource("Jiayi-Pan/Countdown-Tasks-3to4"), RewardType::kCountdown);
  EXPECT_EQ(RuleOfDataSource("copy"), RewardType::kExact);
  EXPECT_EQ(RuleOfDataSource("poems"), std::nullopt);
}

// Megabytes made to be slow: each ends at once, with a score of 0 or an error of its own. A rule
// without its limits would run for hours or out of stack here.
TEST(RewardRulesTest, HostileResponsesEnd) {
  const size_t n = size_t{3} << 20;
  const auto repeat = [&](const std::string& piece) {
    std::string text;
    while (text.size() < n) text += piece;
    return text;
  };
  const std::string texts[] = {
      repeat("("),
      repeat("\\boxed{"),
      repeat("{"),
      repeat("\\frac"),
      "\\boxed{" + repeat("{}") + "}",
      "\\boxed{" + repeat("\\frac{") + "}",
      "\\boxed{" + std::string(2000, '^') + "1}",
      "\\boxed{" + std::string(1000, '(') + "1" + std::string(1000, ')') + "}",
      repeat("9"),
      repeat("-"),
      repeat("1,"),
      repeat("####"),
      repeat("<answer>"),
      repeat("1+"),
      std::string(n, '\0'),
      repeat("\xFF\xFE"),
      "\\boxed{9^9^9^9^9}",
      "9^9^9^9"};
  for (const std::string& text : texts) {
    for (const RewardType type : RewardRules()) {
      RuleOptions options;
      options.type = type;
      const Json truth =
          type == RewardType::kCountdown ? Json({{"target", 24}, {"numbers", {1, 2}}}) : Json("24");
      const auto result = ScoreOf(options, text, truth);
      EXPECT_EQ(result.score, 0) << NameOf(type) << " " << text.substr(0, 20);
    }
  }
  RuleOptions slow;
  slow.type = RewardType::kExact;
  slow.format_pattern = "(a+)+[bc]";
  const auto result = ScoreOf(slow, std::string(40, 'a'), std::string(40, 'a'));
  EXPECT_THAT(result.error, HasSubstr("reward.format_pattern"));
}

}  // namespace
}  // namespace keel::rewards
