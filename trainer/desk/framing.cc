#include "trainer/desk/framing.h"

#include <fmt/format.h>

#include <cstring>

#include "common/hash.h"
#include "common/wire.h"

namespace keel::trainer::desk {

using parallel::Prover;
using parallel::StoreNonce;
using parallel::StoreProof;

namespace {

constexpr size_t kHeadBytes = 2 * sizeof(uint32_t) + sizeof(uint64_t);

// A size that is wrong would have the reader wait for bytes that never come.
uint32_t CheckOf(uint32_t size) {
  return static_cast<uint32_t>(
      Hash64(std::string_view(reinterpret_cast<const char*>(&size), sizeof size)));
}

// Whatever else is on this connection, the next one is a new beginning.
Status Broken(const char* how) {
  return Status(StatusCode::kUnavailable, fmt::format("the desk's connection: {}", how));
}

template <typename Bytes>
std::string TextOf(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename Bytes>
bool Take(std::string_view frame, Bytes* bytes) {
  if (frame.size() != bytes->size()) return false;
  std::memcpy(bytes->data(), frame.data(), frame.size());
  return true;
}

}  // namespace

std::string Frame(std::string_view content) {
  WireWriter frame;
  frame.Reserve(kHeadBytes + content.size());
  frame.Count<uint32_t>(content.size())
      .U32(CheckOf(static_cast<uint32_t>(content.size())))
      .U64(Hash64(content))
      .Raw(content);
  return std::move(frame).Take();
}

Result<std::optional<std::string>> FrameReader::Next() {
  WireReader in(std::string_view(input_).substr(done_));
  uint32_t size = 0, check = 0;
  uint64_t checksum = 0;
  std::string_view content;
  if (in.U32(&size) && in.U32(&check)) {
    if (check != CheckOf(size)) return Broken("a frame arrived damaged");
    if (size > most_) return Broken("a frame that is too large");
  }
  if (!in.U64(&checksum) || !in.Raw(size, &content)) {
    input_.erase(0, done_);
    done_ = 0;
    return std::optional<std::string>();
  }
  if (Hash64(content) != checksum) return Broken("a frame arrived damaged");
  done_ += kHeadBytes + size;
  return std::optional<std::string>(content);
}

std::string Proof::Begin() {
  if (side_ == Prover::kServer) return {};
  of_worker_ = parallel::MakeStoreNonce();
  return TextOf(of_worker_);
}

Result<std::string> Proof::On(std::string_view frame) {
  const Status wrong(StatusCode::kUsage, "whoever is there does not know the secret of this job");
  const bool desk = side_ == Prover::kServer;
  if (!have_nonce_) {
    if (!Take(frame, desk ? &of_worker_ : &of_desk_)) return wrong;
    have_nonce_ = true;
    if (desk) return TextOf(of_desk_ = parallel::MakeStoreNonce());
    return TextOf(StoreProof(secret_, Prover::kClient, of_worker_, of_desk_));
  }
  Sha256Digest proof{};
  const Prover other = desk ? Prover::kClient : Prover::kServer;
  if (!Take(frame, &proof) || !SameDigest(proof, StoreProof(secret_, other, of_worker_, of_desk_)))
    return wrong;
  done_ = true;
  return desk ? TextOf(StoreProof(secret_, Prover::kServer, of_worker_, of_desk_)) : std::string();
}

}  // namespace keel::trainer::desk
