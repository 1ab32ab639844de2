#include "checkpoint/load/far_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include "checkpoint/read/box_runs.h"
#include "common/wire.h"

// How parts of chunks travel:
//
// 1. Begin. Each rank tells each far peer once which boxes it wants of the chunks that this peer
//    hands on. From the index, the schedule and these boxes both ends compute the size of every
//    message that will follow, so that messages need no headers and no answers.
// 2. Pack. A worker that has read and verified a chunk packs it: what a peer wants of it becomes
//    one run of bytes, unless the peer wants most of a range, which is sent from where it was read.
// 3. Round. All far peers exchange in one step what the schedule puts into this round: first a
//    flag that says whether the sender stops, then its parts in the order of chunks. What arrives
//    is copied to its place only when no flag says that it is nothing.
//
// A failure must not change what the two ends agreed on, or the peer would wait for bytes that
// never come. So a rank that fails sends one more round of the agreed sizes, with zeros or what it
// has, and its flag set; its peers take nothing of it, and after that round the pair is silent.
namespace keel::checkpoint {
namespace {

Status Malformed(int peer) {
  return Status(StatusCode::kInternal,
                fmt::format("rank {} asked for parts of the checkpoint that there are not", peer));
}

// What one rank gets of one chunk: the range from the first to the last byte that it wants when
// that is mostly wanted, or just the wanted bytes, one after the other. Both ends find the same.
struct Part {
  int64_t begin = 0, end = 0;  // in the file
  int64_t bytes = 0;           // that are wanted
  bool as_range() const { return bytes * 4 >= (end - begin) * 3; }
  int64_t size() const { return as_range() ? end - begin : bytes; }
};

template <typename RunsOf, typename BaseOf>
Part PartOf(const PieceList& pieces, ChunkId id, int64_t chunk_bytes, const RunsOf& runs_of,
            const BaseOf& base_of) {
  Part part;
  const int64_t low = id.chunk * chunk_bytes;
  pieces.ForEachIn(id.file, low, low + chunk_bytes, [&](const Piece& piece) {
    const int64_t base = base_of(piece);
    const BoxRuns::Extent extent = runs_of(piece).Within(low - base, low + chunk_bytes - base);
    if (extent.bytes == 0) return;
    part.begin = part.bytes == 0 ? base + extent.begin : std::min(part.begin, base + extent.begin);
    part.end = std::max(part.end, base + extent.end);
    part.bytes += extent.bytes;
  });
  return part;
}

// `*memory` with room for `bytes`: it grows, and is used anew, uncleared, in each round.
std::byte* Reserve(std::unique_ptr<std::byte[]>* memory, int64_t* size, int64_t bytes) {
  if (bytes > *size) {
    *memory = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
    *size = bytes;
  }
  return memory->get();
}

}  // namespace

// What a peer wants of the chunks that this rank hands on.
struct FarExchange::PeerNeeds {
  std::vector<Box> wanted;
  PieceList pieces;

  BoxRuns RunsOf(const Index& index, const Piece& piece) const {
    const IndexBox saved = index.box(piece.box);
    const Box common = *Intersect(saved.box, wanted[static_cast<size_t>(piece.wanted)]);
    return BoxRuns(common, saved.box, common, saved.bytes / saved.box.elements());
  }
};

// A chunk that is handed on.
struct FarExchange::Given {
  struct For {
    int peer = 0;
    Part part;
    int64_t packed_at = 0;  // in `packed`, unless the part is a range
    bool pack = false;      // not yet there: an earlier peer may want the very same
  };
  ChunkId id;
  const std::byte* data = nullptr;
  std::unique_ptr<std::byte[]> packed;
  int64_t packed_bytes = 0;
  std::vector<For> parts;  // by peer
};

// A part of a chunk that a peer hands on.
struct FarExchange::Arrival {
  int from = 0;
  ChunkId id;
  Part part;
  std::byte* data = nullptr;
  bool in_place = false;
};

FarExchange::FarExchange(const StepReader& reader, const ReadPlan& plan,
                         const ReadSchedule& schedule,
                         const std::vector<std::vector<ChunkId>>& given, PeerChannel& channel,
                         int64_t slots, std::chrono::milliseconds deadline)
    : reader_(reader),
      plan_(plan),
      schedule_(schedule),
      chunks_(given),
      channel_(channel),
      deadline_(deadline),
      peers_(given.size()),
      next_(given.size(), 0),
      given_(static_cast<size_t>(slots)) {
  int64_t end = 0;
  for (const std::vector<int32_t>& counts : schedule.rounds)
    ends_.push_back(end += counts[static_cast<size_t>(channel.rank())]);
}

FarExchange::~FarExchange() = default;

Status FarExchange::Begin(std::vector<bool> far) {
  far_ = std::move(far);
  goes_on_ = far_;
  any_ = std::find(far_.begin(), far_.end(), true) != far_.end();
  if (!any_) return Status::Ok();
  const int64_t chunk_bytes = reader_.index().chunk_bytes();
  const int64_t memory = static_cast<int64_t>(given_.size()) * chunk_bytes;
  memory_ = AllocatePages(memory);
  if (memory_ == nullptr) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("no memory for {} bytes to hand on what is read", memory));
  }
  // What is agreed with far peers is sent even after a failure: not what lay here before.
  std::memset(memory_.get(), 0, static_cast<size_t>(memory));
  return ExchangeNeeds(Needs());
}

std::vector<std::string> FarExchange::Needs() const {
  const int64_t chunk_bytes = reader_.index().chunk_bytes();
  // For each piece that this rank wants, the shares that it lies in name the readers to ask. A peer
  // is asked once for each piece: `asked` is cleared with every piece, not with every share. The
  // same box is wanted in many pieces, so that boxes are sent once and pieces name them by number.
  struct Announcement {
    WireWriter boxes, pieces;
    uint64_t box_count = 0, piece_count = 0;
    std::unordered_map<const Box*, uint64_t> numbers;
  };
  std::vector<Announcement> messages(peers_.size());
  std::vector<char> asked(peers_.size(), 0);
  for (const Piece& piece : plan_.pieces().all()) {
    const int64_t first = piece.begin / chunk_bytes;
    const int64_t last = (piece.end - 1) / chunk_bytes;
    auto share = std::upper_bound(schedule_.shares.begin(), schedule_.shares.end(), first,
                                  [&](int64_t chunk, const ReadShare& s) {
                                    return piece.file != s.file ? piece.file < s.file
                                                                : chunk < s.first + s.count;
                                  });
    std::fill(asked.begin(), asked.end(), 0);
    for (; share != schedule_.shares.end() && share->file == piece.file && share->first <= last;
         ++share) {
      const auto peer = static_cast<size_t>(share->reader);
      if (share->shared == 0 || !far_[peer] || asked[peer] != 0) continue;
      asked[peer] = 1;
      Announcement& message = messages[peer];
      const Box& box = plan_.WantedBoxOf(piece);
      const auto [place, fresh] = message.numbers.try_emplace(&box, message.box_count);
      if (fresh) {
        ++message.box_count;
        message.boxes.U32(static_cast<uint32_t>(box.dims()));
        message.boxes.Pods(box.offset).Pods(box.size);
      }
      ++message.piece_count;
      message.pieces.I64(piece.box).U64(place->second);
    }
  }
  std::vector<std::string> texts(peers_.size());
  for (size_t p = 0; p < peers_.size(); ++p) {
    if (messages[p].piece_count == 0) continue;
    WireWriter text;
    text.U64(messages[p].box_count).Raw(messages[p].boxes.bytes());
    text.U64(messages[p].piece_count).Raw(messages[p].pieces.bytes());
    texts[p] = std::move(text).Take();
  }
  return texts;
}

Status FarExchange::ExchangeNeeds(const std::vector<std::string>& texts) {
  // Sizes go first, because a receiver must know how much to wait for; then the texts. Who wants
  // nothing of a peer says so with a size of zero.
  std::vector<uint64_t> sizes(peers_.size(), 0), their_sizes(peers_.size(), 0);
  std::vector<PeerChannel::Send> sends;
  std::vector<PeerChannel::Receive> receives;
  for (size_t p = 0; p < peers_.size(); ++p) {
    const int peer = static_cast<int>(p);
    if (!goes_on_[p]) continue;
    sizes[p] = texts[p].size();
    sends.push_back({peer, std::as_bytes(std::span(&sizes[p], 1))});
    receives.push_back({peer, std::as_writable_bytes(std::span(&their_sizes[p], 1))});
  }
  KEEL_RETURN_IF_ERROR(channel_.Exchange(sends, receives, deadline_));
  sends.clear();
  receives.clear();
  std::vector<std::string> their_texts(peers_.size());
  for (size_t p = 0; p < peers_.size(); ++p) {
    const int peer = static_cast<int>(p);
    if (their_sizes[p] > uint64_t{1} << 40) return Malformed(peer);
    if (sizes[p] > 0) sends.push_back({peer, std::as_bytes(std::span(texts[p]))});
    if (their_sizes[p] > 0) {
      their_texts[p].resize(their_sizes[p]);
      receives.push_back({peer, std::as_writable_bytes(std::span(their_texts[p]))});
    }
  }
  KEEL_RETURN_IF_ERROR(channel_.Exchange(sends, receives, deadline_));
  for (size_t p = 0; p < peers_.size(); ++p) {
    if (!their_texts[p].empty())
      KEEL_RETURN_IF_ERROR(ParseNeeds(static_cast<int>(p), their_texts[p]));
    std::string().swap(their_texts[p]);
  }
  return Status::Ok();
}

// A peer's wish is checked like a file's content: the boxes that it names must be those of this
// checkpoint, and what it wants of them must be a part of them.
Status FarExchange::ParseNeeds(int peer, std::string_view text) {
  const Index& index = reader_.index();
  PeerNeeds& needs = peers_[static_cast<size_t>(peer)];
  WireReader in(text);
  uint64_t boxes = 0;
  if (!in.U64(&boxes) || boxes > in.remaining() / sizeof(uint32_t)) return Malformed(peer);
  for (uint64_t i = 0; i < boxes; ++i) {
    uint32_t dims = 0;
    if (!in.U32(&dims) || dims > static_cast<uint32_t>(kMaxDims)) return Malformed(peer);
    Box box{Dims::Filled(static_cast<int>(dims), 0), Dims::Filled(static_cast<int>(dims), 0)};
    for (Dims* list : {&box.offset, &box.size}) {
      for (int d = 0; d < list->size(); ++d) {
        if (!in.I64(&(*list)[d]) || (*list)[d] < 0 || (*list)[d] > int64_t{1} << 62)
          return Malformed(peer);
      }
    }
    needs.wanted.push_back(box);
  }
  uint64_t pieces = 0;
  if (!in.U64(&pieces) || pieces != in.remaining() / 16 || in.remaining() % 16 != 0)
    return Malformed(peer);
  for (uint64_t i = 0; i < pieces; ++i) {
    Piece piece;
    uint64_t wanted = 0;
    if (!in.I64(&piece.box) || !in.U64(&wanted) || piece.box < 0 || piece.box >= index.boxes() ||
        wanted >= needs.wanted.size())
      return Malformed(peer);
    piece.wanted = static_cast<int64_t>(wanted);
    const IndexBox saved = index.box(piece.box);
    const Box& box = needs.wanted[wanted];
    if (box.dims() != saved.box.dims() || !Intersect(saved.box, box)) return Malformed(peer);
    piece.file = saved.file;
    const auto [begin, end] = needs.RunsOf(index, piece).SourceRange();
    piece.begin = saved.begin + begin;
    piece.end = saved.begin + end;
    needs.pieces.Add(piece);
  }
  needs.pieces.Seal();
  return Status::Ok();
}

std::byte* FarExchange::Memory(int64_t n) const {
  return memory_.get() + n % static_cast<int64_t>(given_.size()) * reader_.index().chunk_bytes();
}

// What each far peer gets of a chunk, and where it lies.
FarExchange::Given* FarExchange::LayOut(int64_t n) {
  const Index& index = reader_.index();
  Given& given = given_[static_cast<size_t>(n) % given_.size()];
  given.id = chunks_[static_cast<size_t>(channel_.rank())][static_cast<size_t>(n)];
  given.data = Memory(n);
  // The slot's former chunk has had its round.
  given.parts.clear();
  int64_t packed = 0;
  for (size_t p = 0; p < peers_.size(); ++p) {
    if (!far_[p]) continue;
    const PeerNeeds& peer = peers_[p];
    Given::For one;
    one.peer = static_cast<int>(p);
    one.part = PartOf(
        peer.pieces, given.id, index.chunk_bytes(),
        [&](const Piece& piece) { return peer.RunsOf(index, piece); },
        [&](const Piece& piece) { return index.box_begin(piece.box); });
    if (one.part.bytes == 0) continue;
    if (!one.part.as_range()) {
      const auto same =
          std::find_if(given.parts.begin(), given.parts.end(), [&](const Given::For& other) {
            return other.pack && SameNeeds(static_cast<size_t>(other.peer), p, given.id);
          });
      one.pack = same == given.parts.end();
      one.packed_at = one.pack ? packed : same->packed_at;
      if (one.pack) packed += one.part.bytes;
    }
    given.parts.push_back(one);
  }
  Reserve(&given.packed, &given.packed_bytes, packed);
  return &given;
}

// Replicas want the same: it is packed once.
bool FarExchange::SameNeeds(size_t a, size_t b, ChunkId id) const {
  const int64_t low = id.chunk * reader_.index().chunk_bytes();
  const int64_t high = low + reader_.index().chunk_bytes();
  std::vector<std::pair<int64_t, const Box*>> wanted[2];
  for (const int i : {0, 1}) {
    const PeerNeeds& peer = peers_[i == 0 ? a : b];
    peer.pieces.ForEachIn(id.file, low, high, [&](const Piece& piece) {
      wanted[i].emplace_back(piece.box, &peer.wanted[static_cast<size_t>(piece.wanted)]);
    });
  }
  return std::equal(
      wanted[0].begin(), wanted[0].end(), wanted[1].begin(), wanted[1].end(),
      [](const auto& x, const auto& y) { return x.first == y.first && *x.second == *y.second; });
}

void FarExchange::Pack(int64_t n) {
  const Given& given = *LayOut(n);
  const Index& index = reader_.index();
  const auto [begin, size] = reader_.RangeOf(given.id);
  for (const Given::For& one : given.parts) {
    if (!one.pack) continue;
    const PeerNeeds& peer = peers_[static_cast<size_t>(one.peer)];
    std::byte* to = given.packed.get() + one.packed_at;
    const int64_t from = begin;
    const int64_t end = begin + size;
    peer.pieces.ForEachIn(given.id.file, from, end, [&](const Piece& piece) {
      const int64_t base = index.box_begin(piece.box);
      peer.RunsOf(index, piece)
          .ForEach(from - base, end - base, [&](int64_t at, int64_t, int64_t count) {
            std::memcpy(to, given.data + (base + at - from), static_cast<size_t>(count));
            to += count;
          });
    });
  }
}

// With `stop` the chunks of this round may never have been packed. They are laid out, so that the
// sizes are those that the peers expect, and what happens to lie in memory is sent.
FarExchange::RoundResult FarExchange::Round(size_t round, bool stop) {
  const int64_t chunk_bytes = reader_.index().chunk_bytes();
  const int64_t first = round == 0 ? 0 : ends_[round - 1];
  if (stop) {
    for (int64_t n = first; n < ends_[round]; ++n) LayOut(n);
  }
  // 1. What comes. Every rank also hears from every far peer whether it goes on.
  std::vector<Arrival> arrivals;
  int64_t buffered = 0;
  for (size_t p = 0; p < peers_.size(); ++p) {
    const int32_t count = schedule_.rounds[round][p];
    for (int32_t i = 0; i < count; ++i) {
      const ChunkId id = chunks_[p][next_[p]++];
      if (!goes_on_[p]) continue;
      Arrival arrival;
      arrival.from = static_cast<int>(p);
      arrival.id = id;
      arrival.part = PartOf(
          plan_.pieces(), id, chunk_bytes, [&](const Piece& piece) { return plan_.RunsOf(piece); },
          [&](const Piece& piece) { return plan_.BaseOf(piece); });
      if (arrival.part.bytes == 0) continue;
      // Bytes that lie in the target as they lie in the file are received right there.
      if (arrival.part.as_range())
        arrival.data = plan_.WholeTarget(id.file, arrival.part.begin, arrival.part.end);
      arrival.in_place = arrival.data != nullptr;
      if (!arrival.in_place) buffered += arrival.part.size();
      received_ += arrival.part.size();
      arrivals.push_back(arrival);
    }
  }
  std::byte* place = Reserve(&incoming_, &incoming_bytes_, buffered);
  std::vector<uint64_t> flags(peers_.size(), 0);
  const uint64_t flag = stop ? 1 : 0;
  std::vector<PeerChannel::Send> sends;
  std::vector<PeerChannel::Receive> receives;
  for (size_t p = 0; p < peers_.size(); ++p) {
    if (!goes_on_[p]) continue;
    sends.push_back({static_cast<int>(p), std::as_bytes(std::span(&flag, 1))});
    receives.push_back({static_cast<int>(p), std::as_writable_bytes(std::span(&flags[p], 1))});
  }
  for (Arrival& arrival : arrivals) {
    if (!arrival.in_place) {
      arrival.data = place;
      place += arrival.part.size();
    }
    receives.push_back({arrival.from, {arrival.data, static_cast<size_t>(arrival.part.size())}});
  }
  // 2. What goes. After a failure the sizes stay as agreed; the flag tells that it is nothing.
  for (int64_t n = first; n < ends_[round]; ++n) {
    const Given& given = given_[static_cast<size_t>(n) % given_.size()];
    const int64_t begin = given.id.chunk * chunk_bytes;
    for (const Given::For& one : given.parts) {
      if (!goes_on_[static_cast<size_t>(one.peer)]) continue;
      const std::byte* data = one.part.as_range() ? given.data + (one.part.begin - begin)
                                                  : given.packed.get() + one.packed_at;
      sends.push_back({one.peer, {data, static_cast<size_t>(one.part.size())}});
    }
  }
  RoundResult result;
  result.status = channel_.Exchange(sends, receives, deadline_);
  if (!result.status.ok()) return result;
  for (size_t p = 0; p < peers_.size(); ++p) {
    if (flags[p] == 0) continue;
    goes_on_[p] = false;
    result.peer_stopped = true;
  }
  // 3. To their places, what is not there yet.
  if (stop || result.peer_stopped) return result;
  for (const Arrival& arrival : arrivals) Place(arrival);
  return result;
}

void FarExchange::Place(const Arrival& arrival) const {
  if (arrival.in_place) return;
  if (arrival.part.as_range()) {
    plan_.Scatter(arrival.id.file, arrival.part.begin,
                  {arrival.data, static_cast<size_t>(arrival.part.size())});
    return;
  }
  // Packed: the wanted runs follow each other in the order in which the sender's Pack met them,
  // which is that of the pieces by file position, on both ends.
  const std::byte* next = arrival.data;
  const int64_t chunk_bytes = reader_.index().chunk_bytes();
  const int64_t low = arrival.id.chunk * chunk_bytes;
  plan_.pieces().ForEachIn(arrival.id.file, low, low + chunk_bytes, [&](const Piece& piece) {
    const int64_t base = plan_.BaseOf(piece);
    std::byte* const target = plan_.TargetOf(piece);
    plan_.RunsOf(piece).ForEach(low - base, low + chunk_bytes - base,
                                [&](int64_t, int64_t to, int64_t count) {
                                  std::memcpy(target + to, next, static_cast<size_t>(count));
                                  next += count;
                                });
  });
}

}  // namespace keel::checkpoint
