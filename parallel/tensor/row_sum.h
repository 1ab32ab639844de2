// The gradient of a look-up in a table.
#pragma once

#include <ATen/ATen.h>

namespace keel::parallel {

// into[rows[i]] += values[i] for all i, to the same bits every time: the values of a row are summed
// by themselves first, in an order that depends on the rows alone (gpu/row_sum_args.h; without
// Keel's kernels a tree, whose shape depends on how many there are). into [R, n], rows [T]
// int64 in [0, R), values [T, n], both of one dtype. Nothing of it waits on the host.
void AddToRows(at::Tensor& into, const at::Tensor& rows, const at::Tensor& values);

// The same wherever the table is: on a host one after the other.
void AddLookupGradient(at::Tensor& into, const at::Tensor& rows, const at::Tensor& values);

}  // namespace keel::parallel
