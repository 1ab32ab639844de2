#include "common/process/program_files.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace keel {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Key;

class ProgramFiles : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Written(const std::string& name, const std::string& content) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << content;
    return path;
  }
  const std::string folder_ = ::testing::TempDir() + "program_files";
};

TEST_F(ProgramFiles, AreTheScriptAndItsSettingsAndNotWhatItWrites) {
  const std::string script = Written("verify.py", "print(1)"), log = Written("verify.log", "x"),
                    rules = Written("rules.json", "{}");
  EXPECT_THAT(ProgramFileDigests({"python3", "-u", script, "--log", log, "--rules", rules}),
              ElementsAre(Key(rules), Key(script)));
  EXPECT_THAT(ProgramFileDigests({"sh", "-c", "exec judge"}), IsEmpty());
  EXPECT_THAT(ProgramFileDigests({"python3", folder_ + "/missing.py", folder_}), IsEmpty());
  EXPECT_THAT(ProgramFileDigests({}), IsEmpty());
}

TEST_F(ProgramFiles, AProgramIsLookedAtWhereItIsNamedByAPath) {
  const std::string judge = Written("judge",
                                    "\x7f"
                                    "ELF");
  EXPECT_THAT(ProgramFileDigests({judge, "3"}), ElementsAre(Key(judge)));
  EXPECT_THAT(ProgramFileDigests({"sh"}), IsEmpty());
}

TEST_F(ProgramFiles, ChangeWithTheirContentAlone) {
  const std::string script = Written("verify.py", std::string(200'000, 'a'));
  const auto before = ProgramFileDigests({"python3", script});
  Written("verify.py", std::string(200'000, 'a'));
  EXPECT_EQ(ProgramFileDigests({"python3", script}), before);
  Written("verify.py", std::string(199'999, 'a') + "b");
  EXPECT_NE(ProgramFileDigests({"python3", script}), before);
  Written("verify.py", "");
  EXPECT_EQ(ProgramFileDigests({"python3", script}).at(script),
            "digest 99aa06d3014798d86001c324468d497f");  // XXH3-128 of nothing
}

}  // namespace
}  // namespace keel
