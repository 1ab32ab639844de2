#include "common/files/whole_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

namespace keel {
namespace {

using ::testing::HasSubstr;

TEST(WholeFileTest, ReadsAllOrSaysWhyNot) {
  const std::string path = ::testing::TempDir() + "/whole_file_test";
  const std::string text = std::string(200'000, 'x') + std::string("\0\n", 2);
  std::ofstream(path, std::ios::binary) << text;
  EXPECT_EQ(ValueOrThrow(ReadWholeFile(path)), text);
  std::ofstream(path, std::ios::binary | std::ios::trunc).flush();
  EXPECT_EQ(ValueOrThrow(ReadWholeFile(path)), "");
  std::remove(path.c_str());
  const Status missing = ReadWholeFile(path).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr(path));
  // Which opens, and has no text.
  EXPECT_THAT(ReadWholeFile(::testing::TempDir()).status().message(), HasSubstr("directory"));
}

TEST(WholeFileTest, IsReplacedAsAWhole) {
  const std::string folder = ::testing::TempDir() + "/whole_file_test_folder";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const std::string path = folder + "/file";
  for (const std::string text : {"old", "", "new"}) {
    EXPECT_EQ(ReplaceWholeFile(path, text, 0600).ToString(), "ok");
    EXPECT_EQ(ValueOrThrow(ReadWholeFile(path)), text);
  }
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  // A directory has the name: what is there stays, and nothing is left.
  std::filesystem::create_directory(folder + "/taken");
  EXPECT_FALSE(ReplaceWholeFile(folder + "/taken", "x").ok());
  EXPECT_FALSE(std::filesystem::exists(folder + "/taken.tmp"));
  EXPECT_FALSE(ReplaceWholeFile(folder + "/none/file", "x").ok());
  std::filesystem::remove_all(folder);
}

TEST(WholeFileTest, APipeIsReadToItsEnd) {
  const std::string path = ::testing::TempDir() + "/whole_file_test_pipe";
  std::remove(path.c_str());
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(path) << "one\n" << std::flush << "two\n"; });
  EXPECT_EQ(ValueOrThrow(ReadWholeFile(path)), "one\ntwo\n");
  writer.join();
  std::remove(path.c_str());
}

}  // namespace
}  // namespace keel
