#include "common/process/python_imports.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/process/program_files.h"

namespace keel {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::SizeIs;

class PythonImportsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    unsetenv("PYTHONPATH");
    std::filesystem::remove_all(folder_);
  }
  std::string Written(const std::string& name, const std::string& content) {
    const std::filesystem::path path = folder_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
    return path.native();
  }
  std::map<std::string, std::string> Of(const std::string& content) {
    return PythonImports(Written("verify.py", content), {folder_});
  }
  const std::string folder_ = ::testing::TempDir() + "python_imports";
};

TEST_F(PythonImportsTest, AreModulesAndPackagesAndWhatTheyImport) {
  Written("rules.py", "import json, units as u\nimport verify\n");
  Written("units.py", "");
  Written("idle.py", "");
  Written("maths/__init__.py", "from . import tree\n");
  Written("maths/tree.py", "from ..shared import words\nfrom .deep.leaf import x\nimport late\n");
  Written("maths/deep/leaf.py", "");
  Written("maths/__pycache__/tree.py", "");
  Written("maths/notes.txt", "");
  Written("late.py", "");
  EXPECT_THAT(Of("import os\n    import  rules\nfrom maths.tree import (\n    a, b)\n"),
              ElementsAre(Key("late.py"), Key("maths/__init__.py"), Key("maths/deep/leaf.py"),
                          Key("maths/tree.py"), Key("rules.py"), Key("units.py")));
  EXPECT_THAT(Of("import units;\nfrom idle import *"),
              ElementsAre(Key("idle.py"), Key("units.py")));
  EXPECT_THAT(Of("from . import idle, units"), ElementsAre(Key("idle.py"), Key("units.py")));
  EXPECT_THAT(Of("x = 'import'\n# import units\nimportant = 1\nfrom\nimport\nimport ,\nfrom . x"),
              IsEmpty());
  EXPECT_THAT(PythonImports(folder_ + "/missing.py", {folder_}), IsEmpty());
}

TEST_F(PythonImportsTest, TheFirstFolderThatHasOneCounts) {
  Written("a/rules.py", "1");
  const std::string script = Written("verify.py", "import rules, more\n");
  const std::string second = Written("b/rules.py", "2");
  EXPECT_EQ(PythonImports(script, {folder_, folder_ + "/b", folder_ + "/a"}),
            (std::map<std::string, std::string>{{"rules.py", second}}));
  // A folder of that name without Python in it is no package.
  std::filesystem::create_directories(folder_ + "/c/more");
  Written("c/more.py", "");
  EXPECT_THAT(PythonImports(script, {folder_ + "/c"}), ElementsAre(Key("more.py")));
}

TEST_F(PythonImportsTest, AreComparedAsTheScriptIs) {
  const std::string script = Written("verify.py", "import rules\nimport far\n");
  Written("rules.py", "1");
  Written("elsewhere/far.py", "1");
  const std::vector<std::string> command = {"python3", script};
  EXPECT_THAT(ProgramFileDigests(command),
              ElementsAre(Key(script), Key("rules.py, which verify.py imports,")));
  setenv("PYTHONPATH", (":" + folder_ + "/elsewhere:/nowhere").c_str(), 1);
  const auto before = ProgramFileDigests(command);
  EXPECT_THAT(before, SizeIs(3));
  Written("elsewhere/far.py", "2");
  EXPECT_NE(ProgramFileDigests(command), before);
}

TEST_F(PythonImportsTest, RingsAndLinksEnd) {
  Written("pack/a.py", "import pack\nfrom . import b\n");
  Written("pack/b.py", "from .a import x\n");
  std::filesystem::create_directory_symlink(folder_ + "/pack", folder_ + "/pack/ring");
  EXPECT_THAT(Of("import pack"), ElementsAre(Key("pack/a.py"), Key("pack/b.py")));
}

}  // namespace
}  // namespace keel
