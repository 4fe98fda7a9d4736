#include "twinkle/loss/vectors/vectors.h"

namespace twinkle::loss {

#define LOSS(name) VectorLoss name();
#include "twinkle/loss/vectors/vectors.def"
#undef LOSS

const std::vector<VectorLoss>& vector_losses() {
  static const std::vector<VectorLoss> losses = {
#define LOSS(name) name(),
#include "twinkle/loss/vectors/vectors.def"
#undef LOSS
  };
  return losses;
}

const VectorLoss& find_vectors(std::string_view class_name) {
  for (const VectorLoss& loss : vector_losses())
    if (loss.class_name == class_name) return loss;
  fail(Code::kInvalid, "loss: '", class_name, "' is no loss of vectors");
}

}  // namespace twinkle::loss
