// What keel doctor finds out through libtorch.
#pragma once

#include "tools/doctor/doctor_report.h"

namespace keel::tools {

void ExamineTorch(DoctorReport& report);

}  // namespace keel::tools
