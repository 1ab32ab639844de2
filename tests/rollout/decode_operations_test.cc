// How many operations a step of generation is for a GPU: as many for a batch of one as for many.

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "model/decoder.h"
#include "parallel/tensor/host_kernels.h"
#include "rollout/kv_cache.h"
#include "tests/rollout/rollout_model.h"

namespace keel::rollout {
namespace {

// Of the operations that this thread called since, those that a GPU would be given something for.
class OperationCount {
 public:
  OperationCount() {
    Counts().clear();
    handle_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& f) {
                                     ++Counts()[f.name()];
                                     return std::unique_ptr<at::ObserverContext>();
                                   }).scopes({at::RecordScope::FUNCTION}));
  }
  ~OperationCount() { at::removeCallback(handle_); }
  OperationCount(const OperationCount&) = delete;
  OperationCount& operator=(const OperationCount&) = delete;

  // Views and memory cost a GPU nothing; what calls another operation is counted by that one.
  int64_t launches() const {
    static const std::set<std::string> kNothing = {"aten::alias",
                                                   "aten::as_strided",
                                                   "aten::detach",
                                                   "aten::empty",
                                                   "aten::empty_like",
                                                   "aten::expand",
                                                   "aten::narrow",
                                                   "aten::permute",
                                                   "aten::reshape",
                                                   "aten::select",
                                                   "aten::slice",
                                                   "aten::squeeze",
                                                   "aten::t",
                                                   "aten::to",
                                                   "aten::_to_copy",
                                                   "aten::resize_",
                                                   "aten::transpose",
                                                   "aten::unflatten",
                                                   "aten::unsqueeze",
                                                   "aten::view",
                                                   "aten::view_as",
                                                   "aten::zeros",
                                                   "aten::linear",
                                                   "aten::matmul",
                                                   "aten::contiguous",
                                                   "aten::clone",
                                                   "aten::item",
                                                   "aten::_local_scalar_dense",
                                                   "aten::empty_strided"};
    int64_t sum = 0;
    for (const auto& [name, count] : Counts()) {
      if (!kNothing.contains(name)) sum += count;
    }
    return sum;
  }
  std::string text() const {
    std::string text;
    for (const auto& [name, count] : Counts()) text += name + " " + std::to_string(count) + "\n";
    return text;
  }

 private:
  static std::map<std::string, int64_t>& Counts() {
    static thread_local std::map<std::string, int64_t> counts;
    return counts;
  }
  at::CallbackHandle handle_{};
};

// Of a step of a batch whose every sequence has `past` tokens, and `tokens(s)` come.
template <typename F>
int64_t LaunchesOf(testing::RolloutModel& model, int64_t batch_size, int64_t past, F&& tokens,
                   std::string* text) {
  const model::KvShape shape = model.decoder().kv_shape();
  KvCache cache(shape, GroupLayers(shape.windows), 64, 4);
  std::vector<std::vector<std::vector<int32_t>>> blocks;
  for (int64_t s = 0; s < batch_size; ++s) {
    const auto first = static_cast<int32_t>(3 * s);
    blocks.push_back({{first, first + 1, first + 2}});
  }
  model::DecodeBatch batch;
  for (int64_t s = 0; s < batch_size; ++s) {
    for (int64_t t = 0; t < tokens(s); ++t) batch.ids.push_back(static_cast<int32_t>(s + t + 1));
    batch.outputs.push_back(std::ssize(batch.ids) - 1);
    batch.sequences.push_back({past, tokens(s), past + tokens(s), blocks[static_cast<size_t>(s)]});
  }
  model.decoder().Decode(batch, cache);  // makes the rotation's table
  const OperationCount count;
  model.decoder().Decode(batch, cache);
  *text = count.text();
  return count.launches();
}

TEST(DecodeOperations, AStepIsAsManyForAnyBatch) {
  if (parallel::WayOnHost() != parallel::HostWay::kBodies)
    GTEST_SKIP() << "of what a GPU would run: KEEL_DEVICE_PATHS=1";
  testing::RolloutModel model(model::Family::kQwen3);
  std::map<int64_t, int64_t> launches;
  std::string text;
  for (const int64_t batch_size : {1, 2, 16})
    launches[batch_size] = LaunchesOf(
        model, batch_size, 9, [](int64_t) { return 1; }, &text);
  EXPECT_EQ(launches[1], launches[16]) << text;
  EXPECT_EQ(launches[2], launches[16]) << text;
  // Beside these a layer starts 8 of Keel's kernels: 2 norms of the stream, one of them with an
  // addition, 2 of heads, the rotation, 2 of attention, SwiGLU.
  constexpr int64_t kKernels = 8, kBefore = 16;  // of the look-up, before the layers
  EXPECT_LE(launches[16] - kBefore, model.decoder().kv_shape().layers * (20 - kKernels)) << text;
  RecordProperty("launches", std::to_string(launches[16]));
}

// By Keel's kernel; on a GPU, in bf16, by FlashAttention.
TEST(DecodeOperations, PromptsThatBeginAreAsManyForAnyBatch) {
  if (parallel::WayOnHost() != parallel::HostWay::kBodies && !testing::OnPretendGpus())
    GTEST_SKIP() << "of what a GPU would run: KEEL_DEVICE_PATHS=1, or a pretend one";
  testing::RolloutModel model(model::Family::kLlama, false, at::kBFloat16);
  std::map<int64_t, int64_t> launches;
  std::string text;
  for (const int64_t batch_size : {1, 2, 16})
    launches[batch_size] = LaunchesOf(
        model, batch_size, 0, [](int64_t s) { return 2 + s % 7; }, &text);
  EXPECT_EQ(launches[1], launches[16]) << text;
  EXPECT_EQ(launches[2], launches[16]) << text;
}

}  // namespace
}  // namespace keel::rollout
