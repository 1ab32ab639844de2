// The gradient of a look-up in a table, on a device.
#pragma once

#include <ATen/ATen.h>

namespace keel::parallel {

// into[rows[i]] += values[i] for all i, to the same bits every time: the values of a row are summed
// by themselves first, as a tree whose shape depends on how many there are. into [R, n], rows [T]
// int64 in [0, R), values [T, n], both of one dtype. Nothing of it waits on the host.
void AddToRows(at::Tensor& into, const at::Tensor& rows, const at::Tensor& values);

}  // namespace keel::parallel
