#include "common/hash.h"

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
// Distributions build the library for the oldest CPU of the family; through this header the calls
// go to its AVX2 or AVX-512 code where the CPU has it, which is several times faster.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

#include "common/text.h"

namespace keel {

namespace {
constexpr char kDigits[] = "0123456789abcdef";
}  // namespace

uint64_t Hash64(std::string_view bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

Digest128 Hash128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

std::string Digest128::ToHex() const {
  std::string text;
  for (uint64_t half : {high, low}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(half >> shift) & 15];
  }
  return text;
}

Result<Digest128> Digest128::FromHex(std::string_view hex) {
  const bool digits = hex.size() == 32 && hex.find_first_not_of(kDigits) == std::string_view::npos;
  if (!digits) {
    return Status(
        StatusCode::kInvalidData,
        "a digest has 32 hexadecimal digits, in lower case; found \"" + Printable(hex, 40) + "\"");
  }
  uint64_t halves[2] = {0, 0};
  for (size_t i = 0; i < 32; ++i) {
    halves[i / 16] = halves[i / 16] << 4 | std::string_view(kDigits).find(hex[i]);
  }
  return Digest128{halves[1], halves[0]};
}

struct Hasher128::State {
  XXH3_state_t xxh;
};

Hasher128::Hasher128() : state_(new State) { XXH3_128bits_reset(&state_->xxh); }
Hasher128::~Hasher128() = default;
Hasher128::Hasher128(Hasher128&&) noexcept = default;
Hasher128& Hasher128::operator=(Hasher128&&) noexcept = default;

void Hasher128::Update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

Digest128 Hasher128::Finish() {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  XXH3_128bits_reset(&state_->xxh);
  return {hash.low64, hash.high64};
}

}  // namespace keel
