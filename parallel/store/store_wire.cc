#include "parallel/store/store_wire.h"

#include <sys/random.h>

#include "common/status.h"

namespace keel::parallel {

std::optional<std::string> ExplainRefusal(std::string_view refusal) {
  if (refusal == kNeedsSecret)
    return "it asks for the job's secret: set KEEL_JOB_SECRET to what the host of the store has";
  if (refusal == kWrongSecret)
    return "KEEL_JOB_SECRET here is not the one that the host of the store has";
  if (refusal == kHasNoSecret) {
    return "KEEL_JOB_SECRET is set here, and was not where the store is served: set it there, or "
           "unset it here";
  }
  return std::nullopt;
}

StoreNonce MakeStoreNonce() {
  StoreNonce nonce{};
  // Of up to 256 bytes it gives all.
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size()))
    throw Error(StatusCode::kInternal, "getrandom gave too little");
  return nonce;
}

Sha256Digest StoreProof(std::string_view secret, Prover prover, const StoreNonce& of_client,
                        const StoreNonce& of_server) {
  std::string text = prover == Prover::kClient ? "keel store client 1:" : "keel store server 1:";
  text.append(reinterpret_cast<const char*>(of_client.data()), of_client.size());
  text.append(reinterpret_cast<const char*>(of_server.data()), of_server.size());
  return HmacSha256(secret, text);
}

bool QueryReader::Text(std::string* text) {
  uint64_t size = 0;
  malformed_ = malformed_ || (WireReader(in_).U64(&size) && size > kLongestText);
  return !malformed_ && in_.Text(text);
}

bool QueryReader::Texts(std::vector<std::string>* texts) {
  uint64_t count = 0;
  if (!in_.U64(&count)) return false;
  malformed_ = malformed_ || count > kMostKeys;
  texts->clear();
  for (uint64_t i = 0; !malformed_ && i < count; ++i) {
    if (!Text(&texts->emplace_back())) return false;
  }
  return !malformed_;
}

}  // namespace keel::parallel
