// How messages stand in a stream of bytes, and how the two ends of a connection know each other.
// Torch-free, without sockets.
//
// A frame is its size as uint32, the low half of that number's XXH3-64, the XXH3-64 of its content
// as uint64, then the content. The first ones prove the secret of the job both ways, before
// anything else is read: the worker's nonce, the desk's, the worker's proof (SHA-256 over the
// secret and both), the desk's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"
#include "parallel/store/store_wire.h"

namespace keel::trainer::desk {

std::string Frame(std::string_view content);

class FrameReader {
 public:
  // `most`: bytes that a frame may have.
  explicit FrameReader(size_t most) : most_(most) {}
  void set_most(size_t most) { most_ = most; }
  void Feed(std::string_view bytes) { input_.append(bytes); }
  // The next whole frame's content; nothing: more has to come. kUnavailable for a size or a
  // checksum that cannot be: this connection is of no use any more, which is no fault of the run.
  Result<std::optional<std::string>> Next();

 private:
  size_t most_;
  std::string input_;
  size_t done_ = 0;  // of input_
};

inline constexpr size_t kMostProofBytes = 64;               // of a frame before the proof
inline constexpr size_t kMostFrameBytes = size_t{1} << 30;  // of one after it

// One end's part of the proof.
class Proof {
 public:
  Proof(std::string secret, parallel::Prover side) : secret_(std::move(secret)), side_(side) {}
  // What is sent first: the worker's nonce; "" of the desk.
  std::string Begin();
  // What is to be sent upon the other's frame; "": nothing. kUsage where it does not know the
  // secret.
  Result<std::string> On(std::string_view frame);
  bool done() const { return done_; }

 private:
  const std::string secret_;
  const parallel::Prover side_;
  parallel::StoreNonce of_worker_{}, of_desk_{};
  bool have_nonce_ = false;
  bool done_ = false;
};

}  // namespace keel::trainer::desk
