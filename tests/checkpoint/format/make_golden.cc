// Writes the golden checkpoint of this version of the format: make_golden DIRECTORY.
//
// Run once per version of the format, by hand; the result is committed and never written again.
#include <iostream>

#include "tests/checkpoint/support/test_support.h"

int main(int argc, char** argv) {
  using namespace keel;                       // NOLINT
  using namespace keel::checkpoint::testing;  // NOLINT
  if (argc != 2) {
    std::cerr << "usage: make_golden DIRECTORY\n";
    return 64;
  }
  const auto fs = ValueOrThrow(OpenPosixFileSystem(argv[1], true));
  Cut cut({2}, 1);
  for (RankPart* part : {&cut.model[0], &cut.model[1], &cut.optimizer[0], &cut.optimizer[1]})
    *part = RankPart();
  // Rows 0-1 and 2 of `w`; the scalar on the second rank.
  GlobalState model, optimizer;
  for (const auto& [info, split] : {std::pair(TensorInfo{"w", DType::kBF16, Dims{3, 4}}, true),
                                    std::pair(TensorInfo{"b", DType::kF32, Dims{}}, false)}) {
    const TensorInfo master{"optimizer.master." + info.name, DType::kF32, info.shape};
    for (auto& [state, parts, tensor, start] :
         {std::tuple(&model, &cut.model, info, 0),
          std::tuple(&optimizer, &cut.optimizer, master, 100)}) {
      GlobalTensor whole{tensor, {}};
      const auto bytes = static_cast<size_t>(tensor.shape.elements() * DTypeSize(tensor.dtype));
      for (size_t i = 0; i < bytes; ++i)
        whole.bytes.push_back(static_cast<std::byte>(static_cast<size_t>(start) + i));
      state->emplace(tensor.name, std::move(whole));
      if (split) (*parts)[0].AddBox(tensor, {Dims{0, 0}, Dims{2, 4}});
      (*parts)[1].AddBox(tensor, split ? Box{Dims{2, 0}, Dims{1, 4}} : Box::Whole(tensor.shape));
    }
  }
  cut.Fill({model, optimizer});
  ThrowIfError(SaveOn(*fs, cut, 7, SmallOptions()));
  return 0;
}
