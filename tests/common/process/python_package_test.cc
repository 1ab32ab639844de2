// Real files and real processes: a shell script stands in for an interpreter.
#include "common/process/python_package.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace keel {
namespace {

namespace fs = std::filesystem;

class PythonPackageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/keel-python-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string Script(const std::string& name, const std::string& text) {
    std::ofstream(root_ / name) << "#!/bin/sh\n" << text << "\n";
    fs::permissions(root_ / name, fs::perms::owner_all);
    return root_ / name;
  }
  fs::path root_;
};

TEST_F(PythonPackageTest, TheNewestPythonComesFirstAndOnlyFoldersCount) {
  for (const char* folder : {"lib/python3.9/site-packages", "lib/python3.11/site-packages",
                             "local/lib/python3.11/dist-packages", "lib/python3/dist-packages",
                             "lib/python3.x/site-packages", "lib/python2.7/site-packages"})
    fs::create_directories(root_ / folder);
  std::vector<std::string> found;
  for (const fs::path& path : SitePackagesUnder(root_))
    found.push_back(path.lexically_relative(root_));
  EXPECT_THAT(found, ::testing::ElementsAre(
                         "lib/python3.11/site-packages", "local/lib/python3.11/dist-packages",
                         "lib/python3.9/site-packages", "lib/python3/dist-packages"));
  EXPECT_TRUE(SitePackagesUnder(root_ / "none").empty());
}

TEST_F(PythonPackageTest, AProgramIsWhatPathFindsFirst) {
  const std::string here = Script("python3", "");
  std::ofstream(root_ / "text") << "not to be run";
  EXPECT_EQ(FindProgram("python3", "/nowhere::" + root_.string() + ":/usr/bin"), here);
  EXPECT_EQ(FindProgram("text", root_.string()), "");
  EXPECT_EQ(FindProgram(here, ""), here);
  EXPECT_EQ(FindProgram("./no_such", root_.string()), "");
}

TEST_F(PythonPackageTest, TheAnswerOfAnInterpreterIsItsOutputIfItEndsWell) {
  EXPECT_EQ(FolderOfPythonPackage(Script("good", "echo /opt/torch; echo chatter >&2"), "torch"),
            "/opt/torch");
  EXPECT_EQ(FolderOfPythonPackage(Script("bad", "echo /opt/torch; exit 1"), "torch"), "");
  EXPECT_EQ(FolderOfPythonPackage(root_ / "none", "torch"), "");
  EXPECT_EQ(FolderOfPythonPackage(
                Script("asked", "read line && exit 1; [ \"$1\" = -c ] && echo yes"), "torch"),
            "yes");
}

TEST_F(PythonPackageTest, ARealOneFindsAPackageOfItsPathAndNoneOfTheWorkingDirectory) {
  const char* const python = std::getenv("KEEL_PYTHON");
  const std::string program = python != nullptr && fs::exists(python)
                                  ? python
                                  : FindProgram("python3", std::getenv("PATH"));
  if (program.empty()) GTEST_SKIP() << "no python3";
  EXPECT_TRUE(FolderOfPythonPackage(program, "json").ends_with("/json"));
  fs::create_directories(root_ / "keel_no_such_package");
  const fs::path before = fs::current_path();
  fs::current_path(root_);
  EXPECT_EQ(FolderOfPythonPackage(program, "keel_no_such_package"), "");
  fs::current_path(before);
}

}  // namespace
}  // namespace keel
