// Who is named when ranks give up: the one that does not, and nobody of those that only waited.
#include "parallel/groups/hang_report.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

namespace keel::parallel {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::chrono::milliseconds kPatience(1500);
const Status kLate(StatusCode::kDeadlineExceeded, "receive took longer than 5 s");
const Status kLost(StatusCode::kUnavailable, "connection closed by peer");

// What ranks say that give up one after the other, `gap` apart, each on its cause; of a rank whose
// cause is ok, that it does not give up: "".
std::vector<std::string> GiveUp(const std::vector<Status>& causes,
                                std::chrono::milliseconds gap = std::chrono::milliseconds(20)) {
  const Store store = Store::InProcess();
  const int world = static_cast<int>(causes.size());
  std::vector<HangReport> reports;
  for (int r = 0; r < world; ++r) reports.emplace_back(store, r, world);
  std::vector<std::string> said(causes.size());
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < causes.size(); ++r) {
    if (causes[r].ok()) continue;
    ranks.emplace_back([&, r] {
      std::this_thread::sleep_for(r * gap);
      said[r] = reports[r].GiveUp(causes[r], kPatience);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return said;
}

TEST(HangReport, TheOneThatDoesNotGiveUpIsNamedByAll) {
  const auto said = GiveUp({kLate, kLate, Status::Ok(), kLate});
  EXPECT_THAT(said[2], IsEmpty());
  for (const size_t r : {0, 1, 3}) {
    EXPECT_THAT(said[r], AllOf(HasSubstr(fmt::format("pid {}", getpid())),
                               HasSubstr("rank 2 (host "), Not(HasSubstr("rank 0")),
                               Not(HasSubstr("rank 1")), Not(HasSubstr("rank 3"))));
  }
}

TEST(HangReport, WhereAllWaitNobodyIsBlamed) {
  EXPECT_THAT(GiveUp({kLate, kLate, kLate}), Each(HasSubstr("they wait for each other")));
}

// Its peer is gone: that is known already, and it has given up, too.
TEST(HangReport, ARankWithAnotherCauseSaysNothingAndIsNotNamed) {
  const auto said = GiveUp({kLost, kLate, Status::Ok()});
  EXPECT_THAT(said[0], IsEmpty());
  EXPECT_THAT(said[1], AllOf(HasSubstr("rank 2"), Not(HasSubstr("rank 0"))));
}

TEST(HangReport, OfManyAFewAreNamed) {
  std::vector<Status> causes(20, Status::Ok());
  causes[3] = kLate;
  const auto said = GiveUp(causes);
  EXPECT_THAT(said[3], AllOf(HasSubstr("rank 8 ("), Not(HasSubstr("rank 9 (")),
                             HasSubstr("and 11 others did not give up")));
}

}  // namespace
}  // namespace keel::parallel
