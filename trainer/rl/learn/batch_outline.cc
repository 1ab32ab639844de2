#include "trainer/rl/learn/batch_outline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "common/philox.h"

namespace keel::trainer::rl {

namespace {

constexpr uint64_t kShuffleStream = 0x6d696e69;  // "mini"

}  // namespace

BatchOutline BatchOutline::Of(const RolloutBatch& batch) {
  BatchOutline outline;
  const PackedView view = batch.packed();
  for (size_t i = 0; i < batch.responses.size(); ++i) {
    const Response& r = batch.responses[i];
    outline.responses.push_back(
        {r.position, std::ssize(r.prompt), std::ssize(r.tokens), PolicyTokens(view, i)});
  }
  return outline;
}

int64_t BatchOutline::prompt_tokens() const {
  int64_t tokens = 0;
  for (const Entry& one : responses) tokens += one.prompt_tokens;
  return tokens;
}

int64_t BatchOutline::response_tokens() const {
  int64_t tokens = 0;
  for (const Entry& one : responses) tokens += one.tokens;
  return tokens;
}

static_assert(std::is_trivially_copyable_v<BatchOutline::Entry>);

std::string BatchOutline::Bytes() const {
  return {reinterpret_cast<const char*>(responses.data()), responses.size() * sizeof(Entry)};
}

Result<BatchOutline> BatchOutline::FromBytes(std::string_view bytes) {
  BatchOutline outline;
  bool good = bytes.size() % sizeof(Entry) == 0;
  if (good) {
    outline.responses.resize(bytes.size() / sizeof(Entry));
    if (!bytes.empty()) std::memcpy(outline.responses.data(), bytes.data(), bytes.size());
    good = std::all_of(outline.responses.begin(), outline.responses.end(), [](const Entry& one) {
      return one.prompt_tokens >= 0 && one.tokens >= 0 && one.policy_tokens >= 0 &&
             one.policy_tokens <= one.tokens;
    });
  }
  if (good) return outline;
  return Status(StatusCode::kInternal,
                fmt::format("{} bytes of rank 0 are no outline of a batch", bytes.size()));
}

std::vector<MiniBatch> CutIntoMiniBatches(const BatchOutline& outline,
                                          const MiniBatchOptions& options, int64_t step,
                                          int64_t epoch) {
  // Responses of a prompt are neighbours.
  std::vector<MiniBatch> prompts;
  for (size_t i = 0; i < outline.responses.size(); ++i) {
    if (i == 0 || outline.responses[i].position != outline.responses[i - 1].position)
      prompts.emplace_back();
    prompts.back().push_back(static_cast<int64_t>(i));
  }
  if (options.shuffle) {
    const Philox rng(options.seed, kShuffleStream + static_cast<uint64_t>(step));
    const auto base = static_cast<uint64_t>(epoch) << 32;
    for (size_t i = prompts.size(); i > 1; --i) {
      std::swap(prompts[i - 1], prompts[static_cast<size_t>(rng.Below(base + i, i))]);
    }
  }
  std::vector<MiniBatch> cut;
  for (size_t p = 0; p < prompts.size(); ++p) {
    if (p % static_cast<size_t>(options.prompts_each) == 0) cut.emplace_back();
    cut.back().insert(cut.back().end(), prompts[p].begin(), prompts[p].end());
  }
  return cut;
}

// Longest first to whoever has least: shares differ by one response at most in what they hold.
std::vector<std::vector<int64_t>> DealOut(const BatchOutline& outline,
                                          std::span<const int64_t> update, int dp) {
  const auto tokens = [&](int64_t i) {
    const BatchOutline::Entry& one = outline.responses[static_cast<size_t>(i)];
    return one.prompt_tokens + one.tokens;
  };
  std::vector<int64_t> order;
  for (const int64_t i : update)
    if (outline.responses[static_cast<size_t>(i)].tokens > 0) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return tokens(a) > tokens(b); });
  std::vector<std::vector<int64_t>> shares(static_cast<size_t>(dp));
  std::vector<int64_t> load(static_cast<size_t>(dp), 0);
  for (const int64_t i : order) {
    const auto least = std::min_element(load.begin(), load.end()) - load.begin();
    load[static_cast<size_t>(least)] += tokens(i);
    shares[static_cast<size_t>(least)].push_back(i);
  }
  for (auto& share : shares) std::sort(share.begin(), share.end());
  return shares;
}

LossDenominators DenominatorsOf(const BatchOutline& outline, std::span<const int64_t> update,
                                double scale_factor) {
  LossDenominators result;
  result.scale_factor = scale_factor;
  for (const int64_t i : update) {
    const int64_t tokens = outline.responses[static_cast<size_t>(i)].policy_tokens;
    result.tokens += tokens;
    result.sequences += tokens > 0;
  }
  return result;
}

}  // namespace keel::trainer::rl
