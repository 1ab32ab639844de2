#include "rewards/dapo_answer.h"

#include <gtest/gtest.h>

#include <string>

namespace keel::rewards {
namespace {

TEST(DapoAnswerTest, TheLastLineThatSaysOne) {
  EXPECT_EQ(DapoAnswer("Answer: 1\nanswer :2 \n"), "2 ");
  EXPECT_EQ(DapoAnswer("ANSWER:\n\n 3\n4"), "3");
  EXPECT_EQ(DapoAnswer("Answer: Answer: 5"), "Answer: 5");
  // White space and letters as Python's regular expressions have them.
  EXPECT_EQ(DapoAnswer("Answer:\xc2\xa0"
                       "42"),
            "42");
  EXPECT_EQ(DapoAnswer("Answer\xe3\x80\x80:\x1c"
                       "42"),
            "42");
  EXPECT_EQ(DapoAnswer("An\xc5\xbfwer: 42"), "42");
  EXPECT_EQ(NormalizeDapoAnswer("42\xc2\xa0\x1f"), "42");
  EXPECT_EQ(NormalizeDapoAnswer("\xe2\x80\xa8"
                                "42\xe3\x80\x80"),
            "42");
  EXPECT_EQ(DapoAnswer("Answer: 1\nAnswer: "), "");
  EXPECT_EQ(DapoAnswer("Answer: 1\nAnswer:\n"), "1");
  EXPECT_EQ(DapoAnswer("Answer: 1\nAnswer:"), "1");
  for (const char* const none : {"", "Answer", "Answer 1", "Answe: 1"})
    EXPECT_EQ(DapoAnswer(none), "[INVALID]") << none;
}

// What verl's normalize_final_answer makes of them.
TEST(DapoAnswerTest, DressingIsTakenOff) {
  for (const auto& [answer, plain] : std::initializer_list<std::pair<const char*, const char*>>{
           {"x = y = 42", "42"},
           {"an apple a day", "appleday"},
           {"so $1$ and $2$.", "1"},
           {"$1$\n$2$ more", "1\n2"},
           {"\\text{five} \\textbf{six}", "fivesix"},
           {"\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"},
           {"\\boxed{1} and {2}", "1}and{2"},
           {"\\frac12", "\\frac{1}{2}"},
           {"\\frac1", "\\frac1"},
           {"\\fracé中3", "\\frac{é}{中}3"},
           {"\\frac{3}{4}", "\\frac{3}{4}"},
           {"\\sqrt2 + \\sqrt{3}", "\\sqrt{2}+\\sqrt{3}"},
           {"\\frac\\frac12", "\\frac{\\}{f}rac12"},
           {"90^\\circ", "90"},
           {"5 \\text{ cm}", "5"},
           {"12,345,678", "12345678"},
           {"1,2;", "1,2;"},
           {"\\$5.00", "5.00"},
           {"mbox{no}", "text{no}"},
           {"\\mbox{no}", "no"},
           {"3\\text{m}", "3"},
           {"", ""},
       })
    EXPECT_EQ(NormalizeDapoAnswer(answer), plain) << answer;
}

}  // namespace
}  // namespace keel::rewards
