// The type that elements of another are summed in. Internal to this folder.
#pragma once
#include <type_traits>

namespace twinkle::kernels {

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace twinkle::kernels
