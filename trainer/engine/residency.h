// Residency: on which side, device or host, each class of training state is, and its moves.
//
// Holds the classes' flat tensors and owns the host arena. A class on the host has storages of 0
// bytes: views of them (Parameter::value) stay, and are valid again once the class is loaded, at
// the same addresses (parallel::TensorMemory). On a CPU the device is other memory of the host, so
// the same code runs without a GPU.
// Gradients are never copied: they are released, and come back as zeros, as in verl and Megatron.
// Used from the training thread; nothing here is collective.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "parallel/gradients/weight_store.h"
#include "parallel/groups/cuda_module.h"
#include "parallel/groups/tensor_memory.h"
#include "trainer/engine/host_arena.h"

namespace keel::trainer {

enum class StateClass { kParams, kGrads, kOptimizer };  // kOptimizer: masters and moments

enum class Place {
  kDevice,  // the arena holds nothing of value
  kHost,    // the device's storages have 0 bytes
  kBoth,    // the same bytes on both sides; the device's may be read, not written
};

// Which classes are offloaded while nothing uses them.
struct OffloadOptions {
  bool params = false;
  bool grads = false;
  bool optimizer = false;
};

// Seconds of the moves in one step, device-synchronised; exactly 0.0 where nothing moved.
struct MoveSeconds {
  double param_load = 0;
  double param_offload = 0;
  double grad_load = 0;
  double grad_offload = 0;
  double optimizer_load = 0;
  double optimizer_offload = 0;

  MoveSeconds& operator+=(const MoveSeconds& more) {
    param_load += more.param_load;
    param_offload += more.param_offload;
    grad_load += more.grad_load;
    grad_offload += more.grad_offload;
    optimizer_load += more.optimizer_load;
    optimizer_offload += more.optimizer_offload;
    return *this;
  }
};

class Residency {
 public:
  struct Tensors {
    std::vector<at::Tensor> params;  // each the whole of its storage; all on one device
    std::vector<at::Tensor> grads = {};
    std::vector<at::Tensor> optimizer = {};
    // Goes where params go, and has room in the arena where they are offloaded. It is never changed
    // but by HostChanged: it is copied to the host once, and not for saves. Undefined: there is
    // none.
    at::Tensor base = {};
  };
  // All classes start on the device. The arena has room for the classes of `offload`, and is made
  // here; on a GPU for weights and optimizer in any case, since saves go through it, but then only
  // at the first CopyToHost. Throws Error(kUnavailable) when there is no memory for it.
  // `module`: that copies, in place of the device's own; for tests.
  Residency(Tensors tensors, const OffloadOptions& offload, parallel::CudaModule* module = nullptr);
  // Waits for copies under way.
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // Each move returns its seconds, and exactly 0.0 when there was nothing to move. A failed one
  // throws and leaves the class where it was; it can be tried again.
  // To be written: on the device alone.
  double Load(StateClass c);
  // To be read, as by a forward or a weight sync: what was on the host is then on both sides.
  double LoadToRead(StateClass c);
  // On the host alone. From kBoth nothing is copied.
  double Offload(StateClass c);
  // Adds a host copy: from kDevice to kBoth. Nothing for gradients.
  double CopyToHost(StateClass c);
  // The same of several classes, in the order of an update, without waiting for a GPU's copies,
  // which go on beside its compute: the host's bytes are there after WaitArrived, and the device's
  // may be overwritten after HoldUntilLeft. Every other move of a class waits for them first.
  void StartCopyToHost(std::span<const StateClass> classes);
  // Returns when what is on its way to the host memory in [begin, begin + bytes) is there. Any
  // thread. An error is the device's.
  Status WaitArrived(const void* begin, size_t bytes);
  // What the device computes from here on waits until what is on its way from its memory in
  // [begin, begin + bytes) has left; the host does not wait. A copy that fails is found by whoever
  // waits for it to arrive.
  void HoldUntilLeft(const void* begin, size_t bytes);
  // Back to where the class was found before a Load: offloads it if it was on the host.
  double Restore(StateClass c, Place before) { return before == Place::kHost ? Offload(c) : 0.0; }
  // Of a GPU whose classes are all there: gives the arena back, which the next copy makes again. No
  // view of it may be in use.
  void ForgetHost();
  // The host memory of the class was written from outside: a copy on the device is brought up to
  // date.
  void HostChanged(StateClass c);

  Place place(StateClass c) const { return member(c).place; }
  // Device and host are memories of their own, so that a save needs a copy.
  bool apart() const { return on_gpu(); }
  // What serves the device; null on a CPU.
  parallel::CudaModule* cuda() const { return cuda_; }
  // The class has a snapshot in the arena, which changes only after a call of the hook.
  bool on_host(StateClass c) const { return place(c) != Place::kDevice; }
  // The class can be on the host.
  bool has_host_room(StateClass c) const;
  // Whether the arena has the bytes of `tensor`, any view of a class's tensors.
  bool HostHas(const at::Tensor& tensor) const;
  // Host memory that stands for `tensor`, any view of a class's tensors: the arena when the class
  // has a copy there, else, on a CPU, the tensor itself.
  at::Tensor HostView(const at::Tensor& tensor);

  // Called before memory that a table may view is overwritten or released: see
  // parallel::BeforeWrite.
  void set_before_write(parallel::BeforeWrite hook) { before_write_ = std::move(hook); }

  int64_t device_bytes(StateClass c) const;  // allocated by the class's storages
  int64_t arena_bytes() const { return arena_size_; }
  std::string Report() const;  // a line for the log

 private:
  struct Slot {
    parallel::TensorMemory memory;
    int64_t arena_offset = -1;  // -1: no room in the arena
    bool stays_same = false;    // the base
    bool kept = false;          // of what stays the same: the arena has it
  };
  struct Member {
    std::vector<Slot> slots;
    Place place = Place::kDevice;
    bool copied = true;  // false: released, and zeros when loaded
  };
  // A piece whose copy to the host was started.
  struct Flight {
    const std::byte* host = nullptr;
    const std::byte* device = nullptr;
    int64_t bytes = 0;
    int64_t ticket = 0;
  };
  Member& member(StateClass c) { return members_[static_cast<size_t>(c)]; }
  const Member& member(StateClass c) const { return members_[static_cast<size_t>(c)]; }
  bool on_gpu() const { return cuda_ != nullptr; }
  std::byte* HostOf(const Slot& slot);
  void Announce(const void* begin, int64_t bytes) const;
  void Allocate(Member& m);
  void Release(Member& m);
  // On a GPU the copies are under way then; else they are done.
  void CopyDown(std::span<Slot* const> slots);
  void CopyDownAndWait(Member& m);
  // What of a class the arena has not as the device has it.
  static std::vector<Slot*> NotOnHost(Member& m);
  void WaitCopies();
  void Landed(int64_t ticket);
  void CopyUp(Member& m);
  // The last copy under way that touches the memory on that side; -1: none.
  int64_t TicketOf(const std::byte* Flight::*side, const void* begin, size_t bytes);
  void Synchronize();
  template <typename Move>
  double Timed(Move move);
  std::array<Member, 3> members_;
  std::mutex flights_mutex_;
  std::vector<Flight> flights_;           // in the order of their tickets
  parallel::CudaModule* cuda_ = nullptr;  // null on a CPU
  std::unique_ptr<HostArena> arena_;
  int64_t arena_size_ = 0;
  parallel::BeforeWrite before_write_;
};

}  // namespace keel::trainer
