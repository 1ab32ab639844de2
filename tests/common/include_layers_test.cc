// The allowed edges between folders, read from the #includes.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Include {
  std::string file;
  int line = 0;
  std::string target;
};

std::string Root() {
  const char* value = std::getenv("KEEL_SOURCE_DIR");
  return value != nullptr ? value : ".";
}

std::vector<Include> IncludesOf(const std::string& folder) {
  static const std::regex pattern(R"(^\s*#\s*include\s*[<"]([^>"]+)[>"])");
  std::vector<Include> includes;
  if (!fs::exists(Root() + "/" + folder)) return includes;
  for (const auto& entry : fs::recursive_directory_iterator(Root() + "/" + folder)) {
    const std::string extension = entry.path().extension();
    if (extension != ".h" && extension != ".cc" && extension != ".cu") continue;
    std::ifstream file(entry.path());
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      std::smatch match;
      if (std::regex_search(line, match, pattern)) {
        includes.push_back({fs::relative(entry.path(), Root()), number, match[1]});
      }
    }
  }
  return includes;
}

const std::map<std::string, std::set<std::string>>& AllowedEdges() {
  static const std::map<std::string, std::set<std::string>> edges = {
      {"common", {}},
      {"parallel", {"common"}},
      {"model", {"common", "parallel"}},
      {"checkpoint", {"common"}},
      {"rollout", {"common", "parallel", "model"}},
      {"trainer", {"common", "parallel", "model", "checkpoint", "rollout"}},
      {"tools", {"common", "parallel", "model", "checkpoint", "rollout", "trainer"}},
      {"bench", {"common", "parallel", "model", "checkpoint", "rollout", "trainer", "tools"}},
  };
  return edges;
}

bool StartsWith(const std::string& text, const std::string& start) {
  return text.rfind(start, 0) == 0;
}

bool IsTorch(const std::string& target) {
  return StartsWith(target, "ATen/") || StartsWith(target, "torch/") || StartsWith(target, "c10/");
}

TEST(IncludeLayersTest, FoldersDependOnlyDownwards) {
  int seen = 0;
  for (const auto& [folder, allowed] : AllowedEdges()) {
    for (const Include& include : IncludesOf(folder)) {
      ++seen;
      const std::string top = include.target.substr(0, include.target.find('/'));
      const bool ours = AllowedEdges().contains(top) || top == "tests";
      if (!ours || top == folder) continue;
      EXPECT_TRUE(allowed.contains(top))
          << include.file << ":" << include.line << " includes " << include.target;
    }
  }
  EXPECT_GT(seen, 200) << "the sources were not found under " << Root();
}

TEST(IncludeLayersTest, TheTorchFreePartSeesNoTorch) {
  for (const char* folder :
       {"common", "checkpoint", "tools/launch", "tools/ckpt", "trainer/data", "common/options"}) {
    for (const Include& include : IncludesOf(folder)) {
      EXPECT_FALSE(IsTorch(include.target))
          << include.file << ":" << include.line << " includes " << include.target;
    }
  }
  const std::set<std::string> torch_free = {
      "parallel/layout",       "parallel/schedule",      "parallel/launch_env",
      "parallel/rank_status",  "parallel/bucket_layout", "parallel/sockets",
      "parallel/store_wire",   "parallel/store_service", "parallel/store_server",
      "parallel/store_client", "model/hf_config",        "model/hf_tensors",
      "model/layout_fit",      "model/tokenizer",        "rollout/block_manager",
      "rollout/sampler",       "rollout/sampling",       "rollout/scheduler",
      "rollout/sequence",      "trainer/config",         "trainer/lr_schedule",
      "trainer/metrics_file",  "trainer/model_source",   "trainer/run_inputs",
      "trainer/tokenizer_fit"};
  for (const char* folder : {"parallel", "model", "rollout", "trainer"}) {
    for (const Include& include : IncludesOf(folder)) {
      if (!torch_free.contains(include.file.substr(0, include.file.rfind('.')))) continue;
      EXPECT_FALSE(IsTorch(include.target))
          << include.file << ":" << include.line << " includes " << include.target;
    }
  }
}

TEST(IncludeLayersTest, OnlyProcessGroupsAndStoresSeeC10d) {
  for (const char* folder :
       {"common", "parallel", "model", "checkpoint", "rollout", "trainer", "tools", "bench"}) {
    for (const Include& include : IncludesOf(folder)) {
      if (include.target.find("torch/csrc/distributed") == std::string::npos) continue;
      const bool may = StartsWith(include.file, "parallel/process_group") ||
                       StartsWith(include.file, "parallel/store") ||
                       StartsWith(include.file, "parallel/cuda/");
      EXPECT_TRUE(may) << include.file << ":" << include.line << " includes " << include.target;
    }
  }
}

// 20 s a file, and a stream that knows no errno: neither belongs where they are forbidden.
TEST(IncludeLayersTest, SomeHeadersAreForbidden) {
  for (const char* folder : {"common", "parallel", "model", "checkpoint", "rollout", "trainer",
                             "tools", "bench", "tests"}) {
    for (const Include& include : IncludesOf(folder)) {
      EXPECT_NE(include.target, "torch/torch.h") << include.file << ":" << include.line;
    }
  }
  for (const Include& include : IncludesOf("checkpoint")) {
    EXPECT_NE(include.target, "fstream")
        << include.file << ":" << include.line << ": go through FileSystem";
    EXPECT_NE(include.target, "filesystem")
        << include.file << ":" << include.line << ": go through FileSystem";
  }
}

}  // namespace
