#include "tools/inference/prompt_relay.h"

#include <algorithm>

namespace keel::tools {

namespace {

constexpr int64_t kEnd = -1;

at::Tensor Longs(int64_t size) { return at::empty({size}, at::TensorOptions().dtype(at::kLong)); }

}  // namespace

// Two broadcasts: how many prompts and tokens, then the lengths and the tokens.
void PromptRelay::Send(const Prompts& prompts) {
  if (group_.size() == 1) return;
  int64_t tokens = 0;
  for (const auto& prompt : prompts) tokens += std::ssize(prompt);
  at::Tensor head = Longs(2);
  head.data_ptr<int64_t>()[0] = std::ssize(prompts);
  head.data_ptr<int64_t>()[1] = tokens;
  group_.Broadcast(head, 0);
  at::Tensor body = Longs(std::ssize(prompts) + tokens);
  auto* at = body.data_ptr<int64_t>();
  for (const auto& prompt : prompts) *at++ = std::ssize(prompt);
  for (const auto& prompt : prompts) at = std::copy(prompt.begin(), prompt.end(), at);
  if (body.numel() > 0) group_.Broadcast(body, 0);
}

void PromptRelay::SendEnd() {
  if (group_.size() == 1) return;
  at::Tensor head = Longs(2);
  head.data_ptr<int64_t>()[0] = kEnd;
  head.data_ptr<int64_t>()[1] = 0;
  group_.Broadcast(head, 0);
}

std::optional<Prompts> PromptRelay::Receive() {
  at::Tensor head = Longs(2);
  group_.Broadcast(head, 0);
  const int64_t count = head.data_ptr<int64_t>()[0];
  if (count == kEnd) return std::nullopt;
  at::Tensor body = Longs(count + head.data_ptr<int64_t>()[1]);
  if (body.numel() > 0) group_.Broadcast(body, 0);
  const auto* lengths = body.data_ptr<int64_t>();
  const auto* at = lengths + count;
  Prompts prompts;
  for (int64_t i = 0; i < count; ++i) {
    std::vector<int32_t> prompt;
    for (int64_t token = 0; token < lengths[i]; ++token)
      prompt.push_back(static_cast<int32_t>(*at++));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// Two broadcasts: how many bytes, then they.
void PromptRelay::SendBytes(std::string_view bytes) {
  if (group_.size() == 1) return;
  at::Tensor head = Longs(2);
  head.data_ptr<int64_t>()[0] = std::ssize(bytes);
  head.data_ptr<int64_t>()[1] = 0;
  group_.Broadcast(head, 0);
  if (bytes.empty()) return;
  at::Tensor body = at::empty({std::ssize(bytes)}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), body.data_ptr<uint8_t>());
  group_.Broadcast(body, 0);
}

std::optional<std::string> PromptRelay::ReceiveBytes() {
  at::Tensor head = Longs(2);
  group_.Broadcast(head, 0);
  const int64_t count = head.data_ptr<int64_t>()[0];
  if (count == kEnd) return std::nullopt;
  if (count == 0) return std::string();
  at::Tensor body = at::empty({count}, at::kByte);
  group_.Broadcast(body, 0);
  const auto* const bytes = reinterpret_cast<const char*>(body.const_data_ptr<uint8_t>());
  return std::string(bytes, static_cast<size_t>(count));
}

int64_t PromptRelay::Least(int64_t value) {
  if (group_.size() == 1) return value;
  at::Tensor least = Longs(1);
  least.data_ptr<int64_t>()[0] = value;
  group_.AllReduce(least, parallel::ReduceOp::kMin);
  return least.data_ptr<int64_t>()[0];
}

}  // namespace keel::tools
