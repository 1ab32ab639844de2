// A module that is not what it should be is refused by name, before the loader touches it.
#include "common/process/shared_module.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace keel {
namespace {

using ::testing::HasSubstr;

// Where modules are looked for: beside this program.
std::filesystem::path Beside(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

std::string Refused(const std::string& name) {
  const auto opened = OpenModule(name, Binding::kLazy);
  EXPECT_EQ(opened.status().code(), StatusCode::kUnavailable);
  return opened.status().message();
}

TEST(SharedModuleTest, APipeIsNotWaitedFor) {
  const std::string name = "libkeel_test_pipe.so";
  std::filesystem::remove(Beside(name));
  ASSERT_EQ(mkfifo(Beside(name).c_str(), 0600), 0);
  EXPECT_THAT(Refused(name), HasSubstr("is not a regular file"));
  std::filesystem::remove(Beside(name));
}

// The loader would map it all, and whoever touches what is not there gets SIGBUS.
TEST(SharedModuleTest, OneThatIsCutOffIsNamed) {
  const std::string name = "libkeel_test_cut.so";
  std::filesystem::copy_file("/proc/self/exe", Beside(name),
                             std::filesystem::copy_options::overwrite_existing);
  std::filesystem::resize_file(Beside(name), 100'000);
  EXPECT_THAT(Refused(name), HasSubstr("is cut off: it has 100000 bytes"));
  std::filesystem::remove(Beside(name));
}

TEST(SharedModuleTest, OneThatIsMissingIsNamedWithItsPlaces) {
  EXPECT_THAT(Refused("libkeel_no_such.so"), HasSubstr("../lib/keel/libkeel_no_such.so"));
}

}  // namespace
}  // namespace keel
