// Attention over a cache's blocks against softmax in fp64, sequence by sequence.

#include "gpu/paged_attention.h"

#include "tests/gpu/bodies.h"

namespace keel::gpu {
namespace {

struct PagedCase {
  int64_t heads, kv_heads, d;
  float softcap;
  int64_t window;
  int64_t block_size;
  bool sinks = false;
};

// Groups below and above the heads that are computed together; head sizes that fill packs and that
// do not; windows shorter and longer than a part.
constexpr PagedCase kPagedCases[] = {{4, 2, 16, 0, 0, 16},       {6, 1, 32, 0, 0, 7},
                                     {3, 3, 20, 2, 0, 16},       {8, 2, 64, 0, 5, 16},
                                     {2, 1, 9, 0, 300, 32},      {4, 4, 128, 1.5f, 40, 16},
                                     {8, 2, 64, 0, 5, 16, true}, {6, 1, 32, 0, 0, 7, true}};

// What each sequence has in the cache, the batch's own tokens among them, and how many those are.
struct Text {
  int64_t length, tokens;
};
const std::vector<Text> kTexts = {{1, 1}, {700, 1}, {256, 1}, {257, 3}, {40, 40}, {513, 2}};

struct Paged {
  at::Tensor qkv, keys, values, rows, sequences, positions, blocks, sinks;
  std::vector<at::Tensor> text_keys, text_values;  // [length, kv_heads, d]
};

Paged DrawnTexts(const PagedCase& c, at::ScalarType type, const std::vector<Text>& texts) {
  Paged p;
  int64_t tokens = 0, needed = 0, width = 0;
  for (const Text& text : texts) {
    const int64_t blocks = (text.length + c.block_size - 1) / c.block_size;
    tokens += text.tokens;
    needed += blocks;
    width = std::max(width, blocks);
  }
  p.sinks = at::linspace(-4, 4, c.heads);
  p.qkv = Draw(1, {tokens, (c.heads + 2 * c.kv_heads) * c.d}, type) * 2;
  // Blocks lie in no order, with some of other texts between them.
  const at::Tensor order = Draw(2, {2 * needed}).argsort();
  p.keys = at::full({2 * needed, c.kv_heads, c.block_size, c.d}, 1e4, p.qkv.options());
  p.values = at::full_like(p.keys, -1e4);
  p.blocks = at::full({std::ssize(texts), width}, -1, at::kInt);
  std::vector<int32_t> rows, sequences, positions;
  int64_t next = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    p.text_keys.push_back(Draw(10 + i, {texts[i].length, c.kv_heads, c.d}, type));
    p.text_values.push_back(Draw(100 + i, {texts[i].length, c.kv_heads, c.d}, type));
    for (int64_t t = 0; t < texts[i].length; ++t) {
      if (t % c.block_size == 0)
        p.blocks[static_cast<int64_t>(i)][t / c.block_size] = order[next++].item<int64_t>();
      const int64_t block = p.blocks[static_cast<int64_t>(i)][t / c.block_size].item<int64_t>();
      p.keys[block].select(1, t % c.block_size).copy_(p.text_keys[i][t]);
      p.values[block].select(1, t % c.block_size).copy_(p.text_values[i][t]);
    }
    for (int64_t t = texts[i].length - texts[i].tokens; t < texts[i].length; ++t) {
      rows.push_back(static_cast<int32_t>(rows.size()));
      sequences.push_back(static_cast<int32_t>(i));
      positions.push_back(static_cast<int32_t>(t));
    }
  }
  p.rows = at::tensor(rows, at::kInt);
  p.sequences = at::tensor(sequences, at::kInt);
  p.positions = at::tensor(positions, at::kInt);
  return p;
}

at::Tensor Attended(const KernelTable& table, const PagedCase& c, const Paged& p, int64_t first,
                    int64_t tokens) {
  at::Tensor out = at::full({p.qkv.size(0), c.heads * c.d}, 7, p.qkv.options());
  const auto of = [&](const at::Tensor& numbers) {
    return numbers.const_data_ptr<int32_t>() + first;
  };
  PagedAttention a;
  a.element = parallel::ElementOf(p.qkv);
  a.tokens = tokens;
  a.heads = c.heads;
  a.kv_heads = c.kv_heads;
  a.head_dim = c.d;
  a.qkv = p.qkv.const_data_ptr();
  a.keys = p.keys.const_data_ptr();
  a.values = p.values.const_data_ptr();
  a.block_size = c.block_size;
  a.rows = of(p.rows);
  a.sequences = of(p.sequences);
  a.positions = of(p.positions);
  a.blocks = p.blocks.const_data_ptr<int32_t>();
  a.table_width = p.blocks.size(1);
  a.scale = 0.3f;
  a.softcap = c.softcap;
  a.window = c.window;
  if (c.sinks) a.sinks = p.sinks.const_data_ptr<float>();
  a.out = out.data_ptr();
  a.longest = p.positions.narrow(0, first, tokens).max().item<int64_t>() + 1;
  at::Tensor scratch = at::full({AttentionScratch(a)}, NAN);
  a.scratch = scratch.data_ptr<float>();
  table.paged_attention(a, nullptr);
  return out;
}

TEST(PagedAttentionKernel, IsSoftmaxOverWhatATokenSees) {
  for (const PagedCase& c : kPagedCases) {
    for (const at::ScalarType type : kTypes) {
      const Paged p = DrawnTexts(c, type, kTexts);
      const int64_t tokens = p.qkv.size(0);
      const auto found = InBothOrders([&](const KernelTable& table) {
        return std::vector<at::Tensor>{Attended(table, c, p, 0, tokens)};
      });
      at::Tensor expected = at::empty({tokens, c.heads * c.d}, at::kDouble);
      for (int64_t row = 0; row < tokens; ++row) {
        const auto text = static_cast<size_t>(p.sequences[row].item<int64_t>());
        const int64_t last = p.positions[row].item<int64_t>();
        const int64_t begin = c.window > 0 ? std::max<int64_t>(0, last - c.window + 1) : 0;
        for (int64_t head = 0; head < c.heads; ++head) {
          const int64_t kv = head / (c.heads / c.kv_heads);
          const auto seen = [&](const at::Tensor& all) {
            return all.narrow(0, begin, last + 1 - begin).select(1, kv).to(at::kDouble);
          };
          const at::Tensor q = p.qkv[row].narrow(0, head * c.d, c.d).to(at::kDouble);
          at::Tensor scores = at::mv(seen(p.text_keys[text]), q) * static_cast<double>(0.3f);
          if (c.softcap > 0) {
            const auto cap = static_cast<double>(c.softcap);
            scores = at::tanh(scores / cap) * cap;
          }
          const int64_t count = scores.size(0);
          if (c.sinks) scores = at::cat({scores, p.sinks[head].to(at::kDouble).view({1})});
          expected[row]
              .narrow(0, head * c.d, c.d)
              .copy_(at::mv(seen(p.text_values[text]).t(),
                            at::softmax(scores, 0).narrow(0, 0, count)));
        }
      }
      // In bf16 the weights are rounded, too.
      ExpectClose(found[0], expected, "attended", 1e-5, 1.0 / 64);
    }
  }
}

// Bit for bit: alone, or beside sequences that make the batch's longest much longer.
TEST(PagedAttentionKernel, ATokenDoesNotDependOnItsBatch) {
  const PagedCase c = kPagedCases[0];
  const Paged p = DrawnTexts(c, at::kFloat, kTexts);
  const KernelTable& table = HostKernelTable();
  const at::Tensor together = Attended(table, c, p, 0, p.qkv.size(0));
  for (int64_t row = 0; row < p.qkv.size(0); row += 5) {
    const at::Tensor alone = Attended(table, c, p, row, 1);
    EXPECT_TRUE(at::equal(alone[row], together[row])) << row;
    // And no other row is touched.
    EXPECT_EQ(alone.eq(7).sum().item<int64_t>(), alone.numel() - c.heads * c.d);
  }
}

}  // namespace
}  // namespace keel::gpu
