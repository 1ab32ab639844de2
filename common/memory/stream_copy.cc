#include "common/memory/stream_copy.h"

#include <cstring>

// Every x86-64 has SSE2, and wider stores are no faster: what counts is that lines are written
// whole. Sanitizers do not see these stores.
#if defined(__SSE2__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KEEL_STREAM_STORES
#include <emmintrin.h>
#endif

namespace keel {

#ifdef KEEL_STREAM_STORES

namespace {
constexpr int64_t kLine = 64;
// Shorter ones would be mostly ends that are no whole lines.
constexpr int64_t kShortest = 8 * kLine;
}  // namespace

StreamCopy::~StreamCopy() {
  if (streamed_) _mm_sfence();
}

void StreamCopy::operator()(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes < kShortest) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  const auto head = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) % kLine);
  std::memcpy(to, from, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    for (int i = 0; i < 4; ++i) _mm_stream_si128(target + i, _mm_loadu_si128(source + i));
  }
  std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
  streamed_ = true;
}

#else

StreamCopy::~StreamCopy() = default;

void StreamCopy::operator()(std::byte* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

#endif

}  // namespace keel
