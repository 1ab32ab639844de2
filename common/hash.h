// XXH3 digests (XXH3-64 and XXH3-128), from libxxhash.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace keel {

struct Digest128 {
  uint64_t low = 0;
  uint64_t high = 0;
  std::string ToHex() const;  // 32 digits, high half first, in lower case
  static Result<Digest128> FromHex(std::string_view hex);  // kInvalidData for any other text
  friend auto operator<=>(const Digest128&, const Digest128&) = default;
};

uint64_t Hash64(std::string_view bytes, uint64_t seed = 0);
Digest128 Hash128(std::span<const std::byte> bytes);

// Hash128 over pieces. A moved-from one can only be assigned to.
class Hasher128 {
 public:
  Hasher128();
  ~Hasher128();
  Hasher128(Hasher128&&) noexcept;
  Hasher128& operator=(Hasher128&&) noexcept;
  void Update(std::span<const std::byte> bytes);
  Digest128 Finish();  // and starts anew

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace keel
