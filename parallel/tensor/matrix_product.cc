#include "parallel/tensor/matrix_product.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "parallel/tensor/host_kernels.h"

namespace keel::parallel {

namespace {

// dnnl_sgemm of oneapi/dnnl/dnnl.h: row-major C = alpha op(A) op(B) + beta C; 0 is success.
using Sgemm = int (*)(char a_op, char b_op, int64_t m, int64_t n, int64_t k, float alpha,
                      const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                      float beta, float* c, int64_t c_stride);

struct Library {
  Sgemm sgemm = nullptr;
  std::string name = "ATen";
};

#ifdef KEEL_ONEDNN
// oneDNN makes its kernels when they are first used, and crashes where it has no room for them. So
// they are made here, with room that is there. It asks for some 18 MiB; what it asks for later and
// does not get is an error of the product.
void MakeKernels(Sgemm sgemm) {
  // A vector or a matrix on either side, short or long.
  constexpr int64_t kMost = 64;
  const std::vector<float> a(kMost * kMost), b(kMost * kMost);
  std::vector<float> c(kMost * kMost);
  // The heap grows by 64 MiB at a time (trainer/engine/memory.cc): now, if it must, and not between
  // the look and the kernels.
  void* volatile heap = std::malloc(size_t{4} << 20);  // volatile: the compiler leaves out neither
  std::free(heap);
  constexpr size_t kRoom = size_t{32} << 20;
  void* const room =
      mmap(nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) {
    throw Error(Status::FromErrno(errno, "reserve 32 MiB of memory for", KEEL_ONEDNN)
                    .WithContext("the kernels of matrix products: raise the limit (ulimit -v)"));
  }
  (void)munmap(room, kRoom);
  at::get_num_threads();  // gives this thread the limit that was set for the process
  for (const int64_t m : {1, 4})
    for (const int64_t n : {1, 4})
      for (const int64_t k : {int64_t{1}, kMost})
        for (const char a_op : {'N', 'T'})
          for (const char b_op : {'N', 'T'})
            for (const float beta : {0.0F, 1.0F})
              (void)sgemm(a_op, b_op, m, n, k, 1.0F, a.data(), kMost, b.data(), kMost, beta,
                          c.data(), kMost);
}

// Of dlerror: the file is there, and the process has no room for it.
bool LacksMemory(std::string_view reason) {
  for (const char* sign : {"Cannot allocate memory", "failed to map", "cannot allocate",
                           "cannot create shared object descriptor", "cannot map zero-fill"})
    if (reason.find(sign) != std::string_view::npos) return true;
  return false;
}
#endif

Library Load() {
  Library library;
#ifdef KEEL_ONEDNN
  // libtorch_cpu holds another oneDNN, and some of its symbols: neither may see the other's.
  void* handle = dlopen(KEEL_ONEDNN, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (handle != nullptr) library.sgemm = reinterpret_cast<Sgemm>(dlsym(handle, "dnnl_sgemm"));
  if (library.sgemm != nullptr) {
    MakeKernels(library.sgemm);
    library.name = "oneDNN (" KEEL_ONEDNN ")";
  } else {
    const char* const said = dlerror();
    const std::string reason = said != nullptr ? said : KEEL_ONEDNN " has no sgemm";
    // Another library rounds in another way: a run would have other bits than the one before.
    if (LacksMemory(reason))
      throw Error(Status(StatusCode::kExhausted, StatusCause::kMemory,
                         fmt::format("no memory for the kernels of matrix products: raise the "
                                     "limit (ulimit -v): {}",
                                     reason)));
    library.name = fmt::format("ATen ({})", reason);
  }
#endif
  return library;
}

const Library& Loaded() {
  static const Library library = Load();
  return library;
}

// How BLAS is told of a matrix whose rows, or whose columns, are contiguous.
struct Operand {
  char op;         // 'N', or 'T' when the columns are contiguous
  int64_t stride;  // from row to row; from column to column for 'T'
};

std::optional<Operand> AsOperand(const at::Tensor& matrix) {
  const int64_t rows = matrix.size(0);
  const int64_t columns = matrix.size(1);
  if (columns == 1 || matrix.stride(1) == 1) {
    if (rows == 1) return Operand{'N', columns};
    if (matrix.stride(0) >= columns) return Operand{'N', matrix.stride(0)};
  }
  if (rows == 1 || matrix.stride(0) == 1) {
    if (columns == 1) return Operand{'T', rows};
    if (matrix.stride(1) >= rows) return Operand{'T', matrix.stride(1)};
  }
  return std::nullopt;
}

bool IsHostFloat(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && ByHostKernels(tensor) && tensor.dim() == 2 &&
         tensor.numel() > 0;
}

// out = a b + beta out, where oneDNN can. The shapes fit.
bool Multiplied(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, float beta) {
  const std::optional<Operand> left = AsOperand(a);
  const std::optional<Operand> right = AsOperand(b);
  const std::optional<Operand> result = AsOperand(out);
  if (!left || !right || !result || result->op != 'N') return false;
  at::get_num_threads();  // gives this thread the limit that was set for the process
  const int error =
      Loaded().sgemm(left->op, right->op, a.size(0), b.size(1), a.size(1), 1.0F,
                     a.const_data_ptr<float>(), left->stride, b.const_data_ptr<float>(),
                     right->stride, beta, out.mutable_data_ptr<float>(), result->stride);
  constexpr int kOutOfMemory = 1;  // dnnl_out_of_memory
  if (error == kOutOfMemory) {
    throw Error(Status(StatusCode::kExhausted, StatusCause::kMemory,
                       fmt::format("{}: no memory for the product of [{}, {}] and [{}, {}]",
                                   Loaded().name, a.size(0), a.size(1), b.size(0), b.size(1))));
  }
  return error == 0;
}

bool IsForOneDnn(const at::Tensor& a, const at::Tensor& b) {
  return IsHostFloat(a) && IsHostFloat(b) && a.size(1) == b.size(0) && Loaded().sgemm != nullptr;
}

bool IsForWidening(const at::Tensor& a, const at::Tensor& b) {
  const auto is_host_bf16 = [](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kBFloat16 && ByHostKernels(tensor);
  };
  return WidensBf16() && is_host_bf16(a) && is_host_bf16(b);
}

bool UsesOneDnn(at::ScalarType dtype) { return dtype == at::kFloat || WidensBf16(); }

at::Tensor Wide(const at::Tensor& tensor) { return tensor.to(at::kFloat); }

void CheckResult(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && out.dim() == 2 && a.size(1) == b.size(0) &&
                  out.size(0) == a.size(0) && out.size(1) == b.size(1),
              "matrix product: ", a.sizes(), " times ", b.sizes(), " does not give ", out.sizes());
}

}  // namespace

// ATen asks for the same of oneDNN's bf16 products.
bool WidensBf16() {
#if defined(__x86_64__)
  static const bool widens =
      !(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"));
  return widens;
#else
  return false;
#endif
}

at::Tensor Product(const at::Tensor& a, const at::Tensor& b, const at::Tensor* bias) {
  if (IsForWidening(a, b)) {
    const at::Tensor wide_bias = bias != nullptr ? Wide(*bias) : at::Tensor();
    return Product(Wide(a), Wide(b), bias != nullptr ? &wide_bias : nullptr).to(at::kBFloat16);
  }
  if (IsForOneDnn(a, b)) {
    at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
    if (bias != nullptr) out.copy_(*bias);  // to every row
    if (Multiplied(out, a, b, bias != nullptr ? 1.0F : 0.0F)) return out;
  }
  return bias != nullptr ? at::addmm(*bias, a, b) : at::mm(a, b);
}

void ProductInto(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  CheckResult(out, a, b);
  if (IsForWidening(a, b)) {
    out.copy_(Product(Wide(a), Wide(b)));
    return;
  }
  if (IsForOneDnn(a, b) && IsHostFloat(out) && Multiplied(out, a, b, 0)) return;
  at::mm_out(out, a, b);
}

void AddProduct(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  CheckResult(out, a, b);
  if (IsForOneDnn(a, b) && IsHostFloat(out) && Multiplied(out, a, b, 1)) return;
  if (out.scalar_type() == at::kFloat && a.scalar_type() == at::kBFloat16 && !ByHostKernels(a)) {
    // Rounded nowhere between the products and `out`, whose sum grows by many micro-batches.
    if (a.is_cuda()) {
      at::addmm_out(out, out, a, b, at::kFloat);
    } else {
      AddProduct(out, Wide(a), Wide(b));
    }
  } else if (out.scalar_type() != a.scalar_type()) {
    out.add_(Product(a, b));
  } else if (IsForWidening(a, b)) {
    at::Tensor wide = Wide(out);
    AddProduct(wide, Wide(a), Wide(b));
    out.copy_(wide);
  } else {
    at::addmm_out(out, out, a, b);
  }
}

std::string MatrixProductLibrary() { return Loaded().name; }

void MakeHostKernels(at::ScalarType dtype) {
  if (UsesOneDnn(dtype)) (void)Loaded();
}

std::string HostArithmetic(at::ScalarType dtype) {
  std::string text = UsesOneDnn(dtype) ? MatrixProductLibrary() : "ATen";
  text += ", " + at::get_cpu_capability();
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) text += ", AVX512_BF16";
  if (__builtin_cpu_supports("amx-bf16")) text += ", AMX_BF16";
#endif
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_CBWR"})
    if (const char* const value = std::getenv(name)) text += fmt::format(", {}={}", name, value);
  return text;
}

}  // namespace keel::parallel
