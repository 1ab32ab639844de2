// What goes over a connection to the job's store: the queries of c10d's TCPStore, so that programs
// of PyTorch can be ranks too, and before them Keel's proof of the job's secret.
//
// Torch-free. Numbers are little-endian; a text is its size as uint64, then its bytes. The page is
// docs/formats/store.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/sha256.h"
#include "common/wire.h"

namespace keel::parallel {

enum class StoreQuery : uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kNumKeys = 7,
  kDelete = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kCancelWait = 12,
  kPing = 13,
  kProve = 'K',  // Keel's own: before all others
};

// After kValidate.
inline constexpr uint32_t kStoreMagic = 0x3C85F7CE;
// After kProve.
inline constexpr uint8_t kProofVersion = 1;
// Answers to kCheck and kWait.
inline constexpr uint8_t kReady = 0;
inline constexpr uint8_t kNotReady = 1;
inline constexpr uint8_t kWaitDone = 0;
inline constexpr uint8_t kWaitCancelled = 1;

// In the place of an answer, before the connection is closed: kRefusalSize bytes that begin with
// kRefusalMark. No proof begins like that, but one in 2^96.
inline constexpr size_t kRefusalSize = 32;
inline constexpr std::string_view kRefusalMark = "keel store: ";
inline constexpr std::string_view kNeedsSecret = "keel store: prove the secret    ";
inline constexpr std::string_view kWrongSecret = "keel store: not the same secret ";
inline constexpr std::string_view kHasNoSecret = "keel store: there is no secret  ";
static_assert(kNeedsSecret.size() == kRefusalSize && kWrongSecret.size() == kRefusalSize &&
              kHasNoSecret.size() == kRefusalSize);

// What an answer that came in the place of another says; nothing: it is none of the three.
std::optional<std::string> ExplainRefusal(std::string_view refusal);

// Random bytes that are used once.
using StoreNonce = std::array<uint8_t, 32>;
StoreNonce MakeStoreNonce();

// Which end of a connection proves that it knows the secret.
enum class Prover { kClient, kServer };
Sha256Digest StoreProof(std::string_view secret, Prover prover, const StoreNonce& of_client,
                        const StoreNonce& of_server);

inline constexpr uint64_t kMostKeys = 1 << 16;               // in one query
inline constexpr uint64_t kLongestText = uint64_t{1} << 28;  // a key or a value

// Takes a query apart. Each says whether what it wants has come, as a WireReader does.
class QueryReader {
 public:
  explicit QueryReader(std::string_view bytes) : in_(bytes) {}
  template <WirePod T>
  bool Pod(T* value) {
    return in_.Pod(value);
  }
  bool Text(std::string* text);
  // At most kMostKeys.
  bool Texts(std::vector<std::string>* texts);
  // It can never be one, however much follows.
  bool malformed() const { return malformed_; }
  size_t remaining() const { return in_.remaining(); }

 private:
  WireReader in_;
  bool malformed_ = false;
};

}  // namespace keel::parallel
