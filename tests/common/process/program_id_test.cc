#include "common/process/program_id.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>

namespace keel {
namespace {

// As the tools for object files read it.
TEST(ProgramIdTest, TheBuildIdIsThatOfThisFile) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen("readelf -n /proc/$PPID/exe", "r"),
                                                   pclose);
  ASSERT_NE(pipe, nullptr);
  std::string notes;
  std::array<char, 4096> part{};
  while (std::fgets(part.data(), part.size(), pipe.get()) != nullptr) notes += part.data();
  const size_t at = notes.find("Build ID: ");
  ASSERT_NE(at, std::string::npos) << notes;
  const size_t begin = at + std::string("Build ID: ").size();
  const auto* const here = reinterpret_cast<const void*>(&ProgramVersion);
  EXPECT_EQ(BuildId(here), notes.substr(begin, notes.find_first_of(" \n", begin) - begin));
}

TEST(ProgramIdTest, TheVersionIsTheProjects) { EXPECT_EQ(ProgramVersion(), "0.1.0"); }

}  // namespace
}  // namespace keel
