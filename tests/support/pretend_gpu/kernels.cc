#include "tests/support/pretend_gpu/kernels.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/pretend_gpu/arena.h"
#include "tests/support/pretend_gpu/devices.h"
#include "tests/support/pretend_gpu/recording.h"

namespace keel::testing::pretend {

namespace {

template <typename T>
void Move(T*& pointer) {
  if (pointer == nullptr || IsPinned(pointer)) return;
  // A GPU's kernel could not read it either.
  if (!OnDevice(pointer))
    throw std::runtime_error("pretend GPU: a kernel was given an address of the host");
  // It runs where the thread that starts it is, which is device 0 until the thread chooses another.
  if (const int device = DeviceOf(pointer); device != ThreadsDevice()) {
    throw std::runtime_error("pretend GPU: a kernel of device " + std::to_string(ThreadsDevice()) +
                             " was given memory of device " + std::to_string(device));
  }
  pointer = static_cast<T*>(Behind(pointer));
}

template <typename... T>
void MoveAll(T*&... pointers) {
  (Move(pointers), ...);
}

void Translate(gpu::RmsNorm& a) { MoveAll(a.x, a.add, a.sum, a.weight, a.out, a.rstd); }
void Translate(gpu::RmsNormBackward& a) {
  MoveAll(a.dy, a.x, a.dsum, a.weight, a.rstd, a.dx, a.weight_gradient, a.scratch);
}
void Translate(gpu::GatedUnit& a) { MoveAll(a.gate_up, a.out); }
void Translate(gpu::GatedUnitBackward& a) { MoveAll(a.dout, a.gate_up, a.dgate_up); }
void Translate(gpu::Rotate& a) {
  MoveAll(a.in, a.out, a.positions, a.cosine, a.sine, a.kv.keys, a.kv.values, a.kv.slots);
}
void Translate(gpu::PagedAttention& a) {
  MoveAll(a.qkv, a.keys, a.values, a.rows, a.sequences, a.positions, a.blocks, a.sinks, a.out,
          a.scratch);
}
void Translate(gpu::AdamW& a) { MoveAll(a.gradient, a.master, a.exp_avg, a.exp_avg_sq, a.weight); }
void Translate(gpu::SumOfSquares& a) { MoveAll(a.x, a.partial); }
void Translate(gpu::TokenStatistics& a) { MoveAll(a.logits, a.targets, a.statistics); }
void Translate(gpu::TokenGradient& a) {
  MoveAll(a.logits, a.targets, a.maximum, a.log_sum, a.log_prob_gradient, a.entropy,
          a.entropy_gradient);
}
void Translate(gpu::AddToRows& a) { MoveAll(a.sorted, a.order, a.values, a.into, a.scratch); }
void Translate(gpu::TensorDigest& a) { MoveAll(a.data, a.parts); }
void Translate(gpu::TokenChoice& a) { MoveAll(a.logits, a.choices, a.tokens, a.parts); }

// The kernel of that member of the table.
template <auto Member, typename Args>
void Run(const Args& args, gpu::Stream stream) {
  Args behind = args;
  Translate(behind);
  Perform([behind, stream] { (gpu::HostKernelTable().*Member)(behind, stream); });
}

template <auto Member, typename Args>
void Fill(gpu::KernelTable& table, gpu::Kernel<Args> gpu::KernelTable::*) {
  table.*Member = Run<Member, Args>;
}

template <auto... Members>
gpu::KernelTable TableOf() {
  gpu::KernelTable table;
  (Fill<Members>(table, Members), ...);
  return table;
}

}  // namespace

const gpu::KernelTable& Kernels() {
  using T = gpu::KernelTable;
  static const T table =
      TableOf<&T::rms_norm, &T::rms_norm_backward, &T::gated_unit, &T::gated_unit_backward,
              &T::rotate, &T::paged_attention, &T::adamw, &T::sum_of_squares, &T::token_statistics,
              &T::token_gradient, &T::add_to_rows, &T::tensor_digest, &T::token_choice>();
  static_assert(sizeof(T) == 13 * sizeof(void*), "a kernel is missing here");
  return table;
}

}  // namespace keel::testing::pretend
