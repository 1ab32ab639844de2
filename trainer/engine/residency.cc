#include "trainer/engine/residency.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/clock.h"
#include "common/status.h"
#include "trainer/engine/copy_order.h"
#include "trainer/engine/memory.h"

namespace keel::trainer {

namespace {

constexpr int64_t kAlignment = 4096;  // of each tensor in the arena
// A piece is announced, then overwritten: a save in flight holds up only the pieces it still reads,
// and an update on a GPU waits for the pieces that it writes. On a host all threads meet after
// each, which on a machine with other work costs milliseconds.
constexpr int64_t kHostPiece = int64_t{256} << 20;
constexpr int64_t kDevicePiece = int64_t{32} << 20;

constexpr std::array kNames = {"weights", "gradients", "optimizer state"};
constexpr std::array kPlaceNames = {"on the device", "on the host", "on device and host"};

std::byte* DeviceOf(const parallel::TensorMemory& memory) {
  return static_cast<std::byte*>(parallel::StorageOf(memory.tensor())->mutable_data());
}

void CopyBytes(std::byte* to, const std::byte* from, int64_t bytes) {
  at::parallel_for(0, bytes, int64_t{1} << 20, [&](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

}  // namespace

Residency::Residency(Tensors tensors, const OffloadOptions& offload, parallel::CudaModule* module)
    : cuda_(module) {
  if (cuda_ == nullptr && !tensors.params[0].is_cpu())
    cuda_ = ValueOrThrow(parallel::LoadCudaModule());
  const auto add = [&](StateClass c, std::vector<at::Tensor>& list, bool copied, bool room) {
    member(c).copied = copied;
    for (at::Tensor& tensor : list) {
      Slot slot{parallel::TensorMemory(std::move(tensor))};
      if (room) {
        slot.arena_offset = arena_size_;
        arena_size_ += (slot.memory.bytes() + kAlignment - 1) / kAlignment * kAlignment;
      }
      member(c).slots.push_back(std::move(slot));
    }
  };
  add(StateClass::kParams, tensors.params, true, offload.params || on_gpu());
  if (tensors.base.defined()) {
    std::vector<at::Tensor> base = {tensors.base};
    add(StateClass::kParams, base, true, offload.params);
    member(StateClass::kParams).slots.back().stays_same = true;
  }
  add(StateClass::kGrads, tensors.grads, false, false);
  add(StateClass::kOptimizer, tensors.optimizer, true, offload.optimizer || on_gpu());
  if (offload.params || offload.optimizer) arena_ = std::make_unique<HostArena>(arena_size_, cuda_);
}

// Copies that are under way read the tensors and write the arena.
Residency::~Residency() {
  if (!flights_.empty()) static_cast<void>(cuda_->WaitCopy(flights_.back().ticket));
}

// 1. The state machine.

double Residency::Load(StateClass c) {
  Member& m = member(c);
  double seconds = 0.0;
  if (m.place == Place::kHost) {
    seconds = Timed([&] {
      try {
        Allocate(m);
        CopyUp(m);
      } catch (...) {
        Release(m);
        throw;
      }
    });
  }
  m.place = Place::kDevice;
  return seconds;
}

double Residency::LoadToRead(StateClass c) {
  if (place(c) != Place::kHost) return 0.0;
  const double seconds = Load(c);
  if (member(c).copied) member(c).place = Place::kBoth;
  return seconds;
}

double Residency::Offload(StateClass c) {
  Member& m = member(c);
  if (m.place == Place::kHost) return 0.0;
  WaitCopies();  // of the time before
  TORCH_CHECK(has_host_room(c), "Residency: no room in the host arena for the ",
              kNames[static_cast<size_t>(c)], "; switch on their offload in OffloadOptions");
  const double seconds = Timed([&] {
    if (m.copied) CopyDownAndWait(m);
    Release(m);
    if (on_gpu()) cuda_->ReleaseCached();  // for whoever else wants it, not for this process alone
  });
  m.place = Place::kHost;
  return seconds;
}

double Residency::CopyToHost(StateClass c) {
  WaitCopies();
  Member& m = member(c);
  if (m.place == Place::kHost || !m.copied || !has_host_room(c)) return 0.0;
  if (NotOnHost(m).empty()) return 0.0;
  const double seconds = Timed([&] { CopyDownAndWait(m); });
  m.place = Place::kBoth;
  return seconds;
}

void Residency::StartCopyToHost(std::span<const StateClass> classes) {
  std::vector<Slot*> slots;
  std::vector<Member*> copied;
  for (const StateClass c : classes) {
    Member& m = member(c);
    if (m.place != Place::kDevice || !m.copied || !has_host_room(c)) continue;
    for (Slot& slot : m.slots)
      if (!slot.stays_same) slots.push_back(&slot);
    copied.push_back(&m);
  }
  CopyDown(slots);
  for (Member* m : copied) m->place = Place::kBoth;
}

int64_t Residency::TicketOf(const std::byte* Flight::*side, const void* begin, size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(begin);
  int64_t ticket = -1;
  const std::lock_guard lock(flights_mutex_);
  for (const Flight& flight : flights_) {
    const std::byte* const memory = flight.*side;
    if (memory < first + bytes && first < memory + flight.bytes) ticket = flight.ticket;
  }
  return ticket;
}

Status Residency::WaitArrived(const void* begin, size_t bytes) {
  const int64_t ticket = TicketOf(&Flight::host, begin, bytes);
  if (ticket < 0) return Status::Ok();
  KEEL_RETURN_IF_ERROR(cuda_->WaitCopy(ticket));
  Landed(ticket);
  return Status::Ok();
}

void Residency::HoldUntilLeft(const void* begin, size_t bytes) {
  const int64_t ticket = TicketOf(&Flight::device, begin, bytes);
  if (ticket >= 0) cuda_->HoldStreamFor(ticket);
}

void Residency::WaitCopies() {
  int64_t ticket = -1;
  {
    const std::lock_guard lock(flights_mutex_);
    if (!flights_.empty()) ticket = flights_.back().ticket;
  }
  if (ticket < 0) return;
  ThrowIfError(cuda_->WaitCopy(ticket).WithContext("copy to the host"));
  Landed(ticket);
}

// Tickets complete in order. Not before they have: a save that looks for a flight and finds none
// takes the values for arrived.
void Residency::Landed(int64_t ticket) {
  const std::lock_guard lock(flights_mutex_);
  std::erase_if(flights_, [&](const Flight& flight) { return flight.ticket <= ticket; });
}

void Residency::ForgetHost() {
  if (!on_gpu()) return;
  WaitCopies();
  for (const Member& m : members_)
    if (m.place == Place::kHost) return;
  for (Member& m : members_) {
    m.place = Place::kDevice;
    for (Slot& slot : m.slots) slot.kept = false;
  }
  arena_.reset();
}

void Residency::HostChanged(StateClass c) {
  WaitCopies();
  Member& m = member(c);
  if (m.place == Place::kBoth) Timed([&] { CopyUp(m); });
}

// 2. The pieces of a move.

void Residency::Allocate(Member& m) {
  try {
    for (Slot& slot : m.slots) slot.memory.Restore();
  } catch (const c10::Error& error) {
    int64_t bytes = 0;
    for (const Slot& slot : m.slots) bytes += slot.memory.bytes();
    throw Error(
        StatusCode::kUnavailable,
        fmt::format("loading {} bytes of {} to {}: {}", bytes,
                    kNames[static_cast<size_t>(&m - members_.data())],
                    m.slots[0].memory.tensor().device().str(), error.what_without_backtrace()));
  }
}

void Residency::Release(Member& m) {
  bool first = false;  // it had memory of the allocator's
  for (Slot& slot : m.slots) {
    if (!slot.memory.there() || slot.memory.bytes() == 0) continue;
    if (m.copied) Announce(DeviceOf(slot.memory), slot.memory.bytes());
    first = first || !slot.memory.stays();
    slot.memory.Release();
  }
  if (first && !on_gpu()) ReturnFreeBlocks();
}

std::vector<Residency::Slot*> Residency::NotOnHost(Member& m) {
  std::vector<Slot*> slots;
  for (Slot& slot : m.slots)
    if (slot.stays_same ? slot.arena_offset >= 0 && !slot.kept : m.place == Place::kDevice)
      slots.push_back(&slot);
  return slots;
}

void Residency::CopyDown(std::span<Slot* const> slots) {
  std::vector<int64_t> sizes;
  for (Slot* slot : slots) {
    sizes.push_back(slot->memory.bytes());
    const std::byte* const host = HostOf(*slot);
    // What came before into this memory ends before what comes now.
    const std::lock_guard lock(flights_mutex_);
    std::erase_if(flights_, [&](const Flight& flight) {
      return host <= flight.host && flight.host < host + slot->memory.bytes();
    });
  }
  for (const CopyPiece& piece : CopyOrder(sizes, on_gpu() ? kDevicePiece : kHostPiece)) {
    std::byte* const host = HostOf(*slots[piece.array]) + piece.at;
    const std::byte* const device = DeviceOf(slots[piece.array]->memory) + piece.at;
    Announce(host, piece.bytes);
    if (on_gpu()) {
      const int64_t ticket = cuda_->CopyToHost(host, device, static_cast<size_t>(piece.bytes));
      const std::lock_guard lock(flights_mutex_);
      flights_.push_back({host, device, piece.bytes, ticket});
    } else {
      CopyBytes(host, device, piece.bytes);
    }
  }
}

void Residency::CopyDownAndWait(Member& m) {
  const std::vector<Slot*> slots = NotOnHost(m);
  CopyDown(slots);
  WaitCopies();
  for (Slot* slot : slots) slot->kept = slot->stays_same;
}

void Residency::CopyUp(Member& m) {
  int64_t ticket = -1;
  try {
    std::vector<int64_t> sizes;
    for (Slot& slot : m.slots) {
      if (!m.copied) at::Tensor(slot.memory.tensor()).zero_();
      sizes.push_back(m.copied && slot.arena_offset >= 0 ? slot.memory.bytes() : 0);
    }
    for (const CopyPiece& piece : CopyOrder(sizes, on_gpu() ? kDevicePiece : kHostPiece)) {
      Slot& slot = m.slots[piece.array];
      const std::byte* const host = HostOf(slot) + piece.at;
      std::byte* const device = DeviceOf(slot.memory) + piece.at;
      Announce(device, piece.bytes);
      if (on_gpu()) {
        ticket = cuda_->CopyToDevice(device, host, static_cast<size_t>(piece.bytes));
      } else {
        CopyBytes(device, host, piece.bytes);
      }
    }
  } catch (...) {
    // Whoever hears of it releases the memory that these copies write.
    if (ticket >= 0) static_cast<void>(cuda_->WaitCopy(ticket));
    throw;
  }
  if (ticket >= 0) ThrowIfError(cuda_->WaitCopy(ticket).WithContext("load"));
}

void Residency::Announce(const void* begin, int64_t bytes) const {
  if (before_write_) before_write_(begin, static_cast<size_t>(bytes));
}

std::byte* Residency::HostOf(const Slot& slot) {
  if (arena_ == nullptr) arena_ = std::make_unique<HostArena>(arena_size_, cuda_);
  return arena_->data() + slot.arena_offset;
}

void Residency::Synchronize() {
  if (on_gpu()) cuda_->Synchronize();
}

template <typename Move>
double Residency::Timed(Move move) {
  Synchronize();  // what was under way before is not part of the move
  const Stopwatch watch;
  move();
  Synchronize();
  return watch.Elapsed();
}

// 3. What is where.

bool Residency::has_host_room(StateClass c) const {
  const Member& m = member(c);
  return !m.copied || m.slots.empty() || m.slots[0].arena_offset >= 0;
}

bool Residency::HostHas(const at::Tensor& tensor) const {
  for (const Member& m : members_) {
    for (const Slot& slot : m.slots)
      if (parallel::StorageOf(slot.memory.tensor()) == parallel::StorageOf(tensor))
        return slot.stays_same ? slot.kept : m.copied && m.place != Place::kDevice;
  }
  return false;
}

at::Tensor Residency::HostView(const at::Tensor& tensor) {
  for (Member& m : members_) {
    for (Slot& slot : m.slots) {
      if (parallel::StorageOf(slot.memory.tensor()) != parallel::StorageOf(tensor)) continue;
      if (m.place == Place::kDevice) {
        TORCH_CHECK(tensor.is_cpu(), "Residency: call CopyToHost before a view of host memory");
        return tensor;
      }
      TORCH_CHECK(m.copied, "Residency: gradients have no host memory");
      TORCH_CHECK(slot.arena_offset >= 0, "Residency: the base has no host memory");
      std::byte* data = HostOf(slot) + tensor.storage_offset() * tensor.itemsize();
      return at::from_blob(data, tensor.sizes(), tensor.strides(),
                           tensor.options().device(at::kCPU).requires_grad(false));
    }
  }
  TORCH_CHECK(false, "Residency: a tensor of no class");
}

int64_t Residency::device_bytes(StateClass c) const {
  int64_t bytes = 0;
  for (const Slot& slot : member(c).slots) bytes += slot.memory.there() ? slot.memory.bytes() : 0;
  return bytes;
}

std::string Residency::Report() const {
  constexpr double kMiB = 1 << 20;
  std::string text;
  for (size_t c = 0; c < members_.size(); ++c) {
    const Member& m = members_[c];
    int64_t bytes = 0;
    for (const Slot& slot : m.slots) bytes += slot.memory.bytes();
    const bool released = !m.copied && m.place == Place::kHost;
    text += fmt::format("{} {:.1f} MiB {}, ", kNames[c], static_cast<double>(bytes) / kMiB,
                        released ? "released" : kPlaceNames[static_cast<size_t>(m.place)]);
  }
  const int64_t arena = arena_ == nullptr ? 0 : arena_->bytes();
  return text + fmt::format("host arena {:.1f} MiB", static_cast<double>(arena) / kMiB);
}

}  // namespace keel::trainer
