#include "checkpoint/shared_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include "checkpoint/box_runs.h"
#include "checkpoint/parallel_for.h"
#include "checkpoint/wire.h"

namespace keel::checkpoint {
namespace {

// Chunks of this rank alone that are read beside one exchange with peers: enough to keep the disk
// busy, and not so many that peers wait for long.
constexpr size_t kLocalChunksPerRound = 4;
// Announced to the disk ahead of being read.
constexpr size_t kPrefetchChunks = 4;

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

// Grows, never shrinks, never clears.
class Buffer {
 public:
  std::byte* Reserve(int64_t bytes) {
    if (bytes > size_) {
      memory_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
      size_ = bytes;
    }
    return memory_.get();
  }
  std::byte* get() const { return memory_.get(); }

 private:
  std::unique_ptr<std::byte[]> memory_;
  int64_t size_ = 0;
};

}  // namespace

// What a peer wants of the chunks that this rank hands on.
struct SharedReader::PeerNeeds {
  std::vector<Box> wanted;
  PieceList pieces;

  BoxRuns RunsOf(const Index& index, const Piece& piece) const {
    const IndexBox saved = index.box(piece.box);
    const Box common = *Intersect(saved.box, wanted[static_cast<size_t>(piece.wanted)]);
    return BoxRuns(common, saved.box, common, saved.bytes / saved.box.elements());
  }
};

// A chunk that is handed on.
struct SharedReader::Given {
  struct For {
    int peer = 0;
    Part part;
    int64_t packed_at = 0;  // in `packed`, unless the part is a range
    bool pack = false;      // not yet there: an earlier peer may want the very same
  };
  ChunkId id;
  std::byte* data = nullptr;  // the whole chunk: in its place, or in `own`
  bool in_place = false;
  Buffer own;
  Buffer packed;
  std::vector<For> parts;  // by peer
};

struct SharedReader::Round {
  std::vector<Given> given;  // the first `count` are in use
  size_t count = 0;
  bool laid_out = false;  // the exchange can take place, whatever became of the reading
  Status status;
  int64_t bytes = 0;  // read
};

struct SharedReader::Incoming {
  Buffer buffer;
};

SharedReader::SharedReader(const StepReader& reader, const ReadPlan& plan,
                           const ReadSchedule& schedule, PeerChannel& channel, int threads,
                           std::chrono::milliseconds deadline)
    : reader_(reader),
      plan_(plan),
      schedule_(schedule),
      channel_(channel),
      threads_(std::max(1, threads)),
      deadline_(deadline),
      files_(reader),
      peers_(static_cast<size_t>(channel.world())),
      given_(peers_.size()),
      next_given_(peers_.size(), 0),
      scratch_(static_cast<size_t>(threads_)),
      incoming_(std::make_unique<Incoming>()) {
  for (const ReadShare& share : schedule.shares) {
    if (share.shared == 0 && share.reader != channel.rank()) continue;
    std::vector<ChunkId>& list =
        share.shared != 0 ? given_[static_cast<size_t>(share.reader)] : local_;
    for (int64_t c = share.first; c < share.first + share.count; ++c)
      list.push_back({share.file, c});
  }
}

SharedReader::~SharedReader() = default;

SharedReadResult SharedReader::Run() {
  SharedReadResult result;
  const auto lost = [&](Status status) {
    result.status = std::move(status);
    result.peer_lost = true;
    return result;
  };
  // 1. Each rank tells each reader what it wants of the reader's chunks.
  if (Status status = ExchangeNeeds(); !status.ok()) return lost(std::move(status));

  // 2. The chunks that several ranks need, round by round.
  const auto prepare = [this](size_t number, Round* round) {
    try {
      round->laid_out = false;
      LayOut(number, round);
      round->laid_out = true;
      round->status = ReadRound(round);
    } catch (const std::exception& e) {
      round->status = Status(StatusCode::kInternal, e.what());
    }
  };
  Round rounds[2];
  const size_t count = schedule_.rounds.size();
  size_t local = 0;
  if (count > 0) prepare(0, &rounds[0]);
  for (size_t k = 0; k < count; ++k) {
    Round& now = rounds[k % 2];
    Round& next = rounds[(k + 1) % 2];
    const bool more = k + 1 < count;
    const size_t local_now =
        now.status.ok() ? std::min(kLocalChunksPerRound, local_.size() - local) : 0;
    const auto work = [&] {
      if (more) prepare(k + 1, &next);
      if (!more) next.status = Status::Ok();
      if (!next.status.ok() || local_now == 0) return;
      const Result<int64_t> bytes =
          reader_.ReadChunks(plan_, std::span(local_).subspan(local, local_now), threads_);
      if (bytes.ok()) result.stats.bytes += *bytes;
      if (!bytes.ok()) next.status = bytes.status();
    };
    std::thread helper;
    try {
      if (more || local_now > 0) helper = std::thread(work);
    } catch (const std::system_error&) {
      // No thread to be had: one after the other.
    }
    bool stop = false;
    Status status = now.laid_out ? ExchangeRound(k, &now, &stop) : now.status;
    if (helper.joinable()) {
      helper.join();
    } else if (status.ok() && !stop) {
      work();
    }
    local += local_now;
    result.stats.bytes += now.bytes;
    if (!status.ok()) return lost(std::move(status));
    if (!now.status.ok()) {
      result.status = now.status;
      return result;
    }
    if (stop) {
      result.peer_stopped = true;
      return result;
    }
    if (!more && !next.status.ok()) {
      result.status = next.status;
      return result;
    }
  }

  // 3. What nobody else needs.
  const Result<int64_t> bytes =
      reader_.ReadChunks(plan_, std::span(local_).subspan(local), threads_);
  if (bytes.ok()) result.stats.bytes += *bytes;
  result.status = bytes.status();
  result.stats.received = received_;
  return result;
}

Status SharedReader::ExchangeNeeds() {
  const int me = channel_.rank();
  const int64_t chunk_bytes = reader_.index().chunk_bytes();
  struct Message {
    WireWriter boxes, pieces;
    uint64_t box_count = 0, piece_count = 0;
    std::unordered_map<const Box*, uint64_t> numbers;
  };
  std::vector<Message> messages(peers_.size());
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
      if (share->shared == 0 || share->reader == me || asked[peer] != 0) continue;
      asked[peer] = 1;
      Message& message = messages[peer];
      const Box& box = plan_.WantedBoxOf(piece);
      const auto [place, fresh] = message.numbers.try_emplace(&box, message.box_count);
      if (fresh) {
        ++message.box_count;
        message.boxes.U32(static_cast<uint32_t>(box.dims()));
        for (const int64_t value : box.offset) message.boxes.I64(value);
        for (const int64_t value : box.size) message.boxes.I64(value);
      }
      ++message.piece_count;
      message.pieces.I64(piece.box);
      message.pieces.U64(place->second);
    }
  }
  std::vector<std::string> texts(peers_.size());
  std::vector<uint64_t> sizes(peers_.size(), 0), their_sizes(peers_.size(), 0);
  std::vector<PeerChannel::Send> sends;
  std::vector<PeerChannel::Receive> receives;
  for (size_t p = 0; p < peers_.size(); ++p) {
    const int peer = static_cast<int>(p);
    if (peer == me) continue;
    if (messages[p].piece_count > 0) {
      WireWriter text;
      text.U64(messages[p].box_count);
      text.Raw(messages[p].boxes.bytes());
      text.U64(messages[p].piece_count);
      text.Raw(messages[p].pieces.bytes());
      texts[p] = std::move(text).Take();
    }
    sizes[p] = texts[p].size();
    sends.push_back({peer, std::as_bytes(std::span(&sizes[p], 1))});
    receives.push_back({peer, std::as_writable_bytes(std::span(&their_sizes[p], 1))});
  }
  messages.clear();
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

Status SharedReader::ParseNeeds(int peer, std::string_view text) {
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

// Which chunks this rank hands on in a round, to whom, and where the parts lie.
void SharedReader::LayOut(size_t number, Round* round) {
  const Index& index = reader_.index();
  const auto me = static_cast<size_t>(channel_.rank());
  round->count = static_cast<size_t>(schedule_.rounds[number][me]);
  round->bytes = 0;
  if (round->given.size() < round->count) round->given.resize(round->count);
  for (size_t i = 0; i < round->count; ++i) {
    Given& given = round->given[i];
    given.id = given_[me][laid_out_++];
    given.parts.clear();
    int64_t packed = 0;
    for (size_t p = 0; p < peers_.size(); ++p) {
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
    given.packed.Reserve(packed);
    const auto [begin, size] = reader_.RangeOf(given.id);
    given.data = plan_.WholeTarget(given.id.file, begin, begin + size);
    given.in_place = given.data != nullptr;
    if (!given.in_place) given.data = given.own.Reserve(size);
  }
}

// Replicas want the same: it is packed once.
bool SharedReader::SameNeeds(size_t a, size_t b, ChunkId id) const {
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

Status SharedReader::ReadRound(Round* round) {
  const Index& index = reader_.index();
  const std::vector<ChunkId>& mine = given_[static_cast<size_t>(channel_.rank())];
  const size_t first = laid_out_ - round->count;
  const Status status =
      ParallelFor(static_cast<int64_t>(round->count), threads_, [&](int64_t i, int worker) {
        Given& given = round->given[static_cast<size_t>(i)];
        const auto [begin, size] = reader_.RangeOf(given.id);
        KEEL_ASSIGN_OR_RETURN(const auto file, files_.Get(given.id.file));
        const size_t ahead = first + static_cast<size_t>(i) + kPrefetchChunks;
        if (ahead < mine.size()) reader_.Prefetch(*file, given.id, mine[ahead]);
        // 1. To its place, if there is one for all of it.
        KEEL_RETURN_IF_ERROR(reader_.ReadChunk(*file, given.id, given.data,
                                               &scratch_[static_cast<size_t>(worker)], nullptr));
        const std::span<const std::byte> bytes(given.data, static_cast<size_t>(size));
        if (!given.in_place) plan_.Scatter(given.id.file, begin, bytes);
        // 2. The parts of it that peers want scattered bytes of.
        for (const Given::For& one : given.parts) {
          if (!one.pack) continue;
          const PeerNeeds& peer = peers_[static_cast<size_t>(one.peer)];
          std::byte* to = given.packed.get() + one.packed_at;
          peer.pieces.ForEachIn(given.id.file, begin, begin + size, [&](const Piece& piece) {
            const int64_t base = index.box_begin(piece.box);
            peer.RunsOf(index, piece)
                .ForEach(begin - base, begin + size - base,
                         [&](int64_t from, int64_t, int64_t count) {
                           std::memcpy(to, bytes.data() + (base + from - begin),
                                       static_cast<size_t>(count));
                           to += count;
                         });
          });
        }
        return Status::Ok();
      });
  KEEL_RETURN_IF_ERROR(status);
  for (size_t i = 0; i < round->count; ++i)
    round->bytes += reader_.RangeOf(round->given[i].id).second;
  return Status::Ok();
}

Status SharedReader::ExchangeRound(size_t number, Round* round, bool* stop) {
  const int me = channel_.rank();
  const int64_t chunk_bytes = reader_.index().chunk_bytes();
  struct Arrival {
    ChunkId id;
    Part part;
    std::byte* data;
    bool in_place;
  };
  // 1. What comes. Every rank also hears from every other whether it goes on.
  std::vector<Arrival> arrivals;
  std::vector<int> from;
  int64_t buffered = 0;
  for (size_t p = 0; p < peers_.size(); ++p) {
    const int32_t count = schedule_.rounds[number][p];
    for (int32_t i = 0; i < count; ++i) {
      const ChunkId id = given_[p][next_given_[p]++];
      if (static_cast<int>(p) == me) continue;
      Arrival arrival{id,
                      PartOf(
                          plan_.pieces(), id, chunk_bytes,
                          [&](const Piece& piece) { return plan_.RunsOf(piece); },
                          [&](const Piece& piece) { return plan_.BaseOf(piece); }),
                      nullptr, false};
      if (arrival.part.bytes == 0) continue;
      if (arrival.part.as_range())
        arrival.data = plan_.WholeTarget(id.file, arrival.part.begin, arrival.part.end);
      arrival.in_place = arrival.data != nullptr;
      if (!arrival.in_place) buffered += arrival.part.size();
      received_ += arrival.part.size();
      arrivals.push_back(arrival);
      from.push_back(static_cast<int>(p));
    }
  }
  std::byte* place = incoming_->buffer.Reserve(buffered);
  std::vector<uint64_t> flags(peers_.size(), 0);
  const uint64_t flag = round->status.ok() ? 0 : 1;
  std::vector<PeerChannel::Send> sends;
  std::vector<PeerChannel::Receive> receives;
  for (size_t p = 0; p < peers_.size(); ++p) {
    if (static_cast<int>(p) == me) continue;
    sends.push_back({static_cast<int>(p), std::as_bytes(std::span(&flag, 1))});
    receives.push_back({static_cast<int>(p), std::as_writable_bytes(std::span(&flags[p], 1))});
  }
  for (size_t i = 0; i < arrivals.size(); ++i) {
    Arrival& arrival = arrivals[i];
    if (!arrival.in_place) {
      arrival.data = place;
      place += arrival.part.size();
    }
    receives.push_back({from[i], {arrival.data, static_cast<size_t>(arrival.part.size())}});
  }
  // 2. What goes. After a failure the sizes stay as agreed; the flag tells that it is nothing.
  for (size_t i = 0; i < round->count; ++i) {
    const Given& given = round->given[i];
    const int64_t begin = given.id.chunk * chunk_bytes;
    for (const Given::For& one : given.parts) {
      const auto size = static_cast<size_t>(one.part.size());
      const std::byte* data = one.part.as_range() ? given.data + (one.part.begin - begin)
                                                  : given.packed.get() + one.packed_at;
      sends.push_back({one.peer, {data, size}});
    }
  }
  KEEL_RETURN_IF_ERROR(channel_.Exchange(sends, receives, deadline_));
  *stop = std::any_of(flags.begin(), flags.end(), [](uint64_t f) { return f != 0; });
  if (*stop) return Status::Ok();

  // 3. To their places, what is not there yet.
  for (const Arrival& arrival : arrivals) {
    if (arrival.in_place) continue;
    if (arrival.part.as_range()) {
      plan_.Scatter(arrival.id.file, arrival.part.begin,
                    {arrival.data, static_cast<size_t>(arrival.part.size())});
      continue;
    }
    const std::byte* next = arrival.data;
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
  return Status::Ok();
}

}  // namespace keel::checkpoint
