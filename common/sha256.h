// SHA-256 (FIPS 180-4) and HMAC (RFC 2104) over it: to prove that one knows a secret without saying
// it. Checksums of data are in hash.h, which is much faster.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace keel {

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest Sha256(std::string_view data);
Sha256Digest HmacSha256(std::string_view key, std::string_view data);

// Takes the same time wherever they differ.
bool SameDigest(const Sha256Digest& a, const Sha256Digest& b);

}  // namespace keel
