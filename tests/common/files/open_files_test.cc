#include "common/files/open_files.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <string>

namespace keel {
namespace {

using ::testing::HasSubstr;

class OpenFiles : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0); }
  void TearDown() override { setrlimit(RLIMIT_NOFILE, &before_); }
  rlimit before_{};
};

TEST_F(OpenFiles, TheSoftLimitBecomesTheHardOne) {
  const rlimit low = {64, before_.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_TRUE(RaiseOpenFileLimit(static_cast<int64_t>(before_.rlim_max)).ok());
  rlimit now{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(now.rlim_cur, before_.rlim_max);
  EXPECT_EQ(now.rlim_max, before_.rlim_max);
}

TEST_F(OpenFiles, AHardLimitThatDoesNotSufficeIsNamed) {
  const auto more = static_cast<int64_t>(before_.rlim_max) + 1;
  const Status status = RaiseOpenFileLimit(more);
  EXPECT_EQ(status.code(), StatusCode::kExhausted);
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(before_.rlim_max)));
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(more)));
  EXPECT_THAT(status.message(), HasSubstr("LimitNOFILE"));
}

}  // namespace
}  // namespace keel
