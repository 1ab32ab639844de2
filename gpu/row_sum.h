// The bodies of AddToRows, and how they are started.
#pragma once

#include "gpu/body.h"
#include "gpu/entry.h"
#include "gpu/kernel_table.h"

namespace keel::gpu {

// The first place of a row that there is.
KEEL_BODY int64_t FirstPlace(const int64_t* sorted, int64_t count, int64_t row) {
  int64_t begin = 0;
  int64_t end = count - 1;
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    if (sorted[middle] < row) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// The sum of a piece that begins at `place`, of a row with more than one. 64 neighbouring places
// hold the beginnings of at most one first piece of such a row, and of one later piece of a row.
KEEL_BODY float* PieceSum(const AddToRows& a, int64_t place, bool first) {
  return a.scratch + (2 * (place / kRowPiece) + (first ? 1 : 0)) * a.n;
}

// A team for each place of the sorted rows: those at which a piece begins sum it. A row of one
// piece is done with.
template <int P>
struct PieceSumBody {
  static constexpr int kLanes = 256;
  AddToRows a;

  template <class Team>
  KEEL_BODY void operator()(const Team& team, int64_t place) const {
    const int64_t row = a.sorted[place];
    const int64_t start = FirstPlace(a.sorted, a.count, row);
    if ((place - start) % kRowPiece != 0) return;
    const int64_t last = Least(a.count, place + kRowPiece);
    int64_t end = place + 1;
    while (end < last && a.sorted[end] == row) ++end;
    const bool first = place == start;
    const bool only = first && !(end < a.count && a.sorted[end] == row);
    float* to = only ? a.into + row * a.n : PieceSum(a, place, first);
    team.For(a.n / P, [&](int64_t i) {
      Pack<float, P> sum = LoadPack<P>(a.values + a.order[place] * a.n + i * P);
      for (int64_t next = place + 1; next < end; ++next) {
        const Pack<float, P> value = LoadPack<P>(a.values + a.order[next] * a.n + i * P);
        for (int k = 0; k < P; ++k) sum.at[k] += value.at[k];
      }
      if (only) {
        const Pack<float, P> before = LoadPack<P>(to + i * P);
        for (int k = 0; k < P; ++k) sum.at[k] += before.at[k];
      }
      StorePack(to + i * P, sum);
    });
  }
};

// A team for each kRowPiece places: the row of more than one piece that begins at one of them, if
// any does. It reaches over the last of them.
template <int P>
struct PiecesJoinBody {
  static constexpr int kLanes = 256;
  AddToRows a;

  template <class Team>
  KEEL_BODY void operator()(const Team& team, int64_t index) const {
    const int64_t begin = index * kRowPiece;
    const int64_t row = a.sorted[Least(begin + kRowPiece, a.count) - 1];
    const int64_t start = FirstPlace(a.sorted, a.count, row);
    const bool has_more = start + kRowPiece < a.count && a.sorted[start + kRowPiece] == row;
    if (start < begin || !has_more) return;
    float* to = a.into + row * a.n;
    team.For(a.n / P, [&](int64_t i) {
      Pack<float, P> sum = LoadPack<P>(PieceSum(a, start, true) + i * P);
      for (int64_t place = start + kRowPiece; place < a.count && a.sorted[place] == row;
           place += kRowPiece) {
        const Pack<float, P> more = LoadPack<P>(PieceSum(a, place, false) + i * P);
        for (int k = 0; k < P; ++k) sum.at[k] += more.at[k];
      }
      const Pack<float, P> before = LoadPack<P>(to + i * P);
      for (int k = 0; k < P; ++k) sum.at[k] += before.at[k];
      StorePack(to + i * P, sum);
    });
  }
};

template <class Launcher>
void StartAddToRows(const AddToRows& a, Stream stream) {
  WithPack<float>({a.n}, {a.values, a.into, a.scratch}, [&]<int P>(PackSize<P>) {
    Launcher::Run(PieceSumBody<P>{a}, a.count, 0, stream);
    Launcher::Run(PiecesJoinBody<P>{a}, RowScratch(a.count) / 2, 0, stream);
  });
}

template <class Launcher>
void AddRowSumTo(KernelTable& table) {
  table.add_to_rows = StartAddToRows<Launcher>;
}

}  // namespace keel::gpu
