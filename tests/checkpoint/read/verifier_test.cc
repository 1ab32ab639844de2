// What verifying says of files that cannot be read: which of them are damage, and which are not.
#include "checkpoint/read/verifier.h"

#include <gmock/gmock.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

constexpr char kManifest[] = "global_step_10/manifest.json";
constexpr char kIndex[] = "global_step_10/index.bin";
constexpr char kWeights[] = "global_step_10/actor/model/rank_00000.safetensors";
constexpr char kMoments[] = "global_step_10/actor/optimizer/rank_00000.safetensors";

class Verifier : public ::testing::Test {
 protected:
  Verifier() {
    Cut cut({1}, 1, ModelSize::kTiny);
    cut.Fill(MakeTrainingState(10, ModelSize::kTiny));
    ThrowIfError(SaveOn(disk_, cut, 10, SmallOptions()));
  }
  // What is said where opening one of these ends with this errno.
  VerifyReport Verify(std::map<std::string, int, std::less<>> errors) {
    disk_.SetFault(
        [errors = std::move(errors)](int64_t, std::string_view operation, std::string_view path) {
          const auto found = errors.find(path);
          const bool fails = found != errors.end() && (operation == "open" || operation == "lock");
          return fails ? Status::FromErrno(found->second, operation, path) : Status::Ok();
        });
    VerifyReport report = VerifyCheckpoint(disk_, "global_step_10", 1);
    disk_.SetFault({});
    return report;
  }

  SimFileSystem disk_;
};

TEST_F(Verifier, WhatThisProcessMayNotReadIsNotVerifiedAndNoDamage) {
  for (const char* const path : {kManifest, kIndex, kWeights}) {
    for (const int error : {EACCES, EPERM}) {
      SCOPED_TRACE(std::string(path) + ": " + std::strerror(error));
      const VerifyReport report = Verify({{path, error}});
      EXPECT_EQ(report.unproven, StatusCode::kIo);
      EXPECT_THAT(report.problems,
                  ElementsAre(AllOf(HasSubstr(path), HasSubstr(std::strerror(error)))));
    }
  }
  EXPECT_THAT(Verify({}).problems, SizeIs(0));
}

TEST_F(Verifier, ADiskThatDoesNotReadIsDamageAndALimitIsNot) {
  for (const char* const path : {kManifest, kIndex, kWeights}) {
    SCOPED_TRACE(path);
    const VerifyReport broken = Verify({{path, EIO}});
    EXPECT_EQ(broken.unproven, StatusCode::kOk);
    EXPECT_THAT(broken.problems, ElementsAre(HasSubstr(path)));
    for (const int error : {EMFILE, ENFILE, ENOMEM})
      EXPECT_EQ(Verify({{path, error}}).unproven, StatusCode::kExhausted);
  }
}

// One file that is damaged is enough, whatever the others hold.
TEST_F(Verifier, DamageIsDamageBesideWhatMayNotBeRead) {
  const VerifyReport closed = Verify({{kWeights, EACCES}, {kMoments, EACCES}});
  EXPECT_EQ(closed.unproven, StatusCode::kIo);
  EXPECT_THAT(closed.problems, SizeIs(2));
  std::string content = disk_.Content(kMoments);
  content.back() = static_cast<char>(content.back() ^ 1);
  disk_.SetContent(kMoments, content);
  const VerifyReport damaged = Verify({{kWeights, EACCES}});
  EXPECT_EQ(damaged.unproven, StatusCode::kOk);
  EXPECT_THAT(damaged.problems, ElementsAre(HasSubstr(kWeights), HasSubstr(kMoments)));
}

}  // namespace
}  // namespace keel::checkpoint
