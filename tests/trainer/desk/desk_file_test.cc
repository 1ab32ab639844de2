#include "trainer/desk/desk_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/trainer/data/tokens/scratch_folder.h"

namespace keel::trainer::desk {
namespace {

TEST(DeskFileTest, IsReadByItsUserAlone) {
  const ScratchFolder scratch;
  const std::filesystem::path folder = scratch.path();
  EXPECT_EQ(ReadDeskFile(folder.string()).status().code(), StatusCode::kNotFound);
  std::ofstream(folder / "desk.json.tmp") << "of an attempt that died";
  for (const int port : {4711, 4712}) {
    ASSERT_TRUE(WriteDeskFile(folder.string(), {"10.0.0.1", port, "s3cret"}).ok());
    const DeskAddress read = ValueOrThrow(ReadDeskFile(folder.string()));
    EXPECT_EQ(read.host, "10.0.0.1");
    EXPECT_EQ(read.port, port);
    EXPECT_EQ(read.secret, "s3cret");
  }
  struct stat info {};
  ASSERT_EQ(stat((folder / kDeskFileName).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  EXPECT_FALSE(std::filesystem::exists(folder / "desk.json.tmp"));
  RemoveDeskFile(folder.string());
  RemoveDeskFile(folder.string());
  EXPECT_EQ(ReadDeskFile(folder.string()).status().code(), StatusCode::kNotFound);

  EXPECT_FALSE(WriteDeskFile((folder / "missing").string(), {}).ok());
  for (const char* bad : {"", "{", "[]", "{\"host\": 3, \"port\": \"a\", \"secret\": 1}"}) {
    std::ofstream(folder / kDeskFileName) << bad;
    EXPECT_FALSE(ReadDeskFile(folder.string()).ok()) << bad;
  }
}

}  // namespace
}  // namespace keel::trainer::desk
