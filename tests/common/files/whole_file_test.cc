#include "common/files/whole_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstdio>
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
