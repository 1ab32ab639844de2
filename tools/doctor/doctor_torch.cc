#include "tools/doctor/doctor_torch.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "parallel/tensor/matrix_product.h"
#include "trainer/engine/flops.h"

namespace keel::tools {

void ExamineTorch(DoctorReport& report) {
  report.Fact("torch", fmt::format("2.11, {} threads by default", at::get_num_threads()));
  at::set_num_threads(1);
  report.Fact("fp32 product", fmt::format("{:.0f} GFLOP/s a thread, by {}",
                                          trainer::MeasureGemmRate(at::kFloat, at::kCPU) / 1e9,
                                          parallel::MatrixProductLibrary()));
  report.Fact("bf16 product",
              fmt::format("{:.0f} GFLOP/s a thread{}",
                          trainer::MeasureGemmRate(at::kBFloat16, at::kCPU) / 1e9,
                          parallel::WidensBf16() ? ", in fp32: the processor has no AVX-512" : ""));
}

}  // namespace keel::tools
