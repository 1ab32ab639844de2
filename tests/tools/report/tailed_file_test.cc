#include "tools/report/tailed_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <vector>

namespace keel::tools {
namespace {

class TailedFileTest : public ::testing::Test {
 protected:
  TailedFileTest() {
    std::string name = (std::filesystem::temp_directory_path() / "keel-tail-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = name;
    path_ = folder_ + "/lines";
  }
  ~TailedFileTest() override { std::filesystem::remove_all(folder_); }
  void Append(const std::string& text) { std::ofstream(path_, std::ios::app) << text; }
  void Overwrite(const std::string& text) { std::ofstream(path_, std::ios::trunc) << text; }

  using Seen = std::vector<std::string>;  // "!" where all begins anew
  Seen Look(TailedFile& file) {
    Seen seen;
    const auto read = file.Read([&] { seen.emplace_back("!"); },
                                [&](std::string_view line) { seen.emplace_back(line); });
    EXPECT_TRUE(read.ok()) << read.status().ToString();
    EXPECT_EQ(read.ok() && *read, !seen.empty());
    return seen;
  }

  std::string folder_, path_;
};

TEST_F(TailedFileTest, LinesAsTheyBecomeWhole) {
  TailedFile file(path_);
  EXPECT_EQ(file.Read([] {}, [](std::string_view) {}).status().code(), StatusCode::kNotFound);
  Append("one\ntw");
  EXPECT_EQ(Look(file), Seen({"one"}));
  EXPECT_EQ(file.rest(), "tw");
  EXPECT_EQ(Look(file), Seen({}));
  Append("o\n\nthree\n");
  EXPECT_EQ(Look(file), Seen({"two", "", "three"}));
  EXPECT_EQ(file.rest(), "");
  // Longer than what is read at a time.
  const std::string longer(3'000'000, 'x');
  Append(longer + "\nend");
  EXPECT_EQ(Look(file), Seen({longer}));
  EXPECT_EQ(file.rest(), "end");
}

TEST_F(TailedFileTest, AnotherFileOfTheNameIsReadFromItsBeginning) {
  Append("one\ntwo\nthr");
  TailedFile file(path_);
  EXPECT_EQ(Look(file), Seen({"one", "two"}));
  std::ofstream(folder_ + "/new") << "one\n2\n";
  std::filesystem::rename(folder_ + "/new", path_);
  EXPECT_EQ(Look(file), Seen({"!", "one", "2"}));
  std::filesystem::remove(path_);
  EXPECT_FALSE(file.Read([] {}, [](std::string_view) {}).ok());
  Append("again\n");
  EXPECT_EQ(Look(file), Seen({"!", "again"}));
}

TEST_F(TailedFileTest, OneThatIsCutOrWrittenOverInPlace) {
  Append("one\ntwo\nthree\n");
  TailedFile file(path_);
  EXPECT_EQ(Look(file).size(), 3U);
  std::filesystem::resize_file(path_, 4);
  EXPECT_EQ(Look(file), Seen({"!", "one"}));
  // As long as before, or longer: its bytes tell.
  Overwrite("ONE\nTWO\nTHREE\nFOUR\n");
  EXPECT_EQ(Look(file), Seen({"!", "ONE", "TWO", "THREE", "FOUR"}));
}

}  // namespace
}  // namespace keel::tools
