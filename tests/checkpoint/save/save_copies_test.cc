// What several ranks have is compared by the save itself, beside the training.
#include <gmock/gmock.h>

#include "checkpoint/format/names.h"
#include "tests/checkpoint/save/async_rank.h"

namespace keel::checkpoint {
namespace {

using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests
using ::testing::HasSubstr;

// All four ranks hold the box, and each writes some of its rows.
void AskToCompare(const Cut& cut, SaveRequest& request) {
  std::vector<std::string> words;
  for (const RankPart& part : cut.model) words.push_back(NameParts(part.table));
  request.roles.front().shared = ValueOrThrow(SharedParts(words));
}

TEST(SaveCopies, ThatAreEqualAreSavedAndGivenFree) {
  auto [state, cut] = MakeStateOfOneBox();
  SimFileSystem disk;
  Job(disk, cut, SmallOptions(), [&, &its = state, &parts = cut](int, Rank& job) {
    for (int64_t step = 1; step <= 3; ++step) {  // the second and third are copied ahead
      SaveRequest request = job.Request(step);
      AskToCompare(parts, request);
      ThrowIfError(job->StartSave(std::move(request)));
      job.Train(its);
      EXPECT_EQ(job.End().status.ToString(), "ok") << step;
    }
  });
  ExpectLoads(disk, cut, 3, state);
}

TEST(SaveCopies, OneElementThatDiffersOnARankFailsTheSaveWhoeverWritesIt) {
  for (const bool background : {false, true}) {
    auto [state, cut] = MakeStateOfOneBox();
    SimFileSystem disk;
    std::vector<std::byte>& unlike = *cut.model[2].memory.back();
    Job(disk, cut, SmallOptions(), [&, &parts = cut](int rank, Rank& job) {
      const auto save = [&](int64_t step) {
        SaveRequest request = job.Request(step);
        AskToCompare(parts, request);
        if (!background) return job->Save(request).status();
        ThrowIfError(job->StartSave(std::move(request)));
        return job.End().status;
      };
      EXPECT_EQ(save(1).ToString(), "ok");
      for (const size_t at : {size_t{0}, unlike.size() / 2, unlike.size() - 1}) {
        if (rank == 2) unlike[at] ^= std::byte{1};
        const Status status = save(2);
        if (rank == 2) unlike[at] ^= std::byte{1};
        EXPECT_EQ(status.code(), StatusCode::kInvalidData) << status.ToString();
        EXPECT_THAT(status.message(), HasSubstr("'most' of ranks 0 and 2"));
      }
    });
    EXPECT_FALSE(disk.Stat(StepDirectory(2)).ok());
    EXPECT_THAT(Leftovers(disk), ::testing::IsEmpty());
    ExpectLoads(disk, cut, 1, state);
  }
}

}  // namespace
}  // namespace keel::checkpoint
