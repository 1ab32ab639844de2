// What the tests of `keel ckpt` share: a run with two checkpoints, and commands as functions.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "tests/checkpoint/support/test_support.h"
#include "tools/ckpt/ckpt_commands.h"

namespace keel::tools {

using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

struct Outcome {
  int code = 0;
  std::string out;
  std::string err;
};

template <typename Options>
Outcome Call(int (*command)(const Options&, std::ostream&, std::ostream&), const Options& options) {
  std::ostringstream out, err;
  const int code = command(options, out, err);
  return {code, out.str(), err.str()};
}

class CkptCommands : public ::testing::Test {
 protected:
  CkptCommands() : cut_({2}, 1) {
    const auto fs = dir_.Open();
    for (const int64_t step : {20, 40}) {
      cut_.Fill(MakeTrainingState(static_cast<uint64_t>(step)));
      ThrowIfError(checkpoint::testing::SaveOn(*fs, cut_, step, SmallOptions()));
    }
  }
  void FlipByte(const std::string& file, size_t at) {
    std::string content = ReadAll(dir_ / file);
    content[at] = static_cast<char>(content[at] ^ 16);
    WriteAll(dir_ / file, content);
  }
  TempDir dir_;
  Cut cut_;
};

}  // namespace keel::tools
