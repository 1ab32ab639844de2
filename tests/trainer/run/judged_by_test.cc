#include "trainer/run/judged_by.h"

#include <gtest/gtest.h>

#include "tests/checkpoint/support/test_support.h"

namespace keel::trainer {
namespace {

const ReadContents kRead = {{"content of data.val_files", "2 samples with digest a"},
                            {"content of data.train_files", "9 samples with digest b"},
                            {"reward", "exact"}};

TEST(JudgedBy, IsWhatAValidationReads) {
  EXPECT_EQ(JudgedByOf(kRead),
            (ReadContents{{"content of data.val_files", "2 samples with digest a"},
                          {"reward", "exact"}}));
}

TEST(JudgedBy, ValuesOfOtherRowsAreNotAlikeAndWhatIsNotSaidIs) {
  const ReadContents mine = JudgedByOf(kRead);
  ReadContents other = mine;
  EXPECT_TRUE(JudgedAlike(mine, other));
  EXPECT_TRUE(JudgedAlike(mine, {}));
  other["content of data.val_files"] = "2 samples with digest c";
  EXPECT_FALSE(JudgedAlike(mine, other));
  EXPECT_FALSE(JudgedAlike(other, mine));
}

// Whichever of the two keys they came by.
TEST(JudgedBy, RowsThatAreSetApartAreNotThoseOfAFile) {
  const ReadContents apart =
      JudgedByOf({{"the samples that data.val_split sets apart", "8 samples with digest d"}});
  const ReadContents file = JudgedByOf(kRead);
  EXPECT_FALSE(JudgedAlike(apart, file));
  EXPECT_FALSE(JudgedAlike(file, apart));
  EXPECT_TRUE(JudgedAlike(apart, {{"reward", "exact"}}));
}

TEST(JudgedBy, OfACheckpointItIsWhatItsFilesSay) {
  const checkpoint::testing::TempDir dir;
  const auto files = dir.Open();
  ThrowIfError(files->MakeDirectory("global_step_4"));
  EXPECT_TRUE(JudgedByOf(*files, "global_step_4").empty());
  ThrowIfError(
      WriteFileDurably(*files, "global_step_4/data_state.json", DataStateJson({}, {}, kRead)));
  EXPECT_EQ(JudgedByOf(*files, "global_step_4"), JudgedByOf(kRead));
  ThrowIfError(files->Remove("global_step_4/data_state.json"));
  ThrowIfError(WriteFileDurably(*files, "global_step_4/data_state.json", "{"));
  EXPECT_TRUE(JudgedByOf(*files, "global_step_4").empty());
}

}  // namespace
}  // namespace keel::trainer
