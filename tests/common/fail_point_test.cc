#include "common/fail_point.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

namespace keel {
namespace {

using ::testing::HasSubstr;

class FailPointTest : public ::testing::Test {
 protected:
  void TearDown() override { ASSERT_TRUE(ArmFailPoints("", 0).ok()); }
};

TEST_F(FailPointTest, FailsTheNthTimeOnItsRankOnly) {
  ASSERT_TRUE(ArmFailPoints("save.begin:1:2:ENOSPC,writer.fsync:*:*:EIO", 1).ok());
  EXPECT_TRUE(FailPoint("save.begin").ok());
  const Status second = FailPoint("save.begin");
  EXPECT_EQ(second.code(), StatusCode::kNoSpace);
  EXPECT_THAT(second.message(), HasSubstr("save.begin"));
  EXPECT_TRUE(FailPoint("save.begin").ok());
  EXPECT_EQ(FailPoint("writer.fsync").code(), StatusCode::kIo);
  EXPECT_EQ(FailPoint("writer.fsync").code(), StatusCode::kIo);
  EXPECT_TRUE(FailPoint("writer.write").ok());
  ASSERT_TRUE(ArmFailPoints("save.begin:1:1:ENOSPC", 0).ok());
  EXPECT_TRUE(FailPoint("save.begin").ok());
}

TEST_F(FailPointTest, ThrowsAndDies) {
  ASSERT_TRUE(ArmFailPoints("step.begin:0:1:throw", 0).ok());
  EXPECT_THROW((void)FailPoint("step.begin"), std::runtime_error);
  EXPECT_EXIT(
      {
        (void)ArmFailPoints("step.begin:0:1:kill", 0);
        (void)FailPoint("step.begin");
      },
      ::testing::KilledBySignal(SIGKILL), "");
}

TEST_F(FailPointTest, RefusesWhatItDoesNotKnow) {
  for (const auto& [text, why] :
       {std::pair("save.begn:0:1:kill", "nearest: save.begin"),
        std::pair("save.begin:0:1", "3 parts"), std::pair("save.begin:x:1:kill", "rank"),
        std::pair("save.begin:0:0:kill", "from 1"),
        std::pair("save.begin:0:1:explode", "unknown action"),
        std::pair("save.begin:0:1:delay=-4", "unknown action")}) {
    const Status status = ArmFailPoints(text, 0);
    EXPECT_EQ(status.code(), StatusCode::kUsage) << text;
    EXPECT_THAT(status.message(), HasSubstr(why)) << text;
  }
}

// Every name of the table stands in the code, and every one in the code in the table. A name is one
// place, but that every task (language model, DPO, RL) has the phases of a start and of a step.
TEST_F(FailPointTest, TableAndCodeAgree) {
  const auto names = FailPointNames();
  EXPECT_GE(names.size(), 40U);
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  const std::regex use(R"re((?:FailPoint|KEEL_FAIL_POINT)\("([a-z_.]+)"\))re");
  std::multiset<std::string> used;
  for (const char* folder : {"checkpoint", "trainer", "rewards", "common", "tools", "parallel"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             std::filesystem::path(std::getenv("KEEL_SOURCE_DIR")) / folder)) {
      if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
      std::stringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      const std::string source = text.str();
      for (auto it = std::sregex_iterator(source.begin(), source.end(), use);
           it != std::sregex_iterator(); ++it)
        used.insert((*it)[1]);
    }
  }
  constexpr size_t kTasks = 3;
  for (const std::string_view name : names) {
    const size_t times = used.count(std::string(name));
    EXPECT_TRUE(times == 1 || (times == kTasks && !std::string_view(name).starts_with("save.")))
        << name << " is used " << times << " times";
  }
  for (const std::string& name : used)
    EXPECT_TRUE(std::binary_search(names.begin(), names.end(), name)) << name;
}

}  // namespace
}  // namespace keel
