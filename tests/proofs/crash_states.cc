// keel_crash_states: Keel's side of run_crash_states.py. Saves small states, to be watched call by
// call, and loads what a power cut may have left.
//
//   keel_crash_states save DIR     saves step 1, then step 2 in the background, and keeps one
//   keel_crash_states load         for each directory on standard input a line of JSON
//
// What is saved between the two calls access("DIR/mark.begin") and access("DIR/mark.end") is what
// the driver looks at.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/base/coordinator.h"
#include "checkpoint/checkpointer.h"
#include "common/hash.h"
#include "common/json.h"
#include "common/log.h"

namespace keel::proofs {
namespace {

using checkpoint::Checkpointer;
using checkpoint::CheckpointOptions;
using checkpoint::LoadRequest;
using checkpoint::LocalCoordinatorHub;
using checkpoint::RoleState;
using checkpoint::SaveRequest;

// 26 KiB in four tensors, whose every byte follows from the step.
class State {
 public:
  State() {
    Add(&role_.model, {"embed", DType::kBF16, Dims{64, 32}});
    Add(&role_.model, {"norm", DType::kBF16, Dims{32}});
    Add(&role_.optimizer, {"optimizer.master.embed", DType::kF32, Dims{64, 32}});
    Add(&role_.optimizer, {"optimizer.exp_avg.embed", DType::kF32, Dims{64, 32}});
    role_.name = "actor";
  }

  const RoleState& role() const { return role_; }

  void Fill(int64_t step) {
    for (size_t t = 0; t < memory_.size(); ++t) {
      const std::string values = Values(step, t, memory_[t].size());
      std::copy(values.begin(), values.end(), memory_[t].begin());  // in place: it is viewed
    }
  }
  void Clear() {
    for (std::string& one : memory_) std::fill(one.begin(), one.end(), '\0');
  }
  bool Holds(int64_t step) const {
    for (size_t t = 0; t < memory_.size(); ++t) {
      if (memory_[t] != Values(step, t, memory_[t].size())) return false;
    }
    return true;
  }

 private:
  static std::string Values(int64_t step, size_t tensor, size_t bytes) {
    std::string text;
    for (uint64_t i = 0; text.size() < bytes; ++i) {
      const uint64_t word = Hash64(fmt::format("{} {} {}", step, tensor, i));
      text.append(reinterpret_cast<const char*>(&word), sizeof word);
    }
    text.resize(bytes);
    return text;
  }

  void Add(ShardTable* table, const TensorInfo& tensor) {
    const Box whole = Box::Whole(tensor.shape);
    // No string moves once it is there: their number is known.
    memory_.reserve(8);
    std::string& bytes =
        memory_.emplace_back(static_cast<size_t>(whole.elements() * DTypeSize(tensor.dtype)), '\0');
    ThrowIfError(
        table->Add(tensor, whole,
                   {reinterpret_cast<std::byte*>(bytes.data()), ContiguousStrides(tensor.shape)}));
  }

  RoleState role_;
  std::vector<std::string> memory_;
};

CheckpointOptions Options() {
  CheckpointOptions options;
  options.run_id = "crash-states";
  options.io = checkpoint::IoChoice::kBuffered;
  options.chunk_bytes = 4096;
  options.remove_previous_ckpt_in_save = true;
  return options;
}

LogOptions OnlyErrors() {
  LogOptions options;
  options.level = LogLevel::kError;
  return options;
}

void Mark(const std::string& directory, const char* name) {
  (void)access((directory + "/mark." + name).c_str(), F_OK);
}

void Save(const std::string& directory) {
  const auto fs = ValueOrThrow(OpenPosixFileSystem(directory, true));
  LocalCoordinatorHub hub(1);
  Logger log(OnlyErrors());
  Checkpointer checkpointer(*fs, hub.rank(0), SystemClock(), log, Options());
  ThrowIfError(checkpointer.Open());
  State state;
  SaveRequest request;
  request.roles = {state.role()};
  request.documents = {{"trainer_state.json", "{}\n", true}};
  for (request.step = 1; request.step <= 2; ++request.step) {
    state.Fill(request.step);
    if (request.step == 2) Mark(directory, "begin");
    ThrowIfError(checkpointer.StartSave(request));
    ThrowIfError(checkpointer.Wait());
    ThrowIfError(checkpointer.Finished().back().status);
    if (request.step == 2) Mark(directory, "end");
  }
  ThrowIfError(checkpointer.Close());
}

Json Load(const std::string& directory) {
  const auto fs = ValueOrThrow(OpenPosixFileSystem(directory, false));
  LocalCoordinatorHub hub(1);
  Logger log(OnlyErrors());
  Checkpointer checkpointer(*fs, hub.rank(0), SystemClock(), log, Options());
  ThrowIfError(checkpointer.Open());
  State state;
  state.Clear();
  LoadRequest request;
  request.roles = {state.role()};
  const auto loaded = ValueOrThrow(checkpointer.Load(request));
  ThrowIfError(checkpointer.Close());
  if (!loaded) return {{"nothing", true}};
  return {{"step", loaded->step}, {"whole", state.Holds(loaded->step)}};
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.size() == 2 && arguments[0] == "save") {
    Save(arguments[1]);
    return 0;
  }
  if (arguments.size() == 1 && arguments[0] == "load") {
    for (std::string line; std::getline(std::cin, line);) {
      Json answer;
      try {
        answer = Load(line);
      } catch (const std::exception& e) {
        answer = {{"error", e.what()}};
      }
      fmt::print("{}\n", answer.dump());
      std::fflush(stdout);
    }
    return 0;
  }
  fmt::print(stderr, "usage: keel_crash_states save DIR | load\n");
  return 64;
}

}  // namespace
}  // namespace keel::proofs

int main(int argc, char** argv) {
  try {
    return keel::proofs::Main({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    fmt::print(stderr, "keel_crash_states: {}\n", e.what());
    return 70;
  }
}
