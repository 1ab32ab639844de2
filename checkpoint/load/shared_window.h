// SharedWindow: a block of memory that the ranks of one host read directly.
//
// Each rank owns one, writes it, and sees those of its near peers: of the ranks with which the
// set-up worked in both directions. Others (on another host, in another pid namespace, without
// permission) are far, and reached over the PeerChannel alone. The memory has no name in any file
// system and is gone when the last process that maps it is. What a peer's window holds is up to
// that peer: its owner may write at any time. Thread-safe once made.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/base/peer_channel.h"
#include "common/memory/page_memory.h"
#include "common/status.h"

namespace keel::checkpoint {

class SharedWindow {
 public:
  // Collective, by two exchanges. `bytes`: of this rank's, zeroed; memory for the first `ready` of
  // them is taken now. Without `share` all peers are far. Memory that cannot be shared makes peers
  // far too; none at all is kUnavailable.
  static Result<std::unique_ptr<SharedWindow>> Make(PeerChannel& channel, bool share, int64_t bytes,
                                                    int64_t ready,
                                                    std::chrono::milliseconds deadline);
  ~SharedWindow();

  // Aligned to a page. What is not ready is populated before it is touched.
  std::span<std::byte> own() const { return own_; }
  // Takes the memory of a part of it. kUnavailable when there is none.
  Status Populate(int64_t begin, int64_t bytes);
  bool near(int peer) const { return peers_[static_cast<size_t>(peer)].process >= 0; }
  // Of a near peer.
  std::span<const std::byte> of(int peer) const { return peers_[static_cast<size_t>(peer)].bytes; }
  // Whether a near peer's process still runs.
  bool Alive(int peer) const;

 private:
  struct Peer {
    std::span<const std::byte> mapping;
    std::span<const std::byte> bytes;
    int process = -1;  // a descriptor of it
  };
  // What a rank tells its peers: how its window is found, and how it is known.
  struct Offer {
    bool valid = false;
    int64_t pid = 0;
    int32_t fd = -1;
    int64_t bytes = 0;        // without the first page
    uint64_t nonce[2] = {0};  // the window's first bytes
    std::string host;         // of one boot, and one pid namespace
    std::string Serialize() const;
    static Offer Parse(std::string_view text);  // not valid when malformed
  };

  SharedWindow() = default;
  Offer Create(int64_t bytes, int64_t ready);
  void Open(const Offer& offer, const Offer& mine, Peer* peer) const;
  static void Forget(Peer* peer);

  std::span<std::byte> mapping_;  // of this rank's, with the first page
  PageMemory private_;            // instead of it
  std::span<std::byte> own_;
  bool all_taken_ = false;  // of its memory
  int fd_ = -1;             // while peers look for it
  std::vector<Peer> peers_;
};

}  // namespace keel::checkpoint
