// DeviceKernelTable: of the kernels that nvcc has compiled.

#include "gpu/kernel_table.h"

namespace keel::gpu {

struct DeviceLauncher;

// Each is made in the .cu file of its name.
template <class Launcher>
void AddRmsNormTo(KernelTable& table);
template <class Launcher>
void AddGatedUnitTo(KernelTable& table);
template <class Launcher>
void AddRotationTo(KernelTable& table);
template <class Launcher>
void AddPagedAttentionTo(KernelTable& table);
template <class Launcher>
void AddAdamWTo(KernelTable& table);
template <class Launcher>
void AddVocabSoftmaxTo(KernelTable& table);
template <class Launcher>
void AddRowSumTo(KernelTable& table);
template <class Launcher>
void AddTensorDigestTo(KernelTable& table);
template <class Launcher>
void AddTokenChoiceTo(KernelTable& table);

const KernelTable& DeviceKernelTable() {
  static const KernelTable table = [] {
    KernelTable made;
    AddRmsNormTo<DeviceLauncher>(made);
    AddGatedUnitTo<DeviceLauncher>(made);
    AddRotationTo<DeviceLauncher>(made);
    AddPagedAttentionTo<DeviceLauncher>(made);
    AddAdamWTo<DeviceLauncher>(made);
    AddVocabSoftmaxTo<DeviceLauncher>(made);
    AddRowSumTo<DeviceLauncher>(made);
    AddTensorDigestTo<DeviceLauncher>(made);
    AddTokenChoiceTo<DeviceLauncher>(made);
    return made;
  }();
  return table;
}

}  // namespace keel::gpu
