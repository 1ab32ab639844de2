// What keel doctor finds out about GPUs.
#pragma once

#include "tools/doctor/doctor_report.h"

namespace keel::tools {

// A line for each GPU, or why there is none. `measure`: also what each of them does in a second;
// with several ranks, what NCCL moves between them, each on the GPU of its number.
void ExamineGpus(DoctorReport& report, bool measure);

}  // namespace keel::tools
