// Matrix products of the dense layers.
//
// In fp32 on an x86 processor they are oneDNN's (dnnl_sgemm), which uses the widest vectors that
// the processor has, whoever made it; ATen's own are MKL's, which does not: on an AMD EPYC they run
// at 0.4 of the speed (docs/benchmarks/train-float32.md). bf16 on an x86 processor without AVX-512
// is widened to fp32 and rounded at the end, which is what ATen's own loop computes there at 1
// GFLOP/s a thread instead of 67. All else, and everything where oneDNN is not installed, is
// ATen's. Nothing here is differentiable: call it from within autograd functions or without grad
// mode.
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace keel::parallel {

// A product throws Error(kExhausted) where oneDNN has no room for its kernels, or for the product:
// ATen's would be of other bits.
//
// a [m, k] times b [k, n], plus bias [n] where there is one. Shapes and errors are at::mm's.
at::Tensor Product(const at::Tensor& a, const at::Tensor& b, const at::Tensor* bias = nullptr);
// out = a b. Transposed operands, and an `out` whose rows lie apart, cost no copy.
void ProductInto(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
// out += a b, in out's dtype.
void AddProduct(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

// Says whether bf16 on the host is best computed in fp32 and rounded at the end.
bool WidensBf16();

// Returns what multiplies fp32 matrices on this machine's processor: "oneDNN (libdnnl.so.2)" or
// "ATen", with the reason where oneDNN was expected.
std::string MatrixProductLibrary();

// Makes the kernels that products of this dtype on the host need, which the first of them would
// make. To be called before the process has threads that take memory too: oneDNN crashes where it
// gets none, which a look beforehand can only tell while nobody else asks for any.
void MakeHostKernels(at::ScalarType dtype);

// Returns what decides how sums on this host are rounded, in a model of this dtype: that library,
// and the instruction sets. Where it differs, so may last bits.
std::string HostArithmetic(at::ScalarType dtype);

}  // namespace keel::parallel
