// PyTorch on a pretend GPU: tensors of device `cuda` whose memory the host cannot touch, and every
// operation on them by PyTorch's kernel for hosts, on what stands behind.
//
// libtorch_cuda is not loaded, so that nobody else has registered anything for CUDA. Operations are
// done when they are called, which is as early as a GPU may be; copies of CopyEngine are late.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <execinfo.h>
#include <torch/library.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "tests/support/pretend_gpu/arena.h"
#include "tests/support/pretend_gpu/devices.h"
#include "tests/support/pretend_gpu/recording.h"
#include "tests/support/pretend_gpu/tensors.h"

namespace keel::testing::pretend {

namespace {

thread_local c10::DeviceIndex current_device = 0;
std::atomic<int64_t> waits = 0;

// As of CUDA: a thread begins with device 0, whatever others have chosen.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, current_device}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.is_cuda() && device.index() < Devices(), "pretend GPU: no device ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(Devices());
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::kCUDA, current_device);
    if (bytes == 0) return {nullptr, device};
    void* const memory = Allocate(bytes, current_device);
    TORCH_CHECK_WITH(OutOfMemoryError, memory != nullptr, "pretend GPU: out of memory");
    if (const std::shared_ptr<RecordedMemory> recorded = MemoryOfRecording()) {
      using Holder = std::shared_ptr<RecordedMemory>;
      recorded->Add(memory);
      return {
          memory, new Holder(recorded),
          [](void* holder) { const std::unique_ptr<Holder> last(static_cast<Holder*>(holder)); },
          device};
    }
    return {memory, memory, &Free, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(Behind(to), Behind(from), bytes);
  }
};

Allocator& TheAllocator() {
  static Allocator allocator;
  return allocator;
}

at::Tensor Fresh(at::Tensor t) {
  HasNoValueYet(t);
  return t;
}

at::Tensor EmptyStrided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                        std::optional<at::ScalarType> type, std::optional<at::Layout>,
                        std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(at::Device(at::kCUDA)));
  return Fresh(at::detail::empty_strided_generic(sizes, strides, &TheAllocator(),
                                                 c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                                 type.value_or(at::kFloat)));
}

at::Tensor EmptyMemoryFormat(c10::IntArrayRef sizes, std::optional<at::ScalarType> type,
                             std::optional<at::Layout>, std::optional<at::Device> device,
                             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(at::Device(at::kCUDA)));
  return Fresh(at::detail::empty_generic(sizes, &TheAllocator(),
                                         c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                         type.value_or(at::kFloat), format));
}

const at::Tensor& Resize(const at::Tensor& self, c10::IntArrayRef sizes,
                         std::optional<at::MemoryFormat>) {
  at::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  const auto needed = static_cast<size_t>((impl->storage_offset() + self.numel()) *
                                          static_cast<int64_t>(self.element_size()));
  c10::StorageImpl* const storage = impl->storage().unsafeGetStorageImpl();
  if (needed <= storage->nbytes()) return self;
  const c10::DeviceGuard guard(self.device());
  c10::DataPtr larger = TheAllocator().allocate(needed);
  if (storage->nbytes() > 0)
    std::memcpy(Behind(larger.get()), Behind(storage->data()), storage->nbytes());
  storage->set_data_ptr(std::move(larger));
  storage->set_nbytes(needed);
  return self;
}

at::Tensor& SetStorage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef sizes,
                       c10::IntArrayRef strides) {
  at::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (strides.empty() && !sizes.empty()) {
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides);
  }
  return self;
}

at::Tensor& SetTensor(at::Tensor& self, const at::Tensor& source) {
  return SetStorage(self, source.storage(), source.storage_offset(), source.sizes(),
                    source.strides());
}

at::Tensor& Copy(at::Tensor& self, const at::Tensor& from, bool non_blocking) {
  if (self.is_cpu() || (from.is_cpu() && !non_blocking)) CountWait();
  if (self.is_cpu() || from.is_cpu()) NotWhileRecording("a copy between host and device");
  const auto seen = [](const at::Tensor& t) { return t.is_cuda() ? HostViewOf(t) : t; };
  Perform([seen, self, from] { seen(self).copy_(seen(from)); });
  return self;
}

}  // namespace

at::Tensor HostViewOf(const at::Tensor& t) {
  if (t.numel() == 0)
    return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kCPU));
  return at::from_blob(Behind(t.data_ptr()), t.sizes(), t.strides(), t.options().device(at::kCPU));
}

at::Tensor ToDevice(const at::Tensor& host, at::Device device) {
  at::Tensor there = EmptyStrided(host.sizes(), host.strides(), host.scalar_type(), {}, device, {});
  if (host.numel() > 0) HostViewOf(there).copy_(host);
  return there;
}

namespace {

// Which of the arguments a result is, if it is one.
std::optional<size_t> WrittenArgument(const c10::FunctionSchema& schema, size_t result) {
  const c10::AliasInfo* const of = schema.returns()[result].alias_info();
  if (of == nullptr) return std::nullopt;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* const other = schema.arguments()[i].alias_info();
    if (other != nullptr && other->isWrite() && other->beforeSets() == of->beforeSets()) return i;
  }
  TORCH_CHECK(false, "pretend GPU: ", schema.name(), " makes a view, and is not known here");
}

class HostCall {
 public:
  HostCall(const c10::OperatorHandle& op, torch::jit::Stack* stack) : op_(op), stack_(*stack) {}

  void Run() {
    const size_t count = op_.schema().arguments().size();
    const size_t first = stack_.size() - count;
    const torch::jit::Stack given(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    for (size_t i = 0; i < count; ++i) stack_[first + i] = ForHost(given[i]);
    // As a GPU's kernels have it: but for a single number all is of the device.
    TORCH_CHECK(!device_ || !of_host_, "pretend GPU: ", op_.schema().name(),
                " was given a tensor of the host beside those of ", *device_);
    const torch::jit::Stack used(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    for (size_t i = 0; i < count; ++i) {
      const c10::AliasInfo* const alias = op_.schema().arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite()) BringBack(given[i], used[i]);
    }
    const size_t results = op_.schema().returns().size();
    for (size_t i = 0; i < results; ++i) {
      c10::IValue& result = stack_[stack_.size() - results + i];
      if (const auto written = WrittenArgument(op_.schema(), i)) {
        result = given[*written];
      } else {
        result = ForDevice(result);
      }
    }
  }

 private:
  at::Tensor HostOf(const at::Tensor& t) {
    if (!t.defined()) return t;
    if (!t.is_cuda()) {
      of_host_ |= t.dim() > 0;
      return t;
    }
    device_ = t.device();
    return HostViewOf(t);
  }

  c10::IValue ForHost(const c10::IValue& value) {
    if (value.isTensor()) return HostOf(value.toTensor());
    if (value.isDevice()) {
      if (value.toDevice().is_cuda()) device_ = value.toDevice();
      return c10::Device(c10::kCPU);
    }
    if (!value.isList()) return value;
    const auto list = value.toList();
    const bool of_tensors =
        list.elementType()->isSubtypeOf(*c10::OptionalType::create(c10::TensorType::get()));
    if (!of_tensors) return value;
    c10::impl::GenericList hosts(list.elementType());
    for (const c10::IValue& one : value.toListRef())
      hosts.push_back(one.isTensor() ? c10::IValue(HostOf(one.toTensor())) : one);
    return hosts;
  }

  c10::IValue ForDevice(const c10::IValue& value) const {
    if (value.isTensor() && value.toTensor().defined())
      return ToDevice(value.toTensor(), device_.value_or(at::Device(at::kCUDA, current_device)));
    if (!value.isTensorList()) return value;
    std::vector<at::Tensor> there;
    for (const at::Tensor& t : value.toTensorVector()) there.push_back(ForDevice(t).toTensor());
    return there;
  }

  // What was written to memory of the host's own, since the tensor had none that would do.
  static void BringBack(const c10::IValue& given, const c10::IValue& used) {
    if (!given.isTensor()) return;
    const at::Tensor& there = given.toTensor();
    const at::Tensor& here = used.toTensor();
    if (!there.defined() || !there.is_cuda()) return;
    if (there.sizes() != here.sizes()) Resize(there, here.sizes(), {});
    if (there.numel() == 0 || here.data_ptr() == Behind(there.data_ptr())) return;
    HostViewOf(there).copy_(here);
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  std::optional<at::Device> device_;
  bool of_host_ = false;  // an argument with dimensions is
};

void OnHost(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  // Those whose result, or its size, the host has to know.
  static const std::set<std::string> kWaiting = {"aten::_local_scalar_dense", "aten::equal",
                                                 "aten::nonzero", "aten::masked_select"};
  if (kWaiting.contains(op.operator_name().name)) {
    CountWait();
    NotWhileRecording("a wait");
  }
  if (!Recording()) return HostCall(op, stack).Run();

  const auto last = [&](const torch::jit::Stack& of, size_t count) {
    return torch::jit::Stack(of.end() - static_cast<std::ptrdiff_t>(count), of.end());
  };
  const torch::jit::Stack given = last(*stack, op.schema().arguments().size());
  HostCall(op, stack).Run();
  const torch::jit::Stack results = last(*stack, op.schema().returns().size());
  std::vector<std::pair<size_t, at::Tensor>> made;
  for (size_t i = 0; i < results.size(); ++i) {
    if (WrittenArgument(op.schema(), i) || results[i].isNone()) continue;
    TORCH_CHECK(results[i].isTensor(), "pretend GPU: ", op.schema().name(),
                " makes no tensor, and is not known within a recording");
    if (!results[i].toTensor().defined()) continue;
    made.emplace_back(i, results[i].toTensor());
  }
  Remember([op, given, made] {
    torch::jit::Stack again = given;
    HostCall(op, &again).Run();
    for (const auto& [i, tensor] : made) HostViewOf(tensor).copy_(HostViewOf(again[i].toTensor()));
  });
}

// bf16 products added to fp32, as cuBLAS does it.
at::Tensor& AddMmOfType(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                        at::ScalarType type, const at::Scalar& beta, const at::Scalar& alpha,
                        at::Tensor& out) {
  Perform([self, a, b, type, beta, alpha, out] {
    HostViewOf(out).copy_(at::addmm(HostViewOf(self).to(type), HostViewOf(a).to(type),
                                    HostViewOf(b).to(type), beta, alpha));
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&OnHost>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", EmptyMemoryFormat);
  m.impl("empty_strided", EmptyStrided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("resize_", Resize);
  m.impl("set_.source_Storage_storage_offset", SetStorage);
  m.impl("set_.source_Tensor", SetTensor);
  m.impl("copy_", Copy);
  m.impl("addmm.dtype_out", AddMmOfType);
}

void SetThreadsDevice(int index) { current_device = static_cast<c10::DeviceIndex>(index); }
int ThreadsDevice() { return current_device; }
int64_t Waits() { return waits; }

// KEEL_PRETEND_WAITS=1 shows on standard error where each comes from.
void CountWait() {
  ++waits;
  if (std::getenv("KEEL_PRETEND_WAITS") == nullptr) return;
  void* frames[24];
  backtrace_symbols_fd(frames, backtrace(frames, 24), STDERR_FILENO);
  (void)!write(STDERR_FILENO, "waits\n", 6);
}

}  // namespace keel::testing::pretend

// By what PyTorch's core asks of CUDA; its registry wants the name and the namespace.
namespace at {

struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void*) const override { return false; }
  int getNumGPUs() const override { return keel::testing::pretend::Devices(); }
  DeviceIndex current_device() const override {
    return static_cast<DeviceIndex>(keel::testing::pretend::ThreadsDevice());
  }
  DeviceIndex getCurrentDevice() const override { return current_device(); }
  void deviceSynchronize(DeviceIndex) const override {}
};
REGISTER_CUDA_HOOKS(CUDAHooks);

}  // namespace at
