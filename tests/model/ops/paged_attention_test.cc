// Attention of a batch in which prompts begin and others go on, against its definition in fp64: by
// the bodies of Keel's kernels (KEEL_DEVICE_PATHS=1), and on a pretend GPU.

#include "model/ops/paged_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/ranks.h"

namespace keel::model {
namespace {

constexpr AttentionShape kShape = {.heads = 4, .kv_heads = 2, .head_dim = 8};
constexpr int64_t kBlock = 4;

class OneLayer : public KvStore {
 public:
  OneLayer(int64_t blocks, const at::TensorOptions& options)
      : keys_(at::zeros({blocks, kShape.kv_heads, kBlock, kShape.head_dim}, options)),
        values_(keys_.clone()) {}
  int64_t block_size() const override { return kBlock; }
  size_t group(int64_t) const override { return 0; }
  const at::Tensor& keys(int64_t) const override { return keys_; }
  const at::Tensor& values(int64_t) const override { return values_; }

 private:
  at::Tensor keys_, values_;
};

// Texts of which `past` tokens are in the store and others come.
struct Text {
  int64_t past, tokens;
  at::Tensor qkv;  // [past + tokens, (heads + 2 kv_heads) d]
  std::vector<std::vector<int32_t>> blocks;
};

// [tokens, heads d] of the text's last ones.
at::Tensor FromItsDefinition(const Text& text, const at::Tensor& sinks) {
  const int64_t n = text.past + text.tokens, d = kShape.head_dim;
  const at::Tensor x = text.qkv.to(at::kDouble).view({n, -1, d}).transpose(0, 1);
  const int64_t times = kShape.heads / kShape.kv_heads;
  const auto kv = [&](int64_t first) {
    return x.narrow(0, first, kShape.kv_heads).repeat_interleave(times, 0);
  };
  const at::Tensor scores = at::matmul(x.narrow(0, 0, kShape.heads), kv(kShape.heads).mT()) /
                            std::sqrt(static_cast<double>(d));
  const at::Tensor later = at::ones({n, n}, at::kBool).triu(1);
  const at::Tensor seen = scores.masked_fill(later, -INFINITY);
  const at::Tensor all =
      sinks.defined()
          ? at::cat({seen, sinks.to(at::kDouble).view({-1, 1, 1}).expand({-1, n, 1})}, -1)
          : seen;
  const at::Tensor p = at::softmax(all, -1).narrow(-1, 0, n);
  return at::matmul(p, kv(kShape.heads + kShape.kv_heads))
      .transpose(0, 1)
      .reshape({n, kShape.heads * d})
      .narrow(0, text.past, text.tokens);
}

class PagedAttention : public ::testing::TestWithParam<std::tuple<at::ScalarType, bool, bool>> {
 protected:
  // Runs texts as one batch; in place of a rotation there is none.
  at::Tensor Attend(std::vector<Text>& texts, const parallel::DeviceKernels& kernels,
                    const OneLayer& store, bool past, parallel::Parameter* sinks) const {
    const auto dtype = std::get<0>(GetParam());
    std::vector<DecodeSequence> sequences;
    std::vector<at::Tensor> rows;
    for (Text& text : texts) {
      const int64_t first = past ? 0 : text.past, tokens = past ? text.past : text.tokens;
      if (tokens == 0) continue;
      sequences.push_back({first, tokens, first + tokens, text.blocks});
      rows.push_back(text.qkv.narrow(0, first, tokens));
    }
    at::Tensor qkv = at::cat(rows).to(device_);
    at::Tensor out = at::empty({qkv.size(0), kShape.heads * kShape.head_dim},
                               at::TensorOptions(device_).dtype(dtype));
    DecodeNumbers numbers;
    numbers.AddPlaces(sequences, kBlock);
    const DecodePlan plan =
        DecodePlan::On(numbers, at::tensor(numbers.values, at::kInt).to(device_));
    AttendByKernels(kernels, qkv, kShape, {plan, nullptr, std::get<1>(GetParam())},
                    {sequences, store, 0}, {.sinks = sinks}, out);
    return out.to(at::kCPU, at::kDouble);
  }

  const at::Device device_ = keel::testing::LoneDevice();
};

TEST_P(PagedAttention, OfPromptsAmongOthersIsItsDefinition) {
  const auto dtype = std::get<0>(GetParam());
  const auto kernels = parallel::KernelsFor(device_);
  if (!kernels) GTEST_SKIP() << "of what a GPU would run";
  // Prompts apart from each other, tokens that go on, a part of a prompt, a prompt of one token.
  std::vector<Text> texts = {{0, 5, {}, {}}, {9, 1, {}, {}}, {0, 11, {}, {}}, {0, 1, {}, {}},
                             {6, 7, {}, {}}, {0, 4, {}, {}}, {3, 1, {}, {}}};
  int32_t next = 40;
  at::manual_seed(3);
  for (Text& text : texts) {
    const int64_t width = (kShape.heads + 2 * kShape.kv_heads) * kShape.head_dim;
    text.qkv = at::randn({text.past + text.tokens, width}).to(dtype);
    text.blocks.resize(1);
    for (int64_t p = 0; p < text.past + text.tokens; p += kBlock)
      text.blocks[0].push_back(next -= 2);
  }
  const OneLayer store(40, at::TensorOptions(device_).dtype(dtype));
  parallel::Parameter sinks;
  const bool with_sinks = std::get<2>(GetParam());
  at::Tensor scores;
  if (with_sinks) {
    sinks.shape = {kShape.heads};
    scores = at::linspace(-1, 2, kShape.heads).to(dtype);
    sinks.value = scores.to(device_);
  }
  Attend(texts, *kernels, store, true, with_sinks ? &sinks : nullptr);
  const at::Tensor found = Attend(texts, *kernels, store, false, with_sinks ? &sinks : nullptr);
  int64_t row = 0;
  for (const Text& text : texts) {
    const double tolerance = dtype == at::kFloat ? 1e-5 : 2e-2;
    const at::Tensor expected = FromItsDefinition(text, scores);
    EXPECT_LT((found.narrow(0, row, text.tokens) - expected).abs().max().item<double>(), tolerance)
        << text.tokens << " after " << text.past;
    row += text.tokens;
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, PagedAttention,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16),
                                            ::testing::Bool(), ::testing::Bool()));

}  // namespace
}  // namespace keel::model
