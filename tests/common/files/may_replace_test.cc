#include "common/files/may_replace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace keel {
namespace {

std::string Folder(const char* name) {
  const std::string folder = ::testing::TempDir() + "/may_replace_" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(MayReplace, ItsOwnFilesAndNoOther) {
  const std::string folder = Folder("files");
  const auto at = [&](const char* name) { return folder + "/" + name; };
  const auto write = [&](const char* name, const char* text) { std::ofstream(at(name)) << text; };
  write("own", "<html>old");
  write("other", "{}");
  write("short", "<h");
  write("empty", "");
  EXPECT_TRUE(MayReplace(at("none"), "<html>").ok());
  EXPECT_TRUE(MayReplace(at("own"), "<html>").ok());
  EXPECT_TRUE(MayReplace(at("empty"), "<html>").ok());
  for (const char* name : {"other", "short"}) {
    const Status status = MayReplace(at(name), "<html>");
    EXPECT_EQ(status.code(), StatusCode::kCannotCreate);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("is none of this command's"));
  }
}

// A rename would put a file in the place of /dev/null.
TEST(MayReplace, NothingThatIsNoFile) {
  const std::string folder = Folder("others");
  const std::string pipe = folder + "/pipe", link = folder + "/link";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(symlink("/dev/null", link.c_str()), 0);
  EXPECT_THAT(MayReplace(pipe, "x").message(), ::testing::HasSubstr("is a pipe"));
  EXPECT_THAT(MayReplace("/dev/null", "x").message(), ::testing::HasSubstr("is a device"));
  EXPECT_THAT(MayReplace(link, "x").message(), ::testing::HasSubstr("is a device"));
  EXPECT_THAT(MayReplace(folder, "x").message(), ::testing::HasSubstr("is a directory"));
}

}  // namespace
}  // namespace keel
