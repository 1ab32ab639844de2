// Runs the fuzz targets without a fuzzer: on their seeds, on what fuzzing has found before
// (corpus/<target>/), and on many simple mutations of both. A broken promise aborts, memory errors
// show under --asan; here the program only has to come to its end.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "tests/fuzz/targets.h"
#include "tests/support/nightly.h"

namespace keel::fuzz {
namespace {

class Replay : public ::testing::TestWithParam<Target> {
 protected:
  static std::vector<std::string> Inputs() {
    std::vector<std::string> inputs = GetParam().seeds();
    const char* const source = std::getenv("KEEL_SOURCE_DIR");
    const auto corpus = std::filesystem::path(source == nullptr ? "." : source) / "tests" / "fuzz" /
                        "corpus" / GetParam().name;
    for (std::string& input : FilesIn(corpus)) inputs.push_back(std::move(input));
    return inputs;
  }

  // Sorted by name; nothing when it is not there.
  static std::vector<std::string> FilesIn(const std::filesystem::path& folder) {
    std::vector<std::string> contents;
    if (!std::filesystem::is_directory(folder)) return contents;
    std::set<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      files.insert(entry.path());
    for (const std::filesystem::path& file : files) {
      std::ifstream in(file, std::ios::binary);
      std::ostringstream text;
      text << in.rdbuf();
      contents.push_back(text.str());
    }
    return contents;
  }

  // One to four changes of the kinds that fuzzers make.
  static std::string Mutate(std::string text, const std::vector<std::string>& others,
                            std::mt19937_64& random) {
    const auto below = [&](size_t n) { return static_cast<size_t>(random() % (n == 0 ? 1 : n)); };
    for (size_t changes = 1 + below(4); changes > 0; --changes) {
      const size_t at = below(text.size() + 1);
      const size_t length = below(std::min<size_t>(text.size() - at, 16) + 1);
      const std::vector<std::string_view>& words = GetParam().words;
      switch (random() % 7) {
        case 0:
          if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
          break;
        case 1:
          if (at < text.size()) text[at] = static_cast<char>(random());
          break;
        case 2:
          text.erase(at, length);
          break;
        case 3:
          text.insert(at, text.substr(below(text.size() + 1), length));
          break;
        case 4:
          text.insert(at,
                      words.empty() ? std::string_view("\0\0\0\0", 4) : words[below(words.size())]);
          break;
        case 5: {  // a number of the binary formats becomes a special one
          static constexpr uint64_t kSpecial[] = {
              0,   1, ~uint64_t{0}, uint64_t{1} << 63, (uint64_t{1} << 63) - 1, uint64_t{1} << 32,
              4096};
          const uint64_t value = kSpecial[below(std::size(kSpecial))];
          const size_t place = at / 8 * 8;
          if (place + 8 <= text.size())
            text.replace(place, 8, reinterpret_cast<const char*>(&value), 8);
          break;
        }
        default: {
          const std::string& other = others[below(others.size())];
          text = text.substr(0, at) + other.substr(below(other.size() + 1));
        }
      }
    }
    return text;
  }
};

TEST_P(Replay, SeedsAreAccepted) {
  EXPECT_FALSE(GetParam().seeds().empty());
  for (const std::string& input : Inputs()) GetParam().run(input);
}

TEST_P(Replay, SeedsCanBeWritten) {
  const std::string folder = ::testing::TempDir() + "keel_fuzz_seeds." + std::to_string(::getpid());
  EXPECT_TRUE(WriteSeeds(folder));
  EXPECT_THAT(FilesIn(std::filesystem::path(folder) / GetParam().name),
              ::testing::UnorderedElementsAreArray(GetParam().seeds()));
  std::filesystem::remove_all(folder);
}

TEST_P(Replay, Mutations) {
  const std::vector<std::string> inputs = Inputs();
  std::mt19937_64 random(1);
  const bool nightly = testing::Nightly();
  const int usual = 4'000;
  const int rounds = nightly ? 2'000'000 : usual;
  for (int i = 0; i < rounds; ++i)
    GetParam().run(Mutate(inputs[random() % inputs.size()], inputs, random));
  // Every prefix, and every byte set to 0 and to 0xff; ordinarily every sixth, another one of each
  // input.
  const size_t stride = nightly ? 1 : 6;
  size_t first = 0;
  for (const std::string& input : inputs) {
    for (size_t at = first++ % stride; at < std::min<size_t>(input.size(), 8192); at += stride) {
      GetParam().run(std::string_view(input).substr(0, at));
      for (const char value : {'\0', '\xff'}) {
        std::string changed = input;
        changed[at] = value;
        GetParam().run(changed);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Replay, ::testing::ValuesIn(Targets().begin(), Targets().end()),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace keel::fuzz
